// The stage sample_batcher.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_schema.h"
#include "workers/kit/batch_writer.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {
namespace {

// Rows of one step, at most, and bytes of their samples: what is not committed has its room in the
// queue before.
constexpr std::uint32_t kRowsPerStep = 128;
constexpr std::uint64_t kRowBytesPerStep = 128 * kKiB;
// The lengths that vary, at most (TensorSpec.shape); text takes two.
constexpr std::size_t kRaggedMax = 16;

// An array of a batch, and where it lies in the slot. Text and bytes are two.
struct Column {
  std::string name;
  SampleDtype dtype = SampleDtype::kBytes;
  std::vector<std::uint32_t> shape = {};
  std::uint64_t row_bytes = 0;  // of an array
  std::uint64_t bytes_max = 0;  // of text and bytes
  std::uint64_t at = 0;
  std::uint64_t offsets_at = 0;
};

// A batch as it is configured. What is wrong with it is said by batcher_problems().
struct Columns {
  explicit Columns(const SampleBatcherConfig& config) : rows(config.batch_size()) {
    SlotLayout layout;
    for (const BatchFieldConfig& field : config.fields()) {
      Column column{.name = field.name(),
                    .dtype = dtype_named(field.dtype()).value_or(SampleDtype::kBytes),
                    .shape = {field.shape().begin(), field.shape().end()}};
      if (is_array(column.dtype)) {
        column.row_bytes = array_bytes(column.dtype, column.shape).value_or(0);
        column.at = layout.place(rows * column.row_bytes);
      } else {
        column.bytes_max = field.bytes_max();
        column.at = layout.place(column.bytes_max);
        column.offsets_at = layout.place(8 * (rows + 1));
        ++texts;
      }
      all.push_back(std::move(column));
    }
    if (config.lineage()) lineage_at = layout.place(16 * rows);
    end = layout.end();
  }

  std::vector<Column> all;
  std::uint64_t rows;
  std::size_t texts = 0;
  std::optional<std::uint64_t> lineage_at = {};
  std::uint64_t end = 0;
};

std::string shape_text(std::span<const std::uint32_t> shape) {
  std::string text;
  for (const std::uint32_t size : shape)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  return "[" + text + "]";
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
      : columns_(context.config.sample_batcher()),
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
        used_(columns_.texts) {}

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
    for (const Column& column : columns_.all) {
      const std::optional<SampleField> field = sample->find(column.name);
      if (!field) {
        return skip(step, missing_field_, record, fmt::format("it has no field '{}'", column.name));
      }
      if (field->dtype != column.dtype) {
        return skip(step, wrong_type_, record,
                    fmt::format("field '{}' is {}, not {}", column.name, dtype_name(field->dtype),
                                dtype_name(column.dtype)));
      }
      if (is_array(column.dtype)) {
        if (!std::ranges::equal(field->shape, column.shape)) {
          return skip(step, wrong_shape_, record,
                      fmt::format("field '{}' has shape {}, not {}", column.name,
                                  shape_text(field->shape), shape_text(column.shape)));
        }
      } else {
        if (field->data.size() > column.bytes_max) {
          return skip(step, too_large_, record,
                      fmt::format("field '{}' has {} bytes, a batch has room for {}: raise "
                                  "bytes_max",
                                  column.name, field->data.size(), column.bytes_max));
        }
        fits &= used_[text++] + field->data.size() <= column.bytes_max;
      }
      fields_.push_back(*field);
    }
    if (!fits) return Row::kNextBatch;
    text = 0;
    for (std::size_t i = 0; i < columns_.all.size(); ++i) {
      const Column& column = columns_.all[i];
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

  Columns columns_;
  State state_;
  BatchWriter batches_;
  InPort in_;
  SkipReason missing_field_;
  SkipReason wrong_type_;
  SkipReason wrong_shape_;
  SkipReason too_large_;
  std::vector<std::uint64_t> used_;  // as a step has them
  std::vector<SampleField> fields_;  // of the row at hand, by column
  std::vector<std::uint32_t> ragged_;
};

std::vector<Problem> batcher_problems(const StageView& stage) {
  const SampleBatcherConfig& own = stage.config.sample_batcher();
  std::vector<Problem> problems;
  if (!own.has_batch_size()) {
    problems.push_back({"batch_size", "batch_size is not set; give the rows of a batch"});
  }
  if (own.fields_size() == 0) {
    problems.push_back({"fields",
                        "there are no fields; add fields { name: \"…\" dtype: \"…\" } for each "
                        "array of a batch"});
  }
  std::size_t texts = 0;
  for (int i = 0; i < own.fields_size(); ++i) {
    const BatchFieldConfig& field = own.fields(i);
    const std::string path = fmt::format("fields[{}]", i);
    const std::optional<SampleDtype> dtype = dtype_named(field.dtype());
    if (field.name().empty()) problems.push_back({path, "it has no name; add name: \"…\""});
    if (!dtype) {
      problems.push_back(
          {path + ".dtype", fmt::format("dtype is \"{}\"; give one as NumPy names it, such as "
                                        "float32 or int64, or text or bytes",
                                        field.dtype())});
      continue;
    }
    if (!is_array(*dtype)) ++texts;
    if (!is_array(*dtype) && field.shape_size() != 0) {
      problems.push_back({path + ".shape", "text and bytes have no shape; leave it out"});
    }
    const std::vector<std::uint32_t> shape(field.shape().begin(), field.shape().end());
    if (shape.size() > sample::kDimsMax || !array_bytes(*dtype, shape)) {
      problems.push_back({path + ".shape",
                          "no sample is as large; it has at most 8 dimensions and "
                          "4 GiB"});
    }
  }
  if (2 * texts > kRaggedMax) {
    problems.push_back(
        {"fields", fmt::format("{} of them are text or bytes; a batch has at most {} of these",
                               texts, kRaggedMax / 2)});
  }
  return problems;
}

void describe(const StageView& stage, BatchSchema& schema) {
  const Columns columns(stage.config.sample_batcher());
  constexpr std::int64_t kRows = -1;
  std::vector<RaggedArray> arrays;
  std::int64_t ragged = -2;
  for (const Column& column : columns.all) {
    if (is_array(column.dtype)) {
      std::vector<std::int64_t> shape = {kRows};
      shape.insert(shape.end(), column.shape.begin(), column.shape.end());
      arrays.push_back({column.name, std::string(dtype_name(column.dtype)), std::move(shape),
                        columns.rows * column.row_bytes, column.at});
      continue;
    }
    arrays.push_back({column.name, "uint8", {ragged--}, column.bytes_max, column.at});
    arrays.push_back(
        {column.name + "_offsets", "int64", {ragged--}, 8 * (columns.rows + 1), column.offsets_at});
  }
  if (columns.lineage_at) {
    arrays.push_back({"lineage", "uint64", {kRows, 2}, 16 * columns.rows, *columns.lineage_at});
  }
  describe_batch(arrays, columns.rows, columns.end, schema);
}

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
  type.batch = describe;
  type.nodes = [](const StageView& stage) {
    const SampleBatcherConfig& own = stage.config.sample_batcher();
    const Columns columns(own);
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
