// A plug-in with the stage of docs/examples/own_stage, which here dies of a text with "poison" in
// it, one with several inputs, one that makes batches, and one that forgets to go on.
// $RINGFEED_TEST_STATE_VERSION is the version of its states.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "docs/examples/own_stage/word_filter.h"
#include "ringfeed/worker/batch.h"
#include "ringfeed/worker/main.h"
#include "ringfeed/worker/plugin.h"
#include "ringfeed/worker/sample.h"

namespace ringfeed {
namespace {

class Mortal final : public Stage {
 public:
  Mortal(const StageContext& context, std::unique_ptr<Stage> stage)
      : in_(context.input("input")), stage_(std::move(stage)) {}

  StepStatus step(Step& step) noexcept override {
    if (const std::optional<Record> record = step.peek(in_)) {
      const std::string_view bytes(reinterpret_cast<const char*>(record->bytes.data()),
                                   record->bytes.size());
      if (bytes.find("poison") != std::string_view::npos) std::abort();
    }
    return stage_->step(step);
  }

 private:
  InPort in_;
  std::unique_ptr<Stage> stage_;
};

StageType mortal_type() {
  StageType type = word_filter_type();
  type.nodes = [of = type.nodes](const StageView& stage) {
    std::vector<NodeSpec> nodes = of(stage);
    if (const char* version = std::getenv("RINGFEED_TEST_STATE_VERSION")) {
      nodes[0].state_version = static_cast<std::uint32_t>(std::atoi(version));
    }
    nodes[0].create = [make = nodes[0].create](const StageContext& context) {
      return std::make_unique<Mortal>(context, make(context));
    };
    return nodes;
  };
  return type;
}

// One sample of each input in turn, until one of them has ended. The turn is a word of its arena.
class Zipper final : public Stage {
 public:
  explicit Zipper(const StageContext& context) : out_(context.output("output")) {
    const std::size_t inputs = plugin_settings(context.config).inputs.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      inputs_.push_back(context.input("input[" + std::to_string(i) + "]"));
    }
    StateLayout layout;
    turn_ = layout.word();
  }

  StepStatus step(Step& step) noexcept override {
    const std::uint64_t turn = step.load(turn_);
    const InPort in = inputs_[turn % inputs_.size()];
    const std::optional<Record> record = step.peek(in);
    if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
    const RecordInfo info{.tag = {record->tag[0], record->tag[1]}, .user = record->user};
    if (!step.put(out_, record->bytes, info)) return StepStatus::kNoRoom;
    step.store(turn_, turn + 1);
    return step.consume(*record);
  }

 private:
  std::vector<InPort> inputs_;
  OutPort out_;
  Word turn_;
};

StageType zipper_type() {
  StageType type;
  type.kind = "zipper";
  type.text = "Samples of several inputs in turn, until one of them has ended.";
  type.outputs = {{"output", "samples"}};
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                       std::vector<PortSpec>&) {
    const std::size_t count = plugin_settings(stage.config).inputs.size();
    for (std::size_t i = 0; i < count; ++i) {
      inputs.push_back({"input[" + std::to_string(i) + "]", "samples"});
    }
  };
  type.problems = [](const StageView& stage) -> std::vector<Problem> {
    if (plugin_settings(stage.config).inputs.size() >= 2) return {};
    return {{"input", "give at least two inputs"}};
  };
  type.nodes = [](const StageView& stage) {
    const PluginSettings own = plugin_settings(stage.config);
    StateLayout layout;
    static_cast<void>(layout.word());
    NodeSpec node;
    node.state_bytes = layout.bytes();
    for (std::size_t i = 0; i < own.inputs.size(); ++i) {
      node.inputs.push_back({.port = "input[" + std::to_string(i) + "]", .from = "", .block = 1});
    }
    node.outputs = {own.output("samples", UnitRule::kRecord)};
    node.create = [](const StageContext& context) { return std::make_unique<Zipper>(context); };
    return std::vector<NodeSpec>{node};
  };
  return type;
}

const Option<std::int64_t> kBatchSize{
    .name = "batch_size", .help = "Rows of a batch.", .otherwise = 8, .min = 1, .max = 1024};

struct StackLayout {
  explicit StackLayout(const StageConfig& config) {
    batch.rows_max = static_cast<std::uint32_t>(plugin_settings(config).options.get(kBatchSize));
    ids = batch.add("ids", SampleDtype::kInt64, {kAllRows});
    squares = batch.add("squares", SampleDtype::kFloat64, {kAllRows, 2});
  }
  BatchLayout batch;
  std::uint64_t ids;
  std::uint64_t squares;
};

