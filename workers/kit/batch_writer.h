// Gathering rows into a batch of the feed over many steps: what stages have in common that write
// each row straight into a slot as it comes.
//
//   arena     rows written of the batch under way (8 bytes), its lineage (8)
//   counters  rows, batches, rows_dropped (batch_counters())
//
//   StepStatus Numbers::step(Step& step) noexcept {
//     if (!step.peek(in_)) return step.ended(in_) ? batches_.end(step) : StepStatus::kNoInput;
//     const std::span<std::byte> slot = step.open_batch();
//     if (slot.empty()) return StepStatus::kNoRoom;
//     BatchWriter::Rows rows = batches_.under_way(step);
//     StepStatus status = StepStatus::kDone;
//     while (rows.count < batch_size_ && status == StepStatus::kDone) {
//       const std::optional<Record> record = step.peek(in_);
//       if (!record) break;
//       write_row(slot, rows.count, *record);
//       rows.add(*record);
//       status = step.consume(*record);
//     }
//     rows.count == batch_size_ ? batches_.publish(step, rows) : batches_.keep(step, rows);
//     return status;
//   }
//
// Rows are committed as they are written, with the input consumed: the ring before the stage need
// not hold a whole batch, and a death costs the rows of one step. A row is written at its place
// again after that, so it must follow from its record alone.
//
// A stage that makes a whole batch of one record (bitext_collator) has nothing to gather.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/random.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

// The counters that BatchWriter asks for, and behind them those of the stage itself.
[[nodiscard]] std::vector<CounterSpec> batch_counters(std::vector<CounterSpec> own);

class BatchWriter {
 public:
  struct State {
    explicit State(StateLayout& layout) : rows(layout.word()), lineage(layout.word()) {}
    Word rows;
    Word lineage;
  };
  // The batch under way, as a step has it in registers.
  struct Rows {
    std::uint64_t count;        // in the batch
    std::uint64_t lineage;      // of them
    std::uint64_t written = 0;  // in this step

    // Row number `count` has been written from this record.
    void add(const Record& record) noexcept {
      ++count;
      ++written;
      lineage = mix(lineage, mix(record.tag[0], record.tag[1]));
    }
  };

  // `batch_size`: rows of a full batch. `bytes`: what a published batch says that it has.
  BatchWriter(const StageContext& context, const State& state, std::uint64_t batch_size,
              std::uint64_t bytes);

  [[nodiscard]] Rows under_way(const Step& step) const noexcept;
  // The batch is not complete: the next step goes on with it.
  void keep(Step& step, const Rows& rows) const noexcept;
  // The batch is complete. The step has opened it. `ragged`: the lengths that vary.
  void publish(Step& step, const Rows& rows,
               std::span<const std::uint32_t> ragged = {}) const noexcept;
  // Fewer rows than a batch should have, and no more will come. True: they are left out
  // (drop_remainder). False: publish them.
  [[nodiscard]] bool drop(Step& step, const Rows& rows) const noexcept;
  // The input has ended: so does the lane, with what is under way published or left out.
  [[nodiscard]] StepStatus end(Step& step) const noexcept;

 private:
  void begin_anew(Step& step) const noexcept;

  State state_;
  std::uint64_t batch_size_;
  std::uint64_t bytes_;
  bool drop_remainder_;
  Counter rows_;
  Counter batches_;
  Counter rows_dropped_;
};

}  // namespace ringfeed
