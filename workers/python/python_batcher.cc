// The stage python_batcher.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/random.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_columns.h"
#include "workers/kit/batch_writer.h"
#include "workers/kit/stage_help.h"
#include "workers/python/batch_function.h"
#include "workers/python/object_errors.h"
#include "workers/python/remote_settings.h"

namespace ringfeed {
namespace {

OpenBatchFunction& opener_of_batches() {
  static OpenBatchFunction open;
  return open;
}

constexpr std::uint64_t kSamplesPerStep = 256;

// How a sample that waits for its batch lies in the arena: this, then its bytes.
struct Head {
  std::uint64_t bytes;
  std::uint64_t tag[2];
  std::uint64_t user;
  std::uint64_t key;  // Step::key()
  std::uint64_t zero[3];
};
static_assert(sizeof(Head) == 64, "samples are as aligned as records are");

// What is done with the samples of a batch before the function gets them together.
enum Care : std::uint64_t {
  kNone = 0,
  kAfterDeath = 1,      // each is given to it alone; nothing that comes of it counts
  kAfterException = 2,  // the same, but one for which it raises is left out
};

BatchColumns columns_of(const PythonBatcherConfig& config) {
  return {batch_fields(config.fields()), config.batch_size(), config.lineage()};
}

//   input    samples
//   output   batches; a row for each sample
//   arena    the samples of the batch under way, one behind the other, and a list of where they
//            are, in one of two places (2 x 8 bytes x batch_size); count, bytes, which list, care,
//            samples tried, batches set aside in a row (8 each)
//   at end   a batch of fewer rows, or none, as drop_remainder says
//   skips    samples for which the function raises, or makes something else than the fields say
//            (skipped_ValueError, skipped_wrong_shape, ...)
//
// Samples are taken out of the input as they come, so its ring need not hold a batch. When there
// are enough, or no more will come, the function writes a batch of them into the slot, and they go
// with the commit that publishes it. Until then nothing refers to the slot, so what a death leaves
// in it means nothing; and the function's input, the arena, is not written meanwhile.
//
// A process that finds samples in the arena is the successor of one that has died, most likely of
// them. They are tried one by one, in steps of their own, so that the supervisor learns which one
// it is. The batch is then filled up and tried together. If that still kills, it is set aside
// whole. Likewise if the function raises: the first call together decides that they are tried, and
// each is left out or kept by what follows from it alone, so the same samples are in the same
// batches whoever dies when.
class PythonBatcher final : public Stage {
 public:
  struct State {
    State(StateLayout& layout, std::uint64_t batch_size)
        : batch(layout),
          count(layout.word()),
          used(layout.word()),
          which(layout.word()),
          care(layout.word()),
          tried(layout.word()),
          aside(layout.word()),
          lists{layout.place(8 * batch_size), layout.place(8 * batch_size)},
          samples(layout.place(0)) {}
    BatchWriter::State batch;
    Word count;      // samples of the batch under way
    Word used;       // bytes behind `samples` that they take
    Word which;      // of the lists
    Word care;       // Care
    Word tried;      // of the samples, with care
    Word aside;      // batches set aside whole since the last one that was made
    Place lists[2];  // where each sample is, behind `samples`
    Place samples;   // from here on
  };

  explicit PythonBatcher(const StageContext& context)
      : context_(context),
        columns_(columns_of(context.config.python_batcher())),
        state_([this] {
          StateLayout layout;
          return State(layout, columns_.rows);
        }()),
        batches_(context, state_.batch, columns_.rows, columns_.end),
        in_(context.input("input")),
        errors_(context, context.config.python_batcher().on_error() == PythonBatcherConfig::STOP,
                kBatchFaults) {
    Result<std::unique_ptr<BatchFunction>> opened = batch_opener()(context);
    if (!opened) throw Error(opened.error());
    function_ = std::move(*opened);
  }

  StepStatus step(Step& step) noexcept override {
    if (std::exchange(begins_, false) && succeed(step)) return StepStatus::kDone;
    const std::uint64_t count = step.load(state_.count);
    const std::uint64_t care = step.load(state_.care);
    if (care != kNone && step.load(state_.tried) < count) return try_held(step, care);
    if (count < columns_.rows) {
      const StepStatus status = care == kNone ? gather(step) : gather_with_care(step, care);
      if (status != StepStatus::kNoInput || !step.ended(in_)) return status;
      if (count == 0) return StepStatus::kEnd;
    }
    return make_batch(step, count);
  }

