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
  friend bool operator==(const Edge&, const Edge&) = default;
};

struct Wiring {
  std::vector<Edge> edges;  // by consuming stage, in the order of its ports
  std::vector<int> order;   // all stages, producers before their consumers, else as configured
  int batches_stage = -1;   // whose output is the feed; -1: none was found
  std::string batches_port;
};

// Resolves every input and reports what cannot be: missing or unknown inputs and ports, record
// types that differ, outputs with two readers or none, cycles, not exactly one output of batches.
// One mistake gives one message: what only follows from another mistake is left out.
[[nodiscard]] Wiring wire(const DataLoaderConfig& config, const PipelinePlan& plan,
                          const Places& places, std::vector<Problem>& problems);

// Whether a plan without problems agrees with itself and with the configuration: as many stages,
// every port served by a node, every node wired. Throws Error (kIncompatible): supervisor and
// worker are of different builds.
void require_consistent(const DataLoaderConfig& config, const PipelinePlan& plan);

}  // namespace ringfeed::config
