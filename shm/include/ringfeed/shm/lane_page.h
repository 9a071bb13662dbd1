// A lane's page in the control segment, the bells, and the feed's state: who is alive, how far each
// lane is, and which lanes sleep.
//
// Control segment, ABI 2: page 0 holds the SegmentHeader, from 0x400 on the FeedState, and from
// 0x800 on the lanes of each node (node_lanes.h). Then come one LanePage per lane, the bells, one
// line each, and the supervisor's account of the consumer groups (feed.h). geometry[0] = lanes,
// geometry[1] = offset of the bells / 4096.
//
// LanePage (4096 bytes; fields of different writers never share a 128-byte line):
//   offset  size  field           written by  meaning
//   0x000      8  commit          lane        number of the last committed step
//   0x008    2x4  entry_counts    lane        entries in journal area 0 and 1
//   0x100      4  waiting         lane        1 while the lane sleeps or is about to
//   0x180      4  pid             lane        of the live incarnation; 0 before the first
//   0x184      4  incarnation     lane        how often the lane was attached, from 1
//   0x188      8  start_ticks     lane        start time of that process (/proc/PID/stat field 22)
//   0x190      8  attempt_key     lane        record_key() of the record being worked on, 0: none
//   0x198      4  faulted         lane        the signal that this lane itself raised, 0: none
//   0x19c      4  state           lane        LaneState
//   0x1a0      8  progress_ns     lane        CLOCK_MONOTONIC at the last commit
//   0x1a8      8  woke_ns         lane        CLOCK_MONOTONIC when it last stopped sleeping
//   0x1b0      8  parked          lane        the park_ticket for which it stands still; 0: none
//   0x1b8      4  generation_seen lane        the generation that it stamps with (stamps.h)
//   0x200      4  desired         supervisor  LaneDesire
//   0x204      4  crash_count     supervisor  deaths of this lane's worker
//   0x208      8  quarantine_key  supervisor  a record to set aside instead of working on it
//   0x210      8  park_ticket     supervisor  number of the last order to park
//   0x218      4  groups_barred   supervisor  bit g: consumer group g is not to be respected,
//                                             whatever its page says
//   0x21c      4  generation      supervisor  of stamps, only grows
//   0x280      8  retire          lane        1 + newest batch whose slot or descriptor went on
//   0x290  16x16  answers         lane        per consumer group, see AdmissionAnswer
//   0x390   14x8  kept_slots      lane        own slots that wait for a member's end, see Kept
//   0x400   3072  counters        lane        counters.h
//
// Parking: the supervisor stores the ticket, then `desired` = PARK, and rings. When everything that
// the lane has begun is committed and carried out, it stores the ticket in `parked` (release). It
// then does not touch shared memory until the desire changes or its supervisor is gone; before it
// goes on it stores 0. A ticket is used once, so `parked` of a lane that died while it stood still
// names an old one.
#pragma once

#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/counters.h"

