// Sleeping and waking: one bell per lane, rung only when somebody sleeps, and never lost.
//
//   sleeper                                   waker
//     1. reads the bells' values                1. cursor.store(release), in the step's carry-out
//     2. waiting.store(1, seq_cst)              2. later, for one step or many: the same value once
//     3. looks at the cursors again (seq_cst)      more, cursor.store(seq_cst)
//     4. futex wait on the values of 1.         3. waiting.load(seq_cst): rings if it is 1
//
// In the one total order either the sleeper sees the cursor or the waker sees `waiting`. Between 1
// and 2 the waker owes a wake-up, and it never sleeps on that debt: so a step that wakes nobody
// needs no full barrier, which at 64 B was a third of its time (bench/ring_bench). A ring
// between the last look and the kernel's compare changes the value, and the wait fails. Every wait
// ends after kSleepMsMax at the latest, in case a waker dies between its store and its ring.
// Modelled in tests/model/wakeup.pml.
#pragma once

#include <time.h>

#include <cstdint>
#include <span>

#include "ringfeed/shm/lane_page.h"

namespace ringfeed::shm {

inline constexpr int kSleepMsMax = 50;

// A futex word and the value it had when the sleeper began to look.
struct BellWord {
  const std::atomic<std::uint32_t>* word;
  std::uint32_t seen;
};

// Waits until one of the words has changed or is rung, or the time is over. Read-only mappings
// suffice.
void futex_wait_any(std::span<const BellWord> words, int timeout_ms) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

inline void ring(std::atomic<std::uint32_t>& bell) noexcept {
  // release, pairs with the acquire of the bell's value before a sleeper looks. Some bells are rung
  // without asking who sleeps (feed, groups, wishes). A sleeper that has read the new value, which
  // will not wake it, then sees the reason for the ring.
  bell.fetch_add(1, std::memory_order_release);
  futex_wake_all(bell);
}

// A lane on the other side of a ring, as this lane sees it: its page read-only, its bell to ring.
// RingProducer::wake() and RingConsumer::wake() are what a lane calls.
struct Neighbour {
  const LanePage* page = nullptr;
  Bell* bell = nullptr;

  // A hint: was it asleep a moment ago? A lane may put off a wake-up because of it, but never drop
  // one.
  [[nodiscard]] bool seems_asleep() const noexcept {
    // relaxed: orders nothing.
    return page->waiting.load(std::memory_order_relaxed) != 0;
  }
  // Rings if the neighbour sleeps; true if it did. The caller must have stored, seq_cst, whatever
  // the neighbour is to see.
  bool wake() const noexcept {
    // seq_cst, pairs with the sleeper's seq_cst store of waiting (above).
    if (page->waiting.load(std::memory_order_seq_cst) == 0) return false;
    ring(bell->rings);
    return true;
  }
};

// Puts this lane to sleep unless `ready` says that there is something to do. `settle` runs between
// the announcement and the last look: there the lane rings every neighbour that it still owes a
// wake-up, so that two lanes never wait for each other. This function sets words[0] to the lane's
// own bell and fills in `seen`; the other words are further bells (consumer groups).
template <typename Ready, typename Settle>
void sleep(LanePage& page, const Bell& own, std::span<BellWord> words, int timeout_ms,
           Ready&& ready, Settle&& settle) noexcept {
  words[0].word = &own.rings;
  // acquire: the values must be older than the last look below, which sees the reasons for the
  // rings.
  for (BellWord& bell : words) bell.seen = bell.word->load(std::memory_order_acquire);
  // seq_cst, pairs with Neighbour::wake.
  page.waiting.store(1, std::memory_order_seq_cst);
  settle();
  if (!ready()) futex_wait_any(words, timeout_ms < kSleepMsMax ? timeout_ms : kSleepMsMax);
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  // relaxed: the supervisor uses it to tell a sleeping lane from one that hangs.
  page.woke_ns.store(static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                         static_cast<std::uint64_t>(now.tv_nsec),
                     std::memory_order_relaxed);
  // relaxed: a neighbour that still sees 1 rings once too often.
  page.waiting.store(0, std::memory_order_relaxed);
}

}  // namespace ringfeed::shm