 private:
  struct Held {
    Record record;
    std::uint64_t key;
  };

  // ---- the samples held

  [[nodiscard]] Held held(const Step& step, std::uint64_t i) const noexcept {
    const Place list = state_.lists[step.load(state_.which) & 1];
    std::uint64_t begin = 0;
    std::memcpy(&begin, step.bytes(list.offset + 8 * i), sizeof begin);
    const std::byte* const at = step.bytes(state_.samples.offset + begin);
    Head head;
    std::memcpy(&head, at, sizeof head);
    RF_CHECK(begin + sizeof head + head.bytes <= step.load(state_.used), begin, head.bytes);
    return {.record = {{at + sizeof head, head.bytes}, {head.tag[0], head.tag[1]}, head.user, in_},
            .key = head.key};
  }

  // False: there is no memory for it.
  [[nodiscard]] bool make_room(Step& step, const Record& record) const noexcept {
    const std::uint64_t end =
        state_.samples.offset + next_place(step) + sizeof(Head) + record.bytes.size();
    return end <= step.state_bytes() || step.grow(end, 2 * end);
  }
  [[nodiscard]] std::uint64_t next_place(const Step& step) const noexcept {
    return shm::align_up(step.load(state_.used), sizeof(Head));
  }
  // There is room. Nothing refers to what is written here until the commit.
  void hold(Step& step, const Record& record) noexcept {
    const Head head{.bytes = record.bytes.size(),
                    .tag = {record.tag[0], record.tag[1]},
                    .user = record.user,
                    .key = step.key(record),
                    .zero = {}};
    const std::uint64_t begin = next_place(step);
    const std::uint64_t bytes = sizeof head + head.bytes;
    std::byte* const to = step.bytes_to_write(state_.samples.offset + begin, bytes);
    std::memcpy(to, &head, sizeof head);
    if (head.bytes != 0) std::memcpy(to + sizeof head, record.bytes.data(), head.bytes);
    const std::uint64_t count = step.load(state_.count);
    const Place list = state_.lists[step.load(state_.which) & 1];
    std::memcpy(step.bytes_to_write(list.offset + 8 * count, 8), &begin, sizeof begin);
    step.store(state_.count, count + 1);
    step.store(state_.used, begin + bytes);
  }

  // kDone: some have come. kNoInput: none is there. kNoRoom: there is no memory for the next one.
  StepStatus gather(Step& step) noexcept {
    StepStatus status = StepStatus::kNoInput;
    for (std::uint64_t i = 0; i < kSamplesPerStep && step.load(state_.count) < columns_.rows; ++i) {
      const std::optional<Record> record = step.peek(in_);
      if (!record) break;
      if (!make_room(step, *record)) return i == 0 ? StepStatus::kNoRoom : status;
      hold(step, *record);
      status = step.consume(*record);
      if (status != StepStatus::kDone) break;
    }
    return status;
  }

  // The next one is tried while it is in the input, as by any stage.
  StepStatus gather_with_care(Step& step, std::uint64_t care) noexcept {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return StepStatus::kNoInput;
    if (!make_room(step, *record)) return StepStatus::kNoRoom;
    if (!is_to_blame(step, *record, care)) {
      hold(step, *record);
      step.store(state_.tried, step.load(state_.count));
    }
    return step.consume(*record);
  }

  // The list without it is written where no word refers to.
  void let_go(Step& step, std::uint64_t i) noexcept {
    const std::uint64_t count = step.load(state_.count);
    const std::uint64_t which = step.load(state_.which) & 1;
    const Place from = state_.lists[which];
    const Place to = state_.lists[1 - which];
    step.fill(to, {step.bytes(from.offset), 8 * i});
    step.fill({to.offset + 8 * i, to.bytes - 8 * i},
              {step.bytes(from.offset + 8 * (i + 1)), 8 * (count - 1 - i)});
    if (i < step.load(state_.tried)) step.store(state_.tried, step.load(state_.tried) - 1);
    step.store(state_.which, 1 - which);
    step.store(state_.count, count - 1);
  }

