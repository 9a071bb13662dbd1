// Taking a record apart into several: how far the lane is with the record at its input, so that its
// parts may go out over as many steps as the room behind them asks for, and each goes out once,
// whoever dies in between.
//
//   StepStatus Letters::step(Step& step) noexcept {
//     const std::optional<Record> record = step.peek(in_);
//     if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
//     std::uint64_t next = split_.done(step);
//     while (next < record->bytes.size() && step.put(out_, record->bytes.subspan(next, 1))) ++next;
//     return split_.advance(step, *record, next, record->bytes.size());
//   }
//   void Letters::forget(Step& step, const Record&) noexcept { split_.forget(step); }
//
// The parts must follow from the record alone: the next process finds a count, not the parts.
#pragma once

#include <cstdint>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class ResumedSplit {
 public:
  explicit ResumedSplit(StateLayout& layout) noexcept : done_(layout.word()) {}

  // Parts of the record at hand that are out already.
  [[nodiscard]] std::uint64_t done(const Step& step) const noexcept { return step.load(done_); }

  // This step came to part `next` of `count`; its status is what is returned. With the last part
  // the record is consumed; kNoRoom: not one part found room.
  [[nodiscard]] StepStatus advance(Step& step, const Record& record, std::uint64_t next,
                                   std::uint64_t count) const noexcept {
    if (next >= count) return finish(step, record);
    if (next == done(step)) return StepStatus::kNoRoom;
    step.store(done_, next);
    return StepStatus::kDone;
  }
  // Nothing more comes of the record, however many of its parts are out.
  [[nodiscard]] StepStatus finish(Step& step, const Record& record) const noexcept {
    forget(step);
    return step.consume(record);
  }
  // For Stage::forget(): the next record begins with its first part.
  void forget(Step& step) const noexcept {
    if (done(step) != 0) step.store(done_, 0);
  }

 private:
  Word done_;
};

}  // namespace ringfeed
