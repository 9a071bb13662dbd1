// An arena is a lane's lasting memory: the journal, the runtime's words, then the stage's state.
//
// Arena segment, ABI 2 (mapped by the lane's own worker only); geometry[0] = journal entries per
// area, geometry[1] = version of the stage's own layout:
//   offset                   size         content
//        0                    256         SegmentHeader
//     4096                 16 * J         journal area 0
//      ...                 16 * J         journal area 1
//      ...                   4096         runtime words
//   state_offset(J)           ...         the stage's state; grows in reserved steps
//
// Runtime words, written by the lane's journal:
//   offset  meaning
//        0  draws made: counter of the lane's random numbers
//        8  1 + slot under construction (feed_producer.h)
//       16  1 once the lane has finished
//   64 + 8i  1 + position of input port i, see workers/runtime/ports.h; 0: at its beginning
//  320 + 8i  1 + position of output port i
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "ringfeed/shm/journal.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {

inline constexpr std::uint32_t kJournalEntries = 4096;
inline constexpr std::uint64_t kRuntimeWordsBytes = kPageBytes;

constexpr std::uint64_t journal_area_offset(std::uint32_t area) noexcept {
  return kPageBytes + area * std::uint64_t{kJournalEntries} * sizeof(JournalEntry);
}
inline constexpr std::uint64_t kRuntimeWordsOffset = journal_area_offset(2);
inline constexpr std::uint64_t kStateOffset = kRuntimeWordsOffset + kRuntimeWordsBytes;

constexpr std::uint64_t arena_bytes(std::uint64_t state_bytes) noexcept {
  return align_up(kStateOffset + state_bytes, kPageBytes);
}

// From here on NodeSpec::state_bytes_max says no more than that a state grows with its data.
inline constexpr std::uint64_t kOpenEndedBytes = std::uint64_t{1} << 40;

// The address space that an arena of `bytes` gets, in a process with `arenas` of them that may map
// `limit_bytes` (0: no limit). One that may grow to a known size gets all of that. One that grows
// with its data gets its share, and keeps the others, and all else that is mapped there, their
// room: of the 2^47 bytes that there are at most, or of a limit (ulimit -v).
constexpr std::uint64_t arena_room(std::uint64_t bytes, std::uint64_t bytes_max,
                                   std::uint64_t arenas, std::uint64_t limit_bytes) noexcept {
  const std::uint64_t most = std::max(bytes, bytes_max);
  if (most < kOpenEndedBytes) return most;
  const std::uint64_t whole = std::uint64_t{1} << 47;
  const std::uint64_t room = limit_bytes == 0 ? whole / 4 : std::min(whole / 4, limit_bytes / 8);
  return std::max(bytes, std::min(most, room / std::max<std::uint64_t>(arenas, 1)));
}

inline constexpr std::uint64_t kDrawsWord = 0;
inline constexpr std::uint64_t kOpenSlotWord = 8;
inline constexpr std::uint64_t kFinishedWord = 16;
inline constexpr std::uint64_t kInputWords = 64;
inline constexpr std::uint64_t kOutputWords = 320;
inline constexpr std::size_t kPortsMax = 32;

class Arena {
 public:
  Arena() = default;
  // Maps `bytes_max` of address space over the segment. Only the part that is reserved now may be
  // touched.
  static Result<Arena> map(int fd, std::uint64_t bytes_max, std::string name);

  [[nodiscard]] std::byte* base() const noexcept { return mapping_.data(); }
  [[nodiscard]] std::byte* state() const noexcept { return mapping_.data() + kStateOffset; }
  [[nodiscard]] std::uint64_t state_bytes() const noexcept { return reserved_ - kStateOffset; }
  [[nodiscard]] std::uint64_t state_bytes_max() const noexcept {
    return mapping_.bytes() - kStateOffset;
  }
  [[nodiscard]] WritableSegment segment() const noexcept { return {mapping_.data(), reserved_}; }
  [[nodiscard]] JournalEntry* journal_area(std::uint32_t area) const noexcept {
    return reinterpret_cast<JournalEntry*>(mapping_.data() + journal_area_offset(area));
  }

  // Afterwards at least `state_bytes` of state may be touched. On error (kNoMemory) nothing
  // changes. A death in the middle leaves reserved room that nothing refers to.
  Status grow(std::uint64_t state_bytes) noexcept;

 private:
  Mapping mapping_;
  std::uint64_t reserved_ = 0;
  int fd_ = -1;
  std::string name_;
};

}  // namespace ringfeed::shm