// Batches of the field "id", and of its first and second power.
class Stacker final : public Stage {
 public:
  explicit Stacker(const StageContext& context)
      : layout_(context.config),
        drops_(feed_settings(context.feed).drop_remainder),
        in_(context.input("input")) {
    StateLayout state;
    rows_ = state.word();
  }

  StepStatus step(Step& step) noexcept override {
    const std::uint64_t rows = step.load(rows_);
    const std::optional<Record> record = step.peek(in_);
    if (!record) {
      if (!step.ended(in_)) return StepStatus::kNoInput;
      if (rows != 0 && !drops_) publish(step, rows);
      return StepStatus::kEnd;
    }
    const std::span<std::byte> slot = step.open_batch();
    if (slot.empty()) return StepStatus::kNoRoom;
    const std::optional<SampleView> sample = SampleView::open(record->bytes);
    const std::optional<SampleField> id = sample ? sample->find("id") : std::nullopt;
    if (!id || id->dtype != SampleDtype::kInt64 || !id->shape.empty()) return step.consume(*record);
    std::int64_t value = 0;
    std::memcpy(&value, id->data.data(), sizeof value);
    const double powers[2] = {static_cast<double>(value), static_cast<double>(value * value)};
    std::memcpy(slot.data() + layout_.ids + rows * sizeof value, &value, sizeof value);
    std::memcpy(slot.data() + layout_.squares + rows * sizeof powers, powers, sizeof powers);
    step.store(rows_, rows + 1);
    if (rows + 1 == layout_.batch.rows_max) publish(step, rows + 1);
    return step.consume(*record);
  }

 private:
  void publish(Step& step, std::uint64_t rows) noexcept {
    const std::uint64_t token[2] = {step.batch_number(), rows};
    step.publish_batch(static_cast<std::uint32_t>(rows), layout_.batch.bytes, token);
    step.store(rows_, 0);
  }

  StackLayout layout_;
  bool drops_;
  InPort in_;
  Word rows_;  // written of the batch under way
};

StageType stacker_type() {
  StageType type;
  type.kind = "stacker";
  type.text = "Batches of numbers.";
  type.options = {kBatchSize};
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "batches"}};
  type.batch_layout = [](const StageView& stage) { return StackLayout(stage.config).batch; };
  type.nodes = [](const StageView& stage) {
    StateLayout state;
    static_cast<void>(state.word());
    NodeSpec node;
    node.state_bytes = state.bytes();
    node.steps_per_commit = 1;  // a batch opens its slot in a step of its own
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {plugin_settings(stage.config).output("batches", UnitRule::kExplicit, 0)};
    node.create = [](const StageContext& context) { return std::make_unique<Stacker>(context); };
    return std::vector<NodeSpec>{node};
  };
  return type;
}

constexpr std::uint64_t kRemembers = 40;

// Passes so many samples on, and then sleeps with others before it: a stage with a fault.
class Forgetful final : public Stage {
 public:
  explicit Forgetful(const StageContext& context)
      : in_(context.input("input")), out_(context.output("output")) {}

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    if (passed_ == kRemembers) return StepStatus::kNoInput;
    const RecordInfo info{.tag = {record->tag[0], record->tag[1]}, .user = record->user};
    if (!step.put(out_, record->bytes, info)) return StepStatus::kNoRoom;
    ++passed_;
    return step.consume(*record);
  }

 private:
  InPort in_;
  OutPort out_;
  std::uint64_t passed_ = 0;  // of this incarnation
};

StageType forgetful_type() {
  StageType type;
  type.kind = "forgetful";
  type.text = "Passes samples on until it forgets to.";
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "samples"}};
  type.nodes = [](const StageView& stage) {
    NodeSpec node;
    node.steps_per_commit = 1;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {plugin_settings(stage.config).output("samples", UnitRule::kRecord)};
    node.create = [](const StageContext& context) { return std::make_unique<Forgetful>(context); };
    return std::vector<NodeSpec>{node};
  };
  return type;
}

}  // namespace
}  // namespace ringfeed

int main(int argc, char** argv) {
  return ringfeed::worker_main(argc, argv,
                               {ringfeed::mortal_type(), ringfeed::zipper_type(),
                                ringfeed::stacker_type(), ringfeed::forgetful_type()});
}