  void begin_anew(Step& step) noexcept {
    step.store(state_.count, 0);
    step.store(state_.used, 0);
    be_careful(step, kNone);
  }

  void be_careful(Step& step, Care care) noexcept {
    step.store(state_.care, care);
    step.store(state_.tried, 0);
  }

  // ---- what has killed

  // The first step of a process. False: there was nothing to do.
  bool succeed(Step& step) noexcept {
    if (step.load(state_.count) == 0) return false;
    if (step.condemned() != 0 && set_aside(step)) return true;
    if (step.load(state_.care) != kNone) return false;
    be_careful(step, kAfterDeath);
    return true;
  }

  // True: what is condemned was held, and is so no more.
  bool set_aside(Step& step) noexcept {
    const std::uint64_t count = step.load(state_.count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const Held one = held(step, i);
      if (one.key == step.condemned()) {
        step.set_aside(one.record, one.key);
        let_go(step, i);
        return true;
      }
      if (i != 0 || (one.key | kManyRecords) != step.condemned()) continue;
      context_.warn(fmt::format("batch_set_aside stage={} samples={} lineage={:016x}:{}",
                                context_.stage, count, one.record.tag[0], one.record.tag[1]));
      for (std::uint64_t j = 0; j < count; ++j) {
        const Held all = held(step, j);
        step.set_aside(all.record, all.key);
      }
      begin_anew(step);
      // As the supervisor's rule for records.
      const std::uint64_t in_a_row = step.load(state_.aside) + 1;
      if (in_a_row > context_.feed.restart().max_restarts()) {
        context_.fail(
            fmt::format("stage '{}' has set aside {} batches in a row and made none in between, so "
                        "its function is broken, not its data",
                        context_.stage, in_a_row));
      }
      step.store(state_.aside, in_a_row);
      return true;
    }
    return false;
  }

  // ---- calls

  void add_input(const Record& record) {
    inputs_.push_back({.sample = record.bytes,
                       .tag = {record.tag[0], record.tag[1]},
                       .seed = mix(mix(context_.key, record.tag[0]), record.tag[1])});
  }

  // Gives it to the function alone. True: it is left out, and counted.
  bool is_to_blame(Step& step, const Record& record, std::uint64_t care) noexcept {
    BatchWriter::Rows rows{0, 0};
    rows.add(record);
    inputs_.clear();
    add_input(record);
    const BatchFunction::Outcome outcome =
        function_->run(inputs_, mix(context_.key, rows.lineage), {});
    if (care != kAfterException || outcome.error.empty()) return false;
    errors_.count(step, outcome.error, outcome.traceback, record.tag);
    return true;
  }

  StepStatus try_held(Step& step, std::uint64_t care) noexcept {
    const std::uint64_t i = step.load(state_.tried);
    const Held one = held(step, i);
    step.works_on(one.key);
    if (is_to_blame(step, one.record, care)) {
      let_go(step, i);
    } else {
      step.store(state_.tried, i + 1);
    }
    return StepStatus::kDone;
  }

  StepStatus make_batch(Step& step, std::uint64_t count) noexcept {
    BatchWriter::Rows rows{0, 0};
    inputs_.clear();
    for (std::uint64_t i = 0; i < count; ++i) {
      const Held one = held(step, i);
      rows.add(one.record);
      add_input(one.record);
    }
    if (count < columns_.rows && batches_.drop(step, rows)) {
      begin_anew(step);
      return StepStatus::kDone;
    }
    const std::span<std::byte> slot = step.open_batch();
    if (slot.empty()) return StepStatus::kNoRoom;
    parts_.clear();
    for (const BatchColumn& column : columns_.all) {
      if (is_array(column.dtype)) {
        parts_.push_back({slot.subspan(column.at, count * column.row_bytes)});
      } else {
        parts_.push_back({slot.subspan(column.at, column.bytes_max),
                          slot.subspan(column.offsets_at, 8 * (count + 1))});
      }
    }
    const Held first = held(step, 0);
    step.works_on(count == 1 ? first.key : first.key | kManyRecords);
    const BatchFunction::Outcome outcome =
        function_->run(inputs_, mix(context_.key, rows.lineage), parts_);
    if (!outcome.error.empty()) return failed(step, outcome, count);
    if (columns_.lineage_at) {
      for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(slot.data() + *columns_.lineage_at + 16 * i, inputs_[i].tag, 16);
      }
    }
    ragged_.clear();
    for (const BatchColumn& column : columns_.all) {
      if (is_array(column.dtype)) continue;
      std::uint64_t used = 0;
      std::memcpy(&used, slot.data() + column.offsets_at + 8 * count, sizeof used);
      RF_CHECK(used <= column.bytes_max, used, column.bytes_max);
      ragged_.push_back(static_cast<std::uint32_t>(used));
      ragged_.push_back(static_cast<std::uint32_t>(count + 1));
    }
    batches_.publish(step, rows, ragged_);
    step.store(state_.aside, 0);
    begin_anew(step);
    return StepStatus::kDone;
  }