namespace ringfeed::shm {

inline constexpr std::uint32_t kGroupsMax = 16;
inline constexpr std::uint32_t kMembersMax = 16;

inline constexpr std::uint32_t kKeptMax = 14;

enum class LaneState : std::uint32_t {
  kNew = 0,
  kRunning = 1,
  kFinished = 2,  // end of stream: outputs are closed, the lane will never step again
};

enum class LaneDesire : std::uint32_t {
  kRun = 0,
  kDrain = 1,  // sources output nothing new; what is under way flows out
  kStop = 2,   // leave between two steps
  kPark = 3,   // stand still between two steps, until something else is desired
};

// Names an input record of a lane for as long as the feed lives; never 0.
constexpr std::uint64_t record_key(std::uint32_t port, std::uint32_t ring,
                                   std::uint64_t seq) noexcept {
  return std::uint64_t{1} << 63 | std::uint64_t{port & 0x3f} << 57 |
         std::uint64_t{ring & 0xff} << 48 | (seq & ((std::uint64_t{1} << 48) - 1));
}
constexpr std::uint32_t port_of(std::uint64_t record_key) noexcept {
  return static_cast<std::uint32_t>(record_key >> 57 & 0x3f);
}
constexpr std::uint32_t ring_of(std::uint64_t record_key) noexcept {
  return static_cast<std::uint32_t>(record_key >> 48 & 0xff);
}
constexpr std::uint64_t seq_of(std::uint64_t record_key) noexcept {
  return record_key & ((std::uint64_t{1} << 48) - 1);
}

// A lane's answer to the admission of one consumer group: from batch `from` on, the lane reuses
// nothing that this group, in this epoch, has not finished. `from` is stored first, then `epoch`
// (release). `skipped` counts the batches that the lane has taken from the group since (policy
// skip). It is stored separately, so a death in between loses a count.
struct AdmissionAnswer {
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> skipped;
  std::atomic<std::uint64_t> from;
};
static_assert(sizeof(AdmissionAnswer) == 16);

// A slot that a member of a group still holds after its descriptor had to go to another batch
// (feed_producer.h). It becomes free when the group has another epoch, or its page is unused. Word,
// from the lowest bit: slot + 1 (16 bits), group (8), epoch (40); 0: none.
struct Kept {
  std::uint32_t slot = 0;
  std::uint32_t group = 0;
  std::uint64_t epoch = 0;
};
inline constexpr std::uint64_t kKeptEpochMask = (std::uint64_t{1} << 40) - 1;
constexpr std::uint64_t encode_kept(const Kept& kept) noexcept {
  return kept.epoch << 24 | std::uint64_t{kept.group & 0xff} << 16 | ((kept.slot + 1) & 0xffff);
}
constexpr Kept decode_kept(std::uint64_t word) noexcept {
  return {.slot = static_cast<std::uint32_t>(word & 0xffff) - 1,
          .group = static_cast<std::uint32_t>(word >> 16 & 0xff),
          .epoch = word >> 24};
}

// Or'ed to the key of a record: several together, of which it is the first. No port has such a
// number.
inline constexpr std::uint64_t kManyRecords = std::uint64_t{0x3f} << 57;
constexpr bool names_many(std::uint64_t record_key) noexcept { return port_of(record_key) == 0x3f; }

struct LanePage {
  std::atomic<std::uint64_t> commit;
  std::atomic<std::uint32_t> entry_counts[2];
  std::uint8_t reserved0[0x100 - 0x10];
  std::atomic<std::uint32_t> waiting;
  std::uint8_t reserved1[0x180 - 0x104];
  std::atomic<std::uint32_t> pid;
  std::atomic<std::uint32_t> incarnation;
  std::atomic<std::uint64_t> start_ticks;
  std::atomic<std::uint64_t> attempt_key;
  std::atomic<std::uint32_t> faulted;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> progress_ns;
  std::atomic<std::uint64_t> woke_ns;
  std::atomic<std::uint64_t> parked;
  std::atomic<std::uint32_t> generation_seen;
  std::uint8_t reserved2[0x200 - 0x1bc];
  std::atomic<std::uint32_t> desired;
  std::atomic<std::uint32_t> crash_count;
  std::atomic<std::uint64_t> quarantine_key;
  std::atomic<std::uint64_t> park_ticket;
  std::atomic<std::uint32_t> groups_barred;
  std::atomic<std::uint32_t> generation;
  std::uint8_t reserved3[0x280 - 0x220];
  std::atomic<std::uint64_t> retire;
  std::uint64_t reserved4;
  AdmissionAnswer answers[kGroupsMax];
  std::atomic<std::uint64_t> kept_slots[kKeptMax];
  LaneCounters counters;
};
static_assert(sizeof(LanePage) == kPageBytes);
static_assert(offsetof(LanePage, waiting) == 0x100 && offsetof(LanePage, pid) == 0x180);
static_assert(offsetof(LanePage, progress_ns) == 0x1a0 && offsetof(LanePage, desired) == 0x200);
static_assert(offsetof(LanePage, generation_seen) == 0x1b8);
static_assert(offsetof(LanePage, generation) == 0x21c);
static_assert(offsetof(LanePage, retire) == 0x280 && offsetof(LanePage, answers) == 0x290);
static_assert(offsetof(LanePage, kept_slots) == 0x390 && offsetof(LanePage, counters) == 0x400);

// Bells have their own pages, so that a worker can ring its neighbours without write access to
// their lane pages. Anyone may ring; a bell is only ever incremented.
struct alignas(kLineBytes) Bell {
  std::atomic<std::uint32_t> rings;
  std::uint8_t reserved[kLineBytes - 4];
};
static_assert(sizeof(Bell) == kLineBytes);

enum class FeedPhase : std::uint32_t {
  kStarting = 0,
  kRunning = 1,
  kDraining = 2,
  kEnded = 3,    // every producing lane has closed; what is published stays readable
  kFailed = 4,   // `reason` says why; no more batches will come
  kStopped = 5,  // ended before its lanes did; `reason` says why, no more batches will come
};

// The most outputs of batches that a feed may have.
inline constexpr std::uint32_t kOutputsMax = 8;

// Written by the supervisor: the reason first, then the phase (release).
struct FeedState {
  std::atomic<std::uint32_t> phase;
  std::uint32_t reason_bytes;
  std::atomic<std::uint32_t> supervisor_pid;
  // For each output, a consumer group that is put back to an earlier batch: (1 + its new page) << 8
  // | 1 + its old page; 0: none. It is here because the group's trainers may write the pages.
  std::atomic<std::uint32_t> replacing[kOutputsMax];
  char reason[1024 - 12 - 4 * kOutputsMax];
};
static_assert(sizeof(FeedState) == 1024);
inline constexpr std::size_t kFeedStateOffset = 0x400;

inline constexpr std::uint64_t lane_page_offset(std::uint64_t lane_index) noexcept {
  return kPageBytes * (1 + lane_index);
}
inline constexpr std::uint64_t bells_offset(std::uint64_t lane_count) noexcept {
  return kPageBytes * (1 + lane_count);
}
inline constexpr std::uint64_t control_bytes(std::uint64_t lane_count) noexcept {
  return bells_offset(lane_count) + align_up(lane_count * sizeof(Bell), kPageBytes);
}

}  // namespace ringfeed::shm
