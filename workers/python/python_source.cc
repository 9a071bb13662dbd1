// The stage python_source.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/random.h"
#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"
#include "workers/python/object_check.h"
#include "workers/python/object_errors.h"
#include "workers/python/source_function.h"

namespace ringfeed {
namespace {

OpenSourceFunction& opener_of_sources() {
  static OpenSourceFunction open;
  return open;
}

// A source that raises at the same place so often in a row ends the feed.
constexpr std::uint32_t kTriesMax = 3;

//   output   samples, each a unit; tag: the epoch from 1, the number in it
//   arena    epoch, samples given in it, and the cursor behind the last of them, in one of two
//            places; which one and how long (32 bytes, 2 x 4 KiB)
//   skips    a sample that cannot be taken (skipped_TypeError, ...) or fits no record
//            (skipped_too_large)
//
// What the source gave and what found no room stays with the process.
class PythonSource final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : epoch(layout.word()),
          given(layout.word()),
          which(layout.word()),
          length(layout.word()),
          cursors{layout.place(kCursorBytesMax), layout.place(kCursorBytesMax)} {}
    Word epoch;
    Word given;   // items of the epoch that are done with
    Word which;   // place of the cursor
    Word length;  // of it; 0: the epoch begins
    Place cursors[2];
  };

  explicit PythonSource(const StageContext& context)
      : context_(context),
        config_(context.config.python_source()),
        epochs_(context.feed.epochs()),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        out_(context.output("output")),
        samples_(context.counter("samples")),
        epochs_done_(context.counter("epochs")),
        errors_(context, config_.on_error() == PythonSourceConfig::STOP),
        too_large_(context, "skipped_too_large") {
    Result<std::unique_ptr<SourceFunction>> opened = source_opener()(context);
    if (!opened) throw Error(opened.error());
    source_ = std::move(*opened);
  }

  StepStatus step(Step& step) noexcept override {
    const std::uint64_t epoch = step.load(state_.epoch);
    if (step.draining() || (epochs_ != 0 && epoch >= epochs_)) return StepStatus::kEnd;
    if (!ready_.empty()) return give(step);
    // Room first: the source is not asked for an output that is full.
    if (step.reserve(out_, std::min<std::uint64_t>(step.record_bytes_max(out_), 64)).empty()) {
      return StepStatus::kNoRoom;
    }
    if (!begun_) {
      source_->begin(epoch, cursor(step), step.load(state_.given));
      begun_ = true;
    }
    SourceFunction::Items items = source_->next(config_.batch());
    std::ranges::move(items.items, std::back_inserter(ready_));
    end_ = items.end;
    if (!items.error.empty()) {
      begun_ = false;
      if (ready_.empty()) return raised(step, items);
    }
    if (!ready_.empty()) return give(step);
    return end_ ? end_epoch(step) : StepStatus::kIdle;
  }
  // After the source has raised, or an epoch that had nothing.
  [[nodiscard]] int poll_ms() const noexcept override { return 200; }

 private:
  [[nodiscard]] std::vector<std::byte> cursor(const Step& step) const {
    const std::uint64_t length = step.load(state_.length);
    const Place place = state_.cursors[step.load(state_.which) & 1];
    const std::byte* const bytes = step.bytes(place.offset);
    return {bytes, bytes + std::min<std::uint64_t>(length, kCursorBytesMax)};
  }

