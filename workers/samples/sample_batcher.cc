// The stage sample_batcher.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_columns.h"
#include "workers/kit/batch_writer.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/batch_fit.h"
#include "workers/samples/sample_facts.h"

namespace ringfeed {
namespace {

// Rows of one step, at most, and bytes of their samples: what is not committed has its room in the
// queue before.
constexpr std::uint32_t kRowsPerStep = 128;
constexpr std::uint64_t kRowBytesPerStep = 128 * kKiB;

std::vector<BatchField> fields_of(const StageView& stage) {
  return with_facts(batch_fields(stage.config.sample_batcher().fields()),
                    stage.links.input("input"));
}

BatchColumns columns_of(const StageView& stage) {
  const SampleBatcherConfig& own = stage.config.sample_batcher();
  return {fields_of(stage), own.batch_size(), own.lineage()};
}

std::vector<Problem> batcher_problems(const StageView& stage) {
  const SampleBatcherConfig& own = stage.config.sample_batcher();
  const std::vector<BatchField> fields = fields_of(stage);
  std::vector<Problem> problems =
      batch_column_problems(fields, own.has_batch_size(), own.lineage());
  const std::vector<Problem> of_types = type_problems(fields, stage.links.input("input"));
  problems.insert(problems.end(), of_types.begin(), of_types.end());
  return problems;
}

//   input    samples
//   output   batches
//   arena    the batch under way: rows, and the bytes of each text
class SampleBatcher final : public Stage {
 public:
  struct State {
    State(StateLayout& layout, std::size_t texts) : batch(layout), used(layout.words(texts)) {}
    BatchWriter::State batch;
    Words used;  // bytes of each column of text or bytes
  };

  explicit SampleBatcher(const StageContext& context)
      : columns_(columns_of(context.view())),
        state_([this] {
          StateLayout layout;
          return State(layout, columns_.texts);
        }()),
        batches_(context, state_.batch, columns_.rows, columns_.end),
        in_(context.input("input")),
        missing_field_(context, "skipped_missing_field"),
        wrong_type_(context, "skipped_wrong_type"),
        wrong_shape_(context, "skipped_wrong_shape"),
        too_large_(context, "skipped_too_large"),
        used_(columns_.texts),
        converted_(columns_.all.size()) {}

  StepStatus step(Step& step) noexcept override {
    BatchWriter::Rows rows = batches_.under_way(step);
    if (!step.peek(in_)) {
      if (!step.ended(in_)) return StepStatus::kNoInput;
      if (rows.count != 0 && !batches_.drop(step, rows)) {
        if (step.open_batch().empty()) return StepStatus::kNoRoom;
        load_used(step);
        publish(step, rows);
      }
      return StepStatus::kEnd;
    }
    const std::span<std::byte> slot = step.open_batch();
    if (slot.empty()) return StepStatus::kNoRoom;
    load_used(step);
    StepStatus status = StepStatus::kDone;
    bool full = false;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0;
         i < kRowsPerStep && bytes < kRowBytesPerStep && !full && status == StepStatus::kDone;
         ++i) {
      const std::optional<Record> record = step.peek(in_);
      if (!record) break;
      bytes += record->bytes.size();
      switch (write_row(step, slot, rows.count, *record)) {
        case Row::kWritten:
          rows.add(*record);
          break;
        case Row::kSkipped:
          break;
        case Row::kNextBatch:
          publish(step, rows);
          return StepStatus::kDone;
      }
      status = step.consume(*record);
      full = rows.count == columns_.rows;
    }
    if (full) {
      publish(step, rows);
    } else {
      keep(step, rows);
    }
    return status;
  }

 private:
  enum class Row { kWritten, kSkipped, kNextBatch };

  void load_used(const Step& step) noexcept {
    for (std::size_t t = 0; t < used_.size(); ++t) used_[t] = step.load(state_.used[t]);
  }
  void keep(Step& step, const BatchWriter::Rows& rows) noexcept {
    for (std::size_t t = 0; t < used_.size(); ++t) step.store(state_.used[t], used_[t]);
    batches_.keep(step, rows);
  }
  void publish(Step& step, const BatchWriter::Rows& rows) noexcept {
    std::vector<std::uint32_t>& ragged = ragged_;
    ragged.clear();
    for (std::size_t t = 0; t < used_.size(); ++t) {
      ragged.push_back(static_cast<std::uint32_t>(used_[t]));
      ragged.push_back(static_cast<std::uint32_t>(rows.count + 1));
      step.store(state_.used[t], 0);
    }
    batches_.publish(step, rows, ragged);
  }