  StepStatus failed(Step& step, const BatchFunction::Outcome& outcome,
                    std::uint64_t count) noexcept {
    errors_.stop(outcome.error, outcome.traceback, inputs_[0].tag,
                 count == 1 ? "the sample" : "the batch whose first sample is that");
    if (count > 1 && step.load(state_.care) != kAfterException) {
      be_careful(step, kAfterException);
      return StepStatus::kDone;
    }
    for (const BatchFunction::Input& input : inputs_) {
      errors_.count(step, outcome.error, outcome.traceback, input.tag);
    }
    begin_anew(step);
    return StepStatus::kDone;
  }

  StageContext context_;
  BatchColumns columns_;
  State state_;
  BatchWriter batches_;
  InPort in_;
  ObjectErrors errors_;
  std::unique_ptr<BatchFunction> function_;
  bool begins_ = true;  // no step has been made by this process
  std::vector<BatchFunction::Input> inputs_;
  std::vector<BatchFunction::Column> parts_;
  std::vector<std::uint32_t> ragged_;
};

}  // namespace

void set_batch_opener(OpenBatchFunction open) { opener_of_batches() = std::move(open); }
const OpenBatchFunction& batch_opener() noexcept { return opener_of_batches(); }

StageType python_batcher_type() {
  StageType type;
  type.kind = "python_batcher";
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "batches"}};
  type.counters = batch_counters({
      {"skipped_missing_field", "Samples for which the object gave no array of a field."},
      {"skipped_wrong_type", "Samples for which an array was of another type."},
      {"skipped_wrong_shape", "Samples for which an array had another shape."},
      {"skipped_too_large", "Samples whose text or bytes the batch has no room for."},
  });
  ObjectErrors::declare(type.counters);
  type.problems = [](const StageView& stage) {
    const PythonBatcherConfig& own = stage.config.python_batcher();
    std::vector<Problem> problems =
        batch_column_problems(batch_fields(own.fields()), own.has_batch_size(), own.lineage());
    std::ranges::copy(object_problems(object_of_batcher(own)), std::back_inserter(problems));
    return problems;
  };
  type.batch = [](const StageView& stage, BatchSchema& schema) {
    describe_columns(columns_of(stage.config.python_batcher()), schema);
  };
  type.nodes = [](const StageView& stage) {
    const PythonBatcherConfig& own = stage.config.python_batcher();
    StateLayout layout;
    (void)PythonBatcher::State(layout, own.batch_size());
    NodeSpec node;
    node.if_slow =
        "One process runs it: what its function does to each sample can be done by several, in a "
        "stage `python` before it";
    node.process_per_lane = true;
    node.warm_parent = true;
    node.state_bytes = layout.bytes() + kMiB;
    node.state_bytes_max = kGrowsWithData;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.weight = 2;
    node.steps_per_commit = 1;
    node.entries_per_step = 96;
    node.program = "ringfeed-worker-python";
    if (batch_opener()) {
      node.create = [](const StageContext& context) {
        return std::make_unique<PythonBatcher>(context);
      };
    }
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "batches" python_batcher {
  input: "lines" object: "my_data:collate" batch_size: 4
  fields { name: "text" dtype: "text" } fields { name: "label" dtype: "int64" } } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
