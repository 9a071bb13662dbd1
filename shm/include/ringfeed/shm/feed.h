// The final feed: batches in slots, one descriptor per batch, one claim word per batch and consumer
// group.
//
// Producing lane (s - 1) mod L writes batch s (from 1). Its descriptor is at index s mod D, where D
// is a multiple of L, so that an index has one writer. The descriptor names the slot, so slots may
// return in any order. A batch is published iff descriptor.seq == s.
//
// Feed control segment, ABI 2 (read-only for trainers):
//   offset     size  field        written by       meaning
//        0      256  header       supervisor       geometry: lanes, slots, descriptors, slot bytes
//                                                  (low, high), ordered (1) or relaxed (0)
//     2048      128  bell         producing lanes  rung after every publishing step; trainers sleep
//                                                  on it
//     4096  128 * L  lanes        its lane         newest batch published, closed
//      ...  128 * D  descriptors  its lane         Descriptor
//
// Payload segment: slot i is at 4096 + i * slot_bytes; the lane that owns it (i mod L) writes it.
// Page 0 has the header and, from byte 2048 on, a word for each slot: the last batch in it that its
// lane has given up, stored before the slot is written again. So the bytes of batch s are whole as
// long as the word of its slot is less than s, even if it is no longer known what groups have
// finished; and a copy of them is whole if that is so after it was made (observers).
//
// Group page, ABI 2 (4096 bytes of a group segment; the header stands on the page before it):
//   offset   size  field      written by
//    0x000    128  head       supervisor; state also a producing lane (ACTIVE -> DRAINING)
//    0x080     12  low, bell  members
//    0x100  16x64  members    the member; the supervisor when it enters and after its death
//    0x500    128  waits      members; the supervisor clears them at admission
//    0x800  256x8  words      compare-and-swap (claim.h)
//
// Admission: the supervisor writes the head, epoch + 1, JOINING. Each producing lane answers the
// epoch; from its answer on it holds back every batch from `from` on. When all have answered, the
// supervisor clears the words and sets start, ACTIVE. By then a lane that was stopped while it
// closed a word of the page's last group has finished that.
//
// A trainer that overwrites its group page harms only its own group. Producing lanes check every
// value that they read here. The supervisor keeps its own account of every group, and bars a page
// that contradicts it (LanePage::groups_barred). The header before the page is just as writable, so
// nobody reads it.
#pragma once

#include <iterator>

#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/claim.h"
#include "ringfeed/shm/lane_page.h"