  SkipReason& reason_of(Misfit misfit) noexcept {
    switch (misfit) {
      case Misfit::kMissingField:
        return missing_field_;
      case Misfit::kWrongShape:
        return wrong_shape_;
      case Misfit::kTooLarge:
        return too_large_;
      default:
        return wrong_type_;
    }
  }

  Row skip(Step& step, SkipReason& reason, const Record& record, const std::string& text) noexcept {
    reason.skip(step, fmt::format("sample:{:016x}", record.tag[0]), record.tag[1], text);
    return Row::kSkipped;
  }

  // Whole or not at all: what is wrong is found before a byte is written.
  Row write_row(Step& step, std::span<std::byte> slot, std::uint64_t row,
                const Record& record) noexcept {
    const std::optional<SampleView> sample = SampleView::open(record.bytes);
    if (!sample) return skip(step, wrong_type_, record, "the record is no sample");
    fields_.clear();
    std::size_t text = 0;
    bool fits = true;
    for (const BatchColumn& column : columns_.all) {
      const std::optional<SampleField> found = sample->find(column.name);
      SampleField& field = fields_.emplace_back();
      const Misfit misfit = fit(found, column, converted_[fields_.size() - 1], field);
      if (misfit != Misfit::kNone) {
        return skip(step, reason_of(misfit), record, misfit_text(misfit, found, column));
      }
      if (!is_array(column.dtype)) fits &= used_[text++] + field.data.size() <= column.bytes_max;
    }
    if (!fits) return Row::kNextBatch;
    text = 0;
    for (std::size_t i = 0; i < columns_.all.size(); ++i) {
      const BatchColumn& column = columns_.all[i];
      const std::span<const std::byte> data = fields_[i].data;
      if (is_array(column.dtype)) {
        copy(slot.data() + column.at + row * column.row_bytes, data);
        continue;
      }
      std::uint64_t& used = used_[text++];
      copy(slot.data() + column.at + used, data);
      auto* const offsets = reinterpret_cast<std::uint64_t*>(slot.data() + column.offsets_at);
      if (row == 0) offsets[0] = 0;
      used += data.size();
      offsets[row + 1] = used;
    }
    if (columns_.lineage_at) {
      std::memcpy(slot.data() + *columns_.lineage_at + 16 * row, record.tag, 16);
    }
    return Row::kWritten;
  }
  static void copy(std::byte* to, std::span<const std::byte> from) noexcept {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }

  BatchColumns columns_;
  State state_;
  BatchWriter batches_;
  InPort in_;
  SkipReason missing_field_;
  SkipReason wrong_type_;
  SkipReason wrong_shape_;
  SkipReason too_large_;
  std::vector<std::uint64_t> used_;  // as a step has them
  // Of the row at hand, by column.
  std::vector<SampleField> fields_;
  std::vector<std::vector<std::byte>> converted_;
  std::vector<std::uint32_t> ragged_;
};

}  // namespace

StageType sample_batcher_type() {
  StageType type;
  type.kind = "sample_batcher";
  type.inputs = {{"input", "samples"}};
  type.outputs = {{"output", "batches"}};
  type.counters = batch_counters({
      {"skipped_missing_field", "Samples that lack a field of the batch."},
      {"skipped_wrong_type", "Samples with a field of another type."},
      {"skipped_wrong_shape", "Samples with a field of another shape."},
      {"skipped_too_large", "Samples with text or bytes that no batch has room for."},
  });
  type.problems = batcher_problems;
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    if (!batcher_problems(stage).empty()) return;
    inputs["input"].set(kBatchWish, {stage.config.name(), columns_of(stage).all});
  };
  type.batch = [](const StageView& stage, BatchSchema& schema) {
    describe_columns(columns_of(stage), schema);
  };
  type.nodes = [](const StageView& stage) {
    const SampleBatcherConfig& own = stage.config.sample_batcher();
    const BatchColumns columns = columns_of(stage);
    NodeSpec node;
    StateLayout layout;
    (void)SampleBatcher::State(layout, columns.texts);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "batches", 0, UnitRule::kExplicit)};
    node.weight = 0.3;
    node.steps_per_commit = 2;
    node.entries_per_step = 96;
    node.create = [](const StageContext& context) {
      return std::make_unique<SampleBatcher>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "shuffled" sample_shuffler { input: "lines" size: 20 } }
stages { name: "batches" sample_batcher {
  input: "shuffled" batch_size: 4
  fields { name: "text" dtype: "text" } fields { name: "label" dtype: "int64" } } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
