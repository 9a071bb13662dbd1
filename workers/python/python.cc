// The stage python.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/random.h"
#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/resumed_split.h"
#include "workers/kit/stage_help.h"
#include "workers/python/object_check.h"
#include "workers/python/object_errors.h"
#include "workers/python/sample_function.h"

namespace ringfeed {

namespace {
OpenSampleFunction& opener() {
  static OpenSampleFunction open;
  return open;
}
}  // namespace

void set_function_opener(OpenSampleFunction open) { opener() = std::move(open); }
const OpenSampleFunction& function_opener() noexcept { return opener(); }

namespace {

//   input    samples
//   output   samples, in the order of their inputs; tag: that of the input
//   arena    samples of the input at hand that are out already (8 bytes)
//   skips    an input for which the function raises (skipped_ValueError, ...); an output that does
//            not fit a record (skipped_too_large)
//
// The function gets as many samples at once as are there, `batch` at most. What it gave and what
// found no room stays with the process: no sample is given to it twice while it lives. After a
// start it gets them one by one for a while, so that a record that kills it is found out.
class PythonStage final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout) {}
    ResumedSplit split;
  };

  explicit PythonStage(const StageContext& context)
      : context_(context),
        config_(context.config.python()),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        in_(context.input("input")),
        out_(context.output("output")),
        inputs_counter_(context.counter("inputs")),
        samples_(context.counter("samples")),
        errors_(context, config_.on_error() == PythonConfig::STOP),
        too_large_(context, "skipped_too_large"),
        singly_(config_.batch()) {
    Result<std::unique_ptr<SampleFunction>> opened = function_opener()(context);
    if (!opened) throw Error(opened.error());
    function_ = std::move(*opened);
  }

  StepStatus step(Step& step) noexcept override {
    if (!ready_.empty()) return give(step);
    const std::optional<Record> first = step.peek(in_);
    if (!first) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    // Room first: the function is not called for an output that is full.
    if (step.reserve(out_, std::min<std::uint64_t>(step.record_bytes_max(out_), 64)).empty()) {
      return StepStatus::kNoRoom;
    }
    const bool one = singly_ != 0 || state_.split.done(step) != 0;
    singly_ -= singly_ != 0 ? 1 : 0;
    batch_.clear();
    StepStatus consumed = StepStatus::kDone;
    for (std::optional<Record> record = first; record;) {
      batch_.push_back({.sample = record->bytes,
                        .tag = {record->tag[0], record->tag[1]},
                        .seed = mix(mix(context_.key, record->tag[0]), record->tag[1])});
      if (one) break;
      consumed = step.consume(*record);
      if (consumed != StepStatus::kDone || batch_.size() == config_.batch()) break;
      record = step.peek(in_);
    }
    outcomes_.clear();
    function_->run(batch_, outcomes_);
    RF_CHECK(outcomes_.size() == batch_.size(), outcomes_.size(), batch_.size());
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      ready_.push_back({std::move(outcomes_[i]), {batch_[i].tag[0], batch_[i].tag[1]}});
    }
    fitting_ = ready_.size();
    // The inputs go one by one, each with what became of it, as far as there is room.
    return one ? give(step) : StepStatus::kAgain;
  }

  void forget(Step& step, const Record&) noexcept override {
    state_.split.forget(step);  // the function was never given it: nothing of it is ready
  }

 private:
  // What the function made of an input that is still there.
  struct Ready {
    SampleFunction::Outcome outcome;
    std::uint64_t tag[2];
  };

  // The next inputs go, as far as there is room for what became of them.
  StepStatus give(Step& step) noexcept {
    std::size_t given = 0;
    for (; given < fitting_; ++given) {
      const std::optional<Record> record = step.peek(in_);
      if (!record) break;  // it is set aside, or the lane ends
      const Ready& ready = ready_[given];
      const std::uint64_t all = count_of(step, ready);
      const std::uint64_t next = put(step, ready, state_.split.done(step));
      if (next == all) count(step, ready);
      StepStatus status = StepStatus::kNoRoom;
      if (next == all || given == 0) status = state_.split.advance(step, *record, next, all);
      if (status != StepStatus::kDone) {
        if (given == 0) return status;
        fitting_ = given;  // without what has been put of this one
        return StepStatus::kAgain;
      }
      if (next != all) return StepStatus::kDone;
    }
    if (given == 0) return StepStatus::kNoInput;
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(given));
    fitting_ = ready_.size();
    return StepStatus::kDone;
  }

  // Samples of it that fit a record; the first that does not ends them.
  [[nodiscard]] std::uint64_t count_of(const Step& step, const Ready& ready) const noexcept {
    const std::uint64_t most = step.record_bytes_max(out_);
    const auto& samples = ready.outcome.samples;
    const auto large = std::ranges::find_if(
        samples, [&](const std::vector<std::byte>& sample) { return sample.size() > most; });
    return static_cast<std::uint64_t>(large - samples.begin());
  }
  // From the one of this number on; the number of the first that found no room.
  [[nodiscard]] std::uint64_t put(Step& step, const Ready& ready, std::uint64_t next) noexcept {
    const std::uint64_t all = count_of(step, ready);
    while (next < all &&
           step.put(out_, ready.outcome.samples[next], {.tag = {ready.tag[0], ready.tag[1]}})) {
      ++next;
    }
    return next;
  }
  void count(Step& step, const Ready& ready) noexcept {
    step.count(inputs_counter_);
    const std::uint64_t all = count_of(step, ready);
    step.count(samples_, all);
    if (!ready.outcome.error.empty()) {
      errors_.count(step, ready.outcome.error, ready.outcome.traceback, ready.tag);
    }
    if (all != ready.outcome.samples.size()) {
      too_large_.skip(step, fmt::format("sample:{:016x}", ready.tag[0]), ready.tag[1],
                      fmt::format("a sample of {} bytes does not fit a record of {}: raise "
                                  "queue_bytes of stage '{}'",
                                  ready.outcome.samples[all].size(), step.record_bytes_max(out_),
                                  context_.stage));
    }
  }

  StageContext context_;
  const PythonConfig& config_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter inputs_counter_;
  Counter samples_;
  ObjectErrors errors_;
  SkipReason too_large_;
  std::unique_ptr<SampleFunction> function_;
  std::uint32_t singly_;     // samples that are still to come alone
  std::deque<Ready> ready_;  // the front belongs to the record at the input's head
  std::size_t fitting_ = 0;  // of them, how many may go in one step
  std::vector<SampleFunction::Input> batch_;
  std::vector<SampleFunction::Outcome> outcomes_;
};

}  // namespace

StageType python_type() {
  StageType type;
  type.kind = "python";
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {"inputs", "Samples that the object was given."},
      {"samples", "Samples output."},
      {"skipped_too_large", "Samples that do not fit a record of the output."},
  };
  ObjectErrors::declare(type.counters);
  type.problems = [](const StageView& stage) {
    return object_problems(object_of(stage.config.python(), false));
  };
  type.nodes = [](const StageView& stage) {
    const PythonConfig& own = stage.config.python();
    StateLayout layout;
    (void)PythonStage::State(layout);
    NodeSpec node;
    node.lanes = own.processes();
    node.lanes_max = std::max(own.processes(), own.max_processes());
    node.more_lanes = "set processes: {} (in Python .map(..., processes={})) and start a new feed";
    node.process_per_lane = true;
    node.warm_parent = true;
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "samples", 4 * kMiB, UnitRule::kFollow)};
    node.weight = 2;
    node.steps_per_commit = 1;
    node.program = "ringfeed-worker-python";
    if (function_opener()) {
      node.create = [](const StageContext& context) {
        return std::make_unique<PythonStage>(context);
      };
    }
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "mapped" python { input: "lines" object: "my_data:transform" } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
