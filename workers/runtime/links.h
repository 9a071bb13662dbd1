// Carries what stages tell each other (ringfeed/worker/facts.h) along the wires of a configuration.
#pragma once

#include <cstddef>
#include <vector>

#include "ringfeed/worker/facts.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

class Registry;

// The links of all stages. They come from the configuration and the registry alone, so every
// process that has both comes to the same.
//
// Two passes: facts down, each stage after those that it reads; then wishes up, each stage after
// those that read it. A stage is asked once in each pass. In a configuration whose inputs close a
// circle, which the supervisor refuses, the stages of the circle are asked last, in their order,
// and know of each other only what was said before.
class PipelineLinks {
 public:
  // Both are kept by reference, and must stay.
  PipelineLinks(const DataLoaderConfig& feed, const Registry& registry);

  // Stage number `stage` of the configuration.
  [[nodiscard]] StageView view(int stage) const;
  // The ports of the stage, those that follow from its links among them.
  [[nodiscard]] const std::vector<PortSpec>& inputs(int stage) const;
  [[nodiscard]] const std::vector<PortSpec>& outputs(int stage) const;
  // What it says of its outputs, and wishes of its inputs.
  [[nodiscard]] const PortFacts& facts(int stage) const;
  [[nodiscard]] const PortFacts& wishes(int stage) const;

 private:
  // One of a stage's ports, and the other end.
  struct Wire {
    std::string port;
    std::size_t peer;
    std::string peer_port;
    bool first;  // of those that read the output
  };
  struct Entry {
    const StageType* type = nullptr;  // nullptr: no kind of the registry
    std::vector<PortSpec> inputs;
    std::vector<PortSpec> outputs;
    Links links;
    PortFacts facts;
    PortFacts wishes;
    std::vector<Wire> writes;
    std::vector<Wire> reads;
  };

  void find_ports(Entry& entry, const StageConfig& config) const;
  void find_wires();
  [[nodiscard]] std::vector<std::size_t> downward() const;

  const DataLoaderConfig& feed_;
  std::vector<Entry> entries_;
};

}  // namespace ringfeed
