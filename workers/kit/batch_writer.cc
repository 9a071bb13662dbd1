#include "workers/kit/batch_writer.h"

#include <iterator>

#include "proto/config.pb.h"

namespace ringfeed {

std::vector<CounterSpec> batch_counters(std::vector<CounterSpec> own) {
  std::vector<CounterSpec> counters = {
      {"rows", "Rows written to batches."},
      {"batches", "Batches published."},
      {"rows_dropped", "Rows of the last batch, left out because of drop_remainder."},
  };
  counters.insert(counters.end(), std::make_move_iterator(own.begin()),
                  std::make_move_iterator(own.end()));
  return counters;
}

BatchWriter::BatchWriter(const StageContext& context, const State& state, std::uint64_t batch_size,
                         std::uint64_t bytes)
    : state_(state),
      batch_size_(batch_size),
      bytes_(bytes),
      drop_remainder_(context.feed.drop_remainder()),
      rows_(context.counter("rows")),
      batches_(context.counter("batches")),
      rows_dropped_(context.counter("rows_dropped")) {}

BatchWriter::Rows BatchWriter::under_way(const Step& step) const noexcept {
  const std::uint64_t rows = step.load(state_.rows);
  // A full batch is published with its last row. More would be written beyond the slot.
  RF_CHECK(rows < batch_size_, rows, batch_size_);
  return {rows, step.load(state_.lineage)};
}

void BatchWriter::keep(Step& step, const Rows& rows) const noexcept {
  step.count(rows_, rows.written);
  step.store(state_.rows, rows.count);
  step.store(state_.lineage, rows.lineage);
}

void BatchWriter::publish(Step& step, const Rows& rows,
                          std::span<const std::uint32_t> ragged) const noexcept {
  step.count(rows_, rows.written);
  step.publish_batch(static_cast<std::uint32_t>(rows.count), bytes_, {rows.lineage, rows.count},
                     ragged);
  step.count(batches_);
  begin_anew(step);
}

bool BatchWriter::drop(Step& step, const Rows& rows) const noexcept {
  if (!drop_remainder_) return false;
  step.count(rows_, rows.written);
  step.count(rows_dropped_, rows.count);
  begin_anew(step);
  return true;
}

StepStatus BatchWriter::end(Step& step) const noexcept {
  const Rows rows = under_way(step);
  if (rows.count != 0 && !drop(step, rows)) publish(step, rows);
  return StepStatus::kEnd;
}

void BatchWriter::begin_anew(Step& step) const noexcept {
  step.store(state_.rows, 0);
  step.store(state_.lineage, 0);
}

}  // namespace ringfeed
