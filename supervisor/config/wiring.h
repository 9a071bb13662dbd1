// Who reads from whom: the inputs of the configuration resolved against the ports of the plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "supervisor/config/places.h"

namespace ringfeed {
class DataLoaderConfig;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::config {

// One output port feeding one input port. Stages are numbers in DataLoaderConfig.stages, and in
// PipelinePlan.stages, which has the same order.
struct Edge {
  int from_stage = 0;
  std::string from_port;
  int to_stage = 0;
  std::string to_port;
  std::string record_type;
  bool back = false;  // carries requests to a stage before: no order follows from it
  friend bool operator==(const Edge&, const Edge&) = default;
};

// An output of batches that no stage reads: trainers do.
struct BatchesPort {
  int stage = 0;
  std::string port;
  int settings = -1;         // in DataLoaderConfig.feed_output; -1: the defaults
  bool keep_newest = false;  // its overflow behaviour
  friend bool operator==(const BatchesPort&, const BatchesPort&) = default;
};

struct Wiring {
  std::vector<Edge> edges;  // by consuming stage, in the order of its ports
  std::vector<int> order;   // all stages, producers before their consumers, else as configured
  // The feed's outputs, the one without an alias first, then as configured; empty: none was found.
  std::vector<BatchesPort> outputs;
};

// Resolves every input and reports what cannot be: missing or unknown inputs and ports, record
// types that differ, outputs with two readers or none, cycles, no output of batches, or several
// that feed_output does not tell apart. One mistake gives one message: what only follows from
// another mistake is left out.
[[nodiscard]] Wiring wire(const DataLoaderConfig& config, const PipelinePlan& plan,
                          const Places& places, std::vector<Problem>& problems);

// Whether a plan without problems agrees with itself and with the configuration: as many stages,
// every port served by a node, every node wired. Throws Error (kIncompatible): supervisor and
// worker are of different builds.
void require_consistent(const DataLoaderConfig& config, const PipelinePlan& plan);

}  // namespace ringfeed::config
