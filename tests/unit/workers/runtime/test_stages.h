// Stages of the tests' own making: a function for step().
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed::testing {

using StepFunction = std::function<StepStatus(Step&)>;
// Called for each incarnation of each lane: makes its step().
using StepMaker = std::function<StepFunction(const StageContext&)>;

class FunctionStage final : public Stage {
 public:
  explicit FunctionStage(StepFunction function) : function_(std::move(function)) {}
  StepStatus step(Step& step) noexcept override { return function_(step); }
  [[nodiscard]] int poll_ms() const noexcept override { return 1; }

 private:
  StepFunction function_;
};

struct NodeOptions {
  std::string from = "in";  // "": no input
  std::uint32_t lanes = 1;
  std::uint32_t lanes_max = 0;
  UnitRule units = UnitRule::kFollow;
  std::uint64_t capacity = 16;
  OverflowBehavior overflow = BLOCK;
  std::uint32_t steps_per_commit = 16;
  std::uint64_t state_bytes = 0;
  std::uint64_t state_bytes_max = 0;
  std::vector<std::string> counters = {};  // names that the stage may ask for
};

// A node with the ports "input" and "output".
inline NodeSpec function_node(const NodeOptions& options, StepMaker maker) {
  NodeSpec spec;
  spec.lanes = options.lanes;
  spec.lanes_max = options.lanes_max;
  spec.state_bytes = options.state_bytes;
  spec.state_bytes_max = options.state_bytes_max;
  if (!options.from.empty()) {
    spec.inputs = {{.port = "input", .from = options.from, .block = 1}};
  }
  spec.outputs = {{.port = "output",
                   .record_type = "any",
                   .queue_capacity = options.capacity,
                   .queue_bytes = 64 * 1024,
                   .overflow = options.overflow,
                   .units = options.units}};
  spec.steps_per_commit = options.steps_per_commit;
  spec.create = [maker = std::move(maker)](const StageContext& context) {
    return std::make_unique<FunctionStage>(maker(context));
  };
  return spec;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
inline std::string text_of(const Record& record) {
  return {reinterpret_cast<const char*>(record.bytes.data()), record.bytes.size()};
}

// Passes every record on.
inline StepFunction forward(const StageContext& context) {
  return [in = context.input("input"), out = context.output("output")](Step& step) {
    const std::optional<Record> record = step.peek(in);
    if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
    if (!step.put(out, record->bytes,
                  {.tag = {record->tag[0], record->tag[1]}, .user = record->user})) {
      return StepStatus::kNoRoom;
    }
    return step.consume(*record);
  };
}

}  // namespace ringfeed::testing
