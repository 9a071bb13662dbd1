// What the sources of lane.h share: the clock, counters of one writer, words of the arena, and
// which rings an attempt has touched.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "workers/runtime/lane.h"

namespace ringfeed {

inline std::uint64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t by) noexcept {
  // relaxed, load and store: this lane is the only writer, readers want a number and no order.
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline Record record_of(const shm::RecordView& view, std::uint32_t port) noexcept {
  return {view.bytes, {view.header->tag[0], view.header->tag[1]}, view.header->user, InPort{port}};
}

inline shm::WordRef state_word(Word word) noexcept {
  return shm::word_ref(shm::kArenaSegment, shm::kStateOffset + word.offset);
}

template <typename Ring>
void LaneRuntime::touch(Ring& ring) noexcept {
  if (ring.attempt != attempt_) {
    ring.attempt = attempt_;
    ring.saved = ring.end.savepoint();
  }
  if (ring.touched) return;
  ring.touched = true;
  if constexpr (std::is_same_v<Ring, InputPort::Ring>) {
    touched_inputs_.push_back(&ring);
  } else {
    touched_outputs_.push_back(&ring);
  }
}

}  // namespace ringfeed
