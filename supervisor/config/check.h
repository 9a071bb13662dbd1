// Checks a configuration against what the worker can build, and says everything that is wrong.
//
// What is checked, in the order of the code: names of stages, exactly one configuration each,
// ranges of all numbers (from the options in config.proto), what the stages themselves refuse (from
// the plan), the wiring (wiring.h), the feed's name, stage groups, slots and consumer groups,
// restarts. Data directories are looked at, and may give warnings; so do stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "supervisor/config/places.h"
#include "supervisor/config/read.h"
#include "supervisor/config/wiring.h"

namespace ringfeed {
class PipelinePlan;
}

namespace ringfeed::config {

struct Checked {
  Wiring wiring;                  // complete only if there are no problems
  std::vector<Problem> problems;  // of reading and of checking, in the order of the file
  std::vector<Problem> warnings;  // what is allowed, and probably not meant
  std::size_t left_out = 0;       // problems that were found and not kept
  [[nodiscard]] bool ok() const { return problems.empty(); }
};

// Never stops at the first problem. Throws Error (kIncompatible) if the plan is not one of this
// configuration, or contradicts itself.
[[nodiscard]] Checked check_config(const Configuration& configuration, const PipelinePlan& plan);

// Why the feed cannot begin with any batch of its choice; "": it can.
[[nodiscard]] std::string begins_nowhere_else(const DataLoaderConfig& config,
                                              const PipelinePlan& plan, const Wiring& wiring);

// What can be said of a part of a configuration, whose other stages follow: names, exactly one
// configuration each, ranges. Nothing is said of wiring, and no worker is asked.
[[nodiscard]] std::vector<Problem> check_part(const Configuration& configuration);

// Batches that an output can hold: feed_output.slots; where that is not given, the queue_capacity
// of the stage that puts them out; where that is not given either, the default.
[[nodiscard]] std::uint32_t slot_count(const DataLoaderConfig& config, const BatchesPort& output);

}  // namespace ringfeed::config
