#include "workers/lc0/join_positions.h"

#include <fmt/format.h>

#include "proto/feed_output.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_facts.h"

namespace ringfeed {
namespace {

constexpr int kInputsMax = 16;

std::string port_name(int i) { return fmt::format("input[{}]", i); }

}  // namespace

JoinPositions::JoinPositions(const StageContext& context)
    : state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      ordered_(ordered_dispatch(context.feed)),
      out_(context.output("output")) {
  for (int i = 0; i < context.config.join_positions().input_size(); ++i) {
    inputs_.push_back(context.input(port_name(i)));
  }
}

StepStatus JoinPositions::step(Step& step) noexcept {
  const std::uint64_t turn = step.load(state_.turn);
  std::size_t ended = 0;
  for (std::uint64_t i = 0; i < inputs_.size(); ++i) {
    const InPort input = inputs_[(turn + i) % inputs_.size()];
    const std::optional<Record> record = step.peek(input);
    if (!record) {
      if (step.ended(input)) {
        ++ended;
        continue;
      }
      if (ordered_) return StepStatus::kNoInput;
      continue;
    }
    if (!step.put(out_, record->bytes,
                  {.tag = {record->tag[0], record->tag[1]}, .user = record->user})) {
      return StepStatus::kNoRoom;
    }
    step.store(state_.turn, (turn + i + 1) % inputs_.size());
    return step.consume(*record);
  }
  return ended == inputs_.size() ? StepStatus::kEnd : StepStatus::kNoInput;
}

StageType join_positions_type() {
  StageType type;
  type.kind = "join_positions";
  type.outputs = {{"output", "frames"}};
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                       std::vector<PortSpec>&) {
    for (int i = 0; i < stage.config.join_positions().input_size(); ++i) {
      inputs.push_back({port_name(i), "frames"});
    }
  };
  type.problems = [](const StageView& stage) {
    const int inputs = stage.config.join_positions().input_size();
    std::vector<Problem> problems;
    if (inputs == 0) {
      problems.push_back(
          {"input", "input is missing; name the stages that output frames, each in its own input"});
    } else if (inputs > kInputsMax) {
      problems.push_back(
          {fmt::format("input[{}]", kInputsMax),
           fmt::format("{} inputs are given; at most {} are possible", inputs, kInputsMax)});
    }
    return problems;
  };
  type.facts = [](const StageView&, PortFacts& outputs) {
    outputs["output"].set(kDealtInTurn, true);
  };
  type.nodes = [](const StageView& stage) {
    const JoinPositionsConfig& own = stage.config.join_positions();
    NodeSpec node;
    StateLayout layout;
    (void)JoinPositions::State(layout);
    node.state_bytes = layout.bytes();
    for (int i = 0; i < own.input_size(); ++i) {
      node.inputs.push_back({.port = port_name(i), .from = "", .block = 1});
    }
    node.outputs = {output_spec(own, "frames", 4 * kMiB, UnitRule::kRecord)};
    node.weight = 0.1;
    node.steps_per_commit = 256;
    node.create = [](const StageContext& context) {
      return std::make_unique<JoinPositions>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "new" file_path_provider { directory: "/data/new" } }
stages { name: "old" file_path_provider { directory: "/data/old" } }
stages { name: "new_files" chunk_source_loader { input: "new" } }
stages { name: "old_files" chunk_source_loader { input: "old" } }
stages { name: "new_games" shuffling_chunk_pool { input: "new_files" chunk_pool_size: 20000 } }
stages { name: "old_games" shuffling_chunk_pool { input: "old_files" chunk_pool_size: 20000 } }
stages { name: "new_frames" chunk_unpacker { input: "new_games" } }
stages { name: "old_frames" chunk_unpacker { input: "old_games" } }
stages { name: "both" join_positions { input: "new_frames" input: "old_frames" } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
