// A ring's shared words and its record header. See ring.h for what a ring is.
//
// Ring segment, ABI 2 (mapped writable by the producing lane's worker only); geometry[0] = most
// records:
//   offset      size  field   written by  meaning
//        0       256  header  supervisor
//     2048       128  tail    producer    TailLine
//     4096  capacity  data    producer    byte b of the stream lives at data[b mod capacity]
//
// Heads segment of a lane (mapped writable by that lane's worker only): input ring i has its
// HeadLine at 4096 + 128 * i; stamps follow (stamps.h).
//
// At every instant, whoever has died: head <= tail <= head + capacity; [head, tail) is whole
// records.
#pragma once

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {

struct alignas(kLineBytes) TailLine {
  std::atomic<std::uint64_t> tail;      // bytes published so far; only grows
  std::atomic<std::uint64_t> tail_seq;  // records published so far
  std::atomic<std::uint64_t> closed;    // 1: nothing comes after tail
  std::atomic<std::uint64_t>
      dropped;  // records that found no room (DROP_NEW, or KEEP_NEWEST behind a busy consumer)
  std::atomic<std::uint64_t>
      discard;  // KEEP_NEWEST: bytes before this are given up, unless the consumer holds them
  std::atomic<std::uint64_t> discard_seq;  // records before `discard`, which a view must not count
  std::uint8_t reserved[kLineBytes - 48];
};
static_assert(sizeof(TailLine) == kLineBytes);

struct alignas(kLineBytes) HeadLine {
  std::atomic<std::uint64_t> head;      // bytes consumed so far; only grows
  std::atomic<std::uint64_t> head_seq;  // records consumed or skipped so far
  std::atomic<std::uint64_t> skipped;   // KEEP_NEWEST: records given up before they were consumed
  std::atomic<std::uint64_t>
      hold;  // KEEP_NEWEST: the current step reads from here on; else kHoldNothing
  std::uint8_t reserved[kLineBytes - 32];
};
static_assert(sizeof(HeadLine) == kLineBytes);
inline constexpr std::uint64_t kHoldNothing = ~std::uint64_t{0};

enum class RecordType : std::uint32_t {
  kData = 1,
  kPad = 2,      // fills the ring up to its end; not a record of the stream, no sequence number
  kUnitEnd = 3,  // carries only the end of a unit that had no record after the last commit
};
inline constexpr std::uint32_t kFlagUnitEnd = 1;  // the last record of its unit (dispatch, stage.h)

struct RecordHeader {
  std::uint32_t type;
  std::uint32_t flags;
  std::uint64_t bytes;   // of the payload, without padding
  std::uint64_t seq;     // 0, 1, 2 ... on this ring
  std::uint64_t tag[2];  // lineage
  std::uint64_t t_ns;
  std::uint32_t crc32c;
  std::uint32_t reserved;
  std::uint64_t user;
};
static_assert(sizeof(RecordHeader) == 64 && sizeof(RecordHeader) == kRecordAlign);

inline constexpr std::size_t kTailLineOffset = 2048;
inline constexpr std::size_t kRingDataOffset = kPageBytes;
inline constexpr std::size_t kHeadLinesOffset = kPageBytes;

}  // namespace ringfeed::shm