namespace ringfeed::shm {

inline constexpr std::uint32_t kDescriptorsMax = 256;

struct Descriptor {
  std::atomic<std::uint64_t> seq;  // s; stored by the journal of the publishing step
  std::uint32_t slot;
  std::uint32_t layout_id;
  std::uint64_t offset;  // of the batch in the payload segment
  std::uint64_t bytes;
  std::uint64_t token[2];  // lineage: its origin
  std::uint32_t rows;
  std::uint32_t crc32c;  // of the payload; 0 unless the feed computes checksums
  std::uint64_t published_ns;
  std::uint32_t ragged[16];  // lengths of the dimensions that vary, in schema order
};
static_assert(sizeof(Descriptor) == 128 && offsetof(Descriptor, ragged) == 64);

struct alignas(kLineBytes) ProducerLine {
  std::atomic<std::uint64_t> newest;  // last batch that this lane published; 0 before the first
  std::atomic<std::uint64_t> closed;  // 1: this lane publishes nothing after `newest`
  std::uint8_t reserved[kLineBytes - 16];
};
static_assert(sizeof(ProducerLine) == kLineBytes);

inline constexpr std::size_t kFeedBellOffset = 2048;
inline constexpr std::size_t kProducerLinesOffset = kPageBytes;
inline constexpr std::uint64_t descriptors_offset(std::uint64_t lanes) noexcept {
  return kProducerLinesOffset + lanes * sizeof(ProducerLine);
}
inline constexpr std::uint64_t feed_control_bytes(std::uint64_t lanes,
                                                  std::uint64_t descriptors) noexcept {
  return align_up(descriptors_offset(lanes) + descriptors * sizeof(Descriptor), kPageBytes);
}

enum class GroupState : std::uint32_t {
  kUnused = 0,
  kJoining = 1,  // waiting for every producing lane's answer
  kActive = 2,
  kDraining = 3,  // lanes close what is not taken
};
enum class GroupKind : std::uint32_t { kShared = 0, kRanked = 1 };
enum class GroupPolicy : std::uint32_t { kBlock = 0, kSkip = 1, kDetach = 2 };

struct GroupHead {
  std::atomic<std::uint32_t>
      state;  // supervisor; a producing lane may set ACTIVE -> DRAINING (policy detach)
  std::uint32_t kind;
  std::uint32_t policy;
  std::uint32_t redeliver;           // for members that do not choose; see Member::at_most_once
  std::atomic<std::uint64_t> epoch;  // admission number; grows with every use of this page
  std::atomic<std::uint64_t> start;  // first batch that this group is entitled to
  std::uint32_t max_hold;            // batches that one member may hold
  std::uint32_t max_tries;
  std::uint32_t world;
  std::uint32_t stall_ms;
  char name[64];
  std::uint64_t rejoin_ms;   // how long the group outlives its members
  std::uint8_t declared;     // 1: from the configuration, stays without members
  std::uint8_t from_oldest;  // 1: starts at the oldest batch that is held (JOINING)
  std::uint8_t brief;        // 1: nobody has asked for rejoin_ms: it goes sooner when its last
                             // member has left and not died
  std::uint8_t reserved[5];
};
static_assert(sizeof(GroupHead) == 0x80);

enum class MemberState : std::uint32_t {
  kFree = 0,
  kLive = 1,
  kAtEnd =
      2,  // live, came back for a batch and found the feed closed: what it holds has been worked on
  // Has left, whether or not a supervisor lives to hear it: the next one frees the place.
  kLeft = 3,
  kLeftFailed = 4,  // as kLeft, but somebody may come in its place
};

inline bool has_left(MemberState state) noexcept {
  return state == MemberState::kLeft || state == MemberState::kLeftFailed;
}

struct Member {
  std::atomic<std::uint32_t> state;
  std::uint32_t pid;
  std::uint64_t start_ticks;
  std::atomic<std::uint64_t> taken;
  std::atomic<std::uint64_t> done;
  std::atomic<std::uint64_t> last_ns;  // CLOCK_MONOTONIC of the last claim or release
  std::uint32_t rank;
  std::uint32_t at_most_once;            // 1: what it holds when it dies is closed, not redelivered
  std::atomic<std::uint64_t> waited_ns;  // asleep because no batch was there
  std::uint8_t reserved1[8];
};
static_assert(sizeof(Member) == 64);

// How long the group's members have waited for their batches, a batch at a time: for people alone.
// Bucket i has the waits of kWaitBoundsUs[i] at most that are in no bucket before it; the last one
// has the longer ones.
inline constexpr std::uint64_t kWaitBoundsUs[] = {
    1'000,   2'500,   5'000,     10'000,    25'000,    50'000,     100'000,
    250'000, 500'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 60'000'000};
inline constexpr std::size_t kWaitBuckets = std::size(kWaitBoundsUs) + 1;

struct GroupWaits {
  std::atomic<std::uint64_t> sum_ns;
  std::atomic<std::uint64_t> counts[kWaitBuckets];
};
static_assert(sizeof(GroupWaits) == kLineBytes);

inline std::size_t wait_bucket(std::uint64_t ns) noexcept {
  constexpr std::uint64_t kNsPerUs = 1'000;
  std::size_t bucket = 0;
  while (bucket < std::size(kWaitBoundsUs) && ns > kWaitBoundsUs[bucket] * kNsPerUs) ++bucket;
  return bucket;
}

struct GroupPage {
  GroupHead head;
  std::atomic<std::uint64_t> low;  // a hint that only grows: every batch below it is finished
  std::atomic<std::uint32_t>
      bell;  // rung by members that give a batch back; producing lanes wait on it
  std::uint8_t reserved0[0x100 - 0x8c];
  Member members[kMembersMax];
  GroupWaits waits;
  std::uint8_t reserved1[0x800 - 0x580];
  std::atomic<std::uint64_t> words[kDescriptorsMax];
};
static_assert(sizeof(GroupPage) == kPageBytes);
static_assert(offsetof(GroupPage, low) == 0x80 && offsetof(GroupPage, members) == 0x100);
static_assert(offsetof(GroupPage, waits) == 0x500 && offsetof(GroupPage, words) == 0x800);
inline constexpr std::uint64_t kGroupSegmentBytes = 2 * kPageBytes;

// Of the payload segment: a word for each slot.
inline constexpr std::size_t kGivenUpOffset = 2048;
static_assert(kGivenUpOffset + kDescriptorsMax * sizeof(std::uint64_t) == kPageBytes);

// The supervisor's own account of the groups: a GroupPage for each group of each output, in the
// control segment behind the bells. Nobody else writes it, so the next supervisor believes it. The
// group's own page, which members write, has copies of its heads and members. Its words are those
// of the group's page a moment ago; they serve a feed whose processes have all died.
inline constexpr std::uint64_t account_offset(std::uint64_t lane_count, std::uint64_t output,
                                              std::uint64_t group) noexcept {
  return control_bytes(lane_count) + (output * kGroupsMax + group) * sizeof(GroupPage);
}
inline constexpr std::uint64_t control_bytes_with_accounts(std::uint64_t lane_count,
                                                           std::uint64_t outputs) noexcept {
  return account_offset(lane_count, outputs, 0);
}

// Has `group` finished batch s?
inline bool group_finished(const GroupPage& group, std::uint64_t s,
                           std::uint64_t descriptors) noexcept {
  // acquire: pairs with the release of claim_finish; the holder's reads of the slot are over.
  const Claim claim = decode_claim(group.words[s % descriptors].load(std::memory_order_acquire));
  if (claim_finished(claim, s)) return true;
  // acquire: start is stored before the state becomes ACTIVE.
  return group.head.state.load(std::memory_order_acquire) ==
             static_cast<std::uint32_t>(GroupState::kActive) &&
         s < group.head.start.load(
                 std::memory_order_relaxed);  // relaxed: ordered by the load of state
}

}  // namespace ringfeed::shm
