// The record at hand: written down before a stage works on it, passed by once it is condemned.
#include <atomic>

#include "ringfeed/shm/failpoint.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/lane_words.h"

namespace ringfeed {

// The record that the stage is about to work on: for whoever asks what a worker died of.
void LaneRuntime::begin_record(std::uint64_t key) noexcept {
  // relaxed: read by the supervisor after this process's death, which orders everything.
  parts_.page->attempt_key.store(key, std::memory_order_relaxed);
  // The processor makes its stores visible in order or not at all, for a death; the compiler must
  // not move the work before it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// The condemned record is at the head of its port: keeps it for people, counts it and moves past
// it. False: a unit that it ends could not be ended for want of room.
bool LaneRuntime::pass_by(InputPort& port, const shm::RecordView& record) noexcept {
  Step step(*this);
  stage_->forget(step, record_of(record, shm::port_of(quarantine_)));
  touch(port.rings[port.current]);
  if (port.consume(*record.header) && !end_followers()) return false;
  keep_dead_letter(shm::port_of(quarantine_), quarantine_, record);
  return true;
}

// With the step at hand.
void LaneRuntime::keep_dead_letter(std::uint32_t port, std::uint64_t key,
                                   const shm::RecordView& record) noexcept {
  if (parts_.keep_dead_letter) parts_.keep_dead_letter({parts_.input_names[port], key, record});
  RF_FAILPOINT("runtime.lane.dead_letter");
  if (!dead_letters_) dead_letters_ = late_counter("dead_letters");
  Step(*this).count(*dead_letters_);
}

// A step that does nothing but that; false: no room.
bool LaneRuntime::set_aside() noexcept {
  InputPort& port = parts_.inputs[shm::port_of(quarantine_)];
  begin_attempt();
  condemned_met_ = false;
  const std::optional<shm::RecordView> record = port.peek();
  if (!record || shm::record_key(shm::port_of(quarantine_), port.current, record->header->seq) !=
                     quarantine_) {
    // The stage had gathered others before it: it is passed by in the middle of the stage's step.
    // (With KEEP_NEWEST it may have been given up meanwhile.)
    aside_in_step_ = true;
    return true;
  }
  if (pass_by(port, *record)) return true;
  roll_back();
  condemned_met_ = true;
  return false;
}

}  // namespace ringfeed