  // As many as there is room for; the cursor is that behind the last.
  StepStatus give(Step& step) noexcept {
    const std::uint64_t epoch = step.load(state_.epoch);
    const std::uint64_t before = step.load(state_.given);
    std::size_t given = 0;
    std::uint64_t put = 0;
    for (; given < ready_.size(); ++given) {
      const SourceFunction::Item& item = ready_[given];
      const std::uint64_t tag[2] = {epoch + 1, before + given};
      if (!item.error.empty()) {
        errors_.count(step, item.error, item.traceback, tag);
      } else if (item.sample.size() > step.record_bytes_max(out_)) {
        too_large_.skip(
            step, fmt::format("sample:{:016x}", tag[0]), tag[1],
            fmt::format("a sample of {} bytes does not fit a record of {}: raise "
                        "queue_bytes of stage '{}'",
                        item.sample.size(), step.record_bytes_max(out_), context_.stage));
      } else if (step.put(out_, item.sample, {.tag = {tag[0], tag[1]}})) {
        ++put;
      } else {
        break;
      }
    }
    if (given == 0) return StepStatus::kNoRoom;
    tries_ = 0;
    step.count(samples_, put);
    step.store(state_.given, before + given);
    const std::vector<std::byte>& behind = ready_[given - 1].cursor;
    const std::uint64_t which = 1 - (step.load(state_.which) & 1);
    step.fill({state_.cursors[which].offset, behind.size()}, behind);
    step.store(state_.which, which);
    step.store(state_.length, behind.size());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(given));
    return StepStatus::kDone;
  }

  StepStatus end_epoch(Step& step) noexcept {
    // An endless run over nothing waits for something between two looks.
    const bool nothing = step.load(state_.given) == 0;
    if (nothing && epochs_ == 0 && !std::exchange(waited_, true)) {
      begun_ = false;
      return StepStatus::kIdle;
    }
    waited_ = false;
    begun_ = end_ = false;
    step.store(state_.epoch, step.load(state_.epoch) + 1);
    step.store(state_.given, 0);
    step.store(state_.length, 0);
    step.count(epochs_done_);
    return StepStatus::kDone;
  }

  // It begins again behind the last sample, in a moment: what it reads may be away for a while.
  StepStatus raised(Step& step, const SourceFunction::Items& items) noexcept {
    const std::uint64_t tag[2] = {step.load(state_.epoch) + 1, step.load(state_.given)};
    errors_.tell(items.error, items.traceback, tag);
    if (++tries_ >= kTriesMax || config_.on_error() == PythonSourceConfig::STOP) {
      context_.fail(
          fmt::format("stage '{}': the source raised {} {} times in a row behind sample "
                      "{} of epoch {}:\n{}",
                      context_.stage, items.error, tries_, tag[1], tag[0], items.traceback));
    }
    return StepStatus::kIdle;
  }

  StageContext context_;
  const PythonSourceConfig& config_;
  std::uint64_t epochs_;  // 0: endless
  State state_;
  OutPort out_;
  Counter samples_;
  Counter epochs_done_;
  ObjectErrors errors_;
  SkipReason too_large_;
  std::unique_ptr<SourceFunction> source_;
  std::deque<SourceFunction::Item> ready_;
  bool begun_ = false;
  bool end_ = false;
  bool waited_ = false;
  std::uint32_t tries_ = 0;
};

}  // namespace

void set_source_opener(OpenSourceFunction open) { opener_of_sources() = std::move(open); }
const OpenSourceFunction& source_opener() noexcept { return opener_of_sources(); }

StageType python_source_type() {
  StageType type;
  type.kind = "python_source";
  type.outputs = {{"output", "samples"}};
  type.counters = {
      {"samples", "Samples output."},
      {"epochs", "Epochs that have been put out."},
      {"skipped_too_large", "Samples that do not fit a record of the output."},
  };
  ObjectErrors::declare(type.counters);
  type.problems = [](const StageView& stage) {
    return object_problems(object_of(stage.config.python_source()));
  };
  type.nodes = [](const StageView& stage) {
    const PythonSourceConfig& own = stage.config.python_source();
    StateLayout layout;
    (void)PythonSource::State(layout);
    NodeSpec node;
    node.if_slow =
        "One process runs it: what it does to each sample can be done by several, in a stage "
        "`python` behind it";
    node.process_per_lane = true;
    node.warm_parent = true;
    node.state_bytes = layout.bytes();
    node.outputs = {output_spec(own, "samples", 4 * kMiB, UnitRule::kRecord)};
    node.weight = 2;
    node.steps_per_commit = 1;
    node.program = "ringfeed-worker-python";
    if (source_opener()) {
      node.create = [](const StageContext& context) {
        return std::make_unique<PythonSource>(context);
      };
    }
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "items" python_source { object: "my_data:Rows" python_path: "/data" } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
