// A lane's counters: plain numbers that survive the lane. The supervisor reads them while they are
// written.
//
// LaneCounters (3072 bytes at 0x400 of the lane page; written by the lane only):
//   offset  size   field         meaning
//        0     8   steps         committed steps
//        8     8   busy_ns       time in steps
//       16     8   starved_ns    asleep for want of input
//       24     8   blocked_ns    asleep for want of room
//       32     8   sleeps        how often it slept for want of what others of the feed do
//       40     8   wakes         bells it rang
//      128  48x48  named         name (40 bytes, NUL-terminated, written at attach) and value
//     2432   640   note          version (4), bytes (4), done (8), total (8) and text: what the lane
//                                wants a person to know, and how far it is
//
// Times and sleep counts are plain stores after the step, so they may lack the last step of a lane
// that died. The step's journal changes the named counters, so they count exactly what happened.
#pragma once

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {

inline constexpr std::size_t kNamedCounters = 48;

struct NamedCounter {
  char name[40];
  std::atomic<std::uint64_t> value;
};
static_assert(sizeof(NamedCounter) == 48);

struct LaneNote {
  std::atomic<std::uint32_t> version;  // odd while the text is being written
  std::uint32_t bytes;
  std::uint64_t done;   // of what the text speaks of: 812 of 100000 chunks
  std::uint64_t total;  // 0: it has no end that is known
  char text[616];
};
static_assert(sizeof(LaneNote) == 640);

struct LaneCounters {
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> busy_ns;
  std::atomic<std::uint64_t> starved_ns;
  std::atomic<std::uint64_t> blocked_ns;
  std::atomic<std::uint64_t> sleeps;
  std::atomic<std::uint64_t> wakes;
  std::uint8_t reserved0[128 - 48];
  NamedCounter named[kNamedCounters];
  LaneNote note;
};
static_assert(offsetof(LaneCounters, named) == 128 && offsetof(LaneCounters, note) == 2432);
static_assert(sizeof(LaneCounters) == 3072);

}  // namespace ringfeed::shm
