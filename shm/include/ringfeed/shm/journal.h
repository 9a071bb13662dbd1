// One step, one store: the lane first lists the words that it changes; then one store of `commit +
// 1` makes all changes happen.
//
// Two areas of entries take turns by the parity of commit (step s uses area s & 1):
//   1. the step's entries are written to area (s + 1) & 1, and their number to
//      entry_counts[(s + 1) & 1]
//   2. commit.store(s + 1, release)                             <- the step happens here
//   3. each entry is stored to its word
//   4. neighbours that sleep are woken
// A lane that died between 1 and 2 has done nothing. If it died after 2, its next incarnation
// stores the whole list again before its first step. An entry is the absolute value of a word that
// only this lane writes, so storing it twice is the same as once. No entry copies: a copy made
// after the commit would read a source that a neighbour may already have overwritten.
//
// Journal area in the lane's arena, ABI 1: entries {where u64, value u64}; where = segment << 56 |
// offset, the segment numbered as in the lane's own table (LaneSegment).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/stamps.h"

namespace ringfeed::shm {

struct JournalEntry {
  std::uint64_t where;
  std::uint64_t value;
};
static_assert(sizeof(JournalEntry) == 16);

// A lane's own numbering of the segments that it may write; the same in every incarnation.
enum LaneSegment : std::uint8_t {
  kArenaSegment = 0,
  kHeadsSegment = 1,
  kLanePageSegment = 2,
  kFeedControlSegment = 3,
  kFirstRingSegment = 4,  // output ring i is segment 4 + i
};
inline constexpr std::size_t kOutputRingsMax = 256 - kFirstRingSegment;

// A word that a lane may change in its steps.
struct WordRef {
  std::uint64_t where = 0;
  friend constexpr bool operator==(WordRef, WordRef) = default;
};
constexpr WordRef word_ref(std::uint8_t segment, std::uint64_t offset) noexcept {
  return {std::uint64_t{segment} << 56 | offset};
}
constexpr std::uint8_t segment_of(WordRef ref) noexcept {
  return static_cast<std::uint8_t>(ref.where >> 56);
}
constexpr std::uint64_t offset_of(WordRef ref) noexcept {
  return ref.where & ((std::uint64_t{1} << 56) - 1);
}

// Writable memory of one segment of the lane's table; `data` is null for an unused number.
struct WritableSegment {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

class Journal {
 public:
  // `segments` is indexed by LaneSegment and must outlive the journal; each area holds `capacity`
  // entries. Words of the arena are stamped before they are stored.
  Journal(LanePage& page, JournalEntry* area0, JournalEntry* area1, std::uint32_t capacity,
          std::span<const WritableSegment> segments, Stamps* stamps = nullptr);

  // Stores the list of the last committed step again, unconditionally. A new incarnation calls it
  // once, before its first step. After a death in this function the next call does it all again.
  void recover() noexcept;

  // The value that the step would leave in the word: the step's own store if there is one, else
  // what is there.
  [[nodiscard]] std::uint64_t load(WordRef ref) const noexcept;
  // The word gets this value when the step is committed. The journal must have room
  // (entries_free()).
  void store(WordRef ref, std::uint64_t value) noexcept;
  // Like store(), but does not search for an earlier entry of the word (bench/ring_bench). Only for
  // a word that the step stores once and does not load: the cursors of rings, which come last.
  void append(WordRef ref, std::uint64_t value) noexcept;

  // A point in the step to return to, any number of times; stores after it are forgotten. Only the
  // newest savepoint of a step can be returned to (RF_CHECK).
  struct Savepoint {
    std::uint32_t entries;
    std::uint32_t undo;
  };
  [[nodiscard]] Savepoint savepoint() noexcept;
  void rollback(Savepoint to) noexcept;

  [[nodiscard]] std::uint32_t entries() const noexcept { return count_; }
  [[nodiscard]] std::uint32_t entries_free() const noexcept { return capacity_ - count_; }
  [[nodiscard]] std::uint64_t committed() const noexcept { return commit_; }

  // Makes the step happen and stores its words. Afterwards a new step has begun, with no entries.
  void commit() noexcept;
  // Forgets everything since the last commit.
  void abandon() noexcept;

 private:
  std::atomic<std::uint64_t>& word(WordRef ref) const noexcept;
  void carry_out(const JournalEntry* entries, std::uint32_t count) noexcept;
  std::uint32_t* find(WordRef ref) const noexcept;
  void forget_places() noexcept;

  struct Undo {
    std::uint32_t entry;
    std::uint64_t value;
  };

  LanePage& page_;
  JournalEntry* areas_[2];
  std::uint32_t capacity_;
  std::span<const WritableSegment> segments_;
  Stamps* stamps_;
  std::uint64_t commit_ = 0;
  JournalEntry* next_;       // the area that the current step writes
  std::uint32_t count_ = 0;  // entries in it
  std::uint32_t fresh_ = 0;  // entries from here on are newer than the last savepoint
  std::vector<Undo> undo_;   // values that entries had before they were changed after a savepoint
  // The entry of each word, by open addressing. A place is in use if its generation is that of the
  // current step.
  struct Place {
    std::uint32_t generation;
    std::uint32_t entry;
  };
  mutable std::vector<Place> places_;
  std::uint32_t generation_ = 1;
  std::uint32_t shift_;
};

}  // namespace ringfeed::shm
