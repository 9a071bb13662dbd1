// Every field of every shared struct with its offset and size, and the hash that two processes
// compare.
#pragma once

#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/counters.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/node_lanes.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::shm {

struct FieldLayout {
  const char* structure;
  const char* field;
  std::size_t offset;
  std::size_t bytes;
};

#define RF_FIELD(structure, field) \
  FieldLayout { #structure, #field, offsetof(structure, field), sizeof(structure::field) }

inline constexpr FieldLayout kLayout[] = {
    RF_FIELD(SegmentHeader, magic),
    RF_FIELD(SegmentHeader, abi_major),
    RF_FIELD(SegmentHeader, abi_minor),
    RF_FIELD(SegmentHeader, layout_hash),
    RF_FIELD(SegmentHeader, header_bytes),
    RF_FIELD(SegmentHeader, kind),
    RF_FIELD(SegmentHeader, total_bytes),
    RF_FIELD(SegmentHeader, feed_id),
    RF_FIELD(SegmentHeader, config_hash),
    RF_FIELD(SegmentHeader, endian),
    RF_FIELD(SegmentHeader, page_bytes),
    RF_FIELD(SegmentHeader, features_required),
    RF_FIELD(SegmentHeader, features_optional),
    RF_FIELD(SegmentHeader, created_ns),
    RF_FIELD(SegmentHeader, boot_id_lo),
    RF_FIELD(SegmentHeader, abi_min_reader),
    RF_FIELD(SegmentHeader, geometry),
    RF_FIELD(SegmentHeader, crc32c),
    RF_FIELD(SegmentHeader, state),
    RF_FIELD(LanePage, commit),
    RF_FIELD(LanePage, entry_counts),
    RF_FIELD(LanePage, waiting),
    RF_FIELD(LanePage, pid),
    RF_FIELD(LanePage, incarnation),
    RF_FIELD(LanePage, start_ticks),
    RF_FIELD(LanePage, attempt_key),
    RF_FIELD(LanePage, faulted),
    RF_FIELD(LanePage, state),
    RF_FIELD(LanePage, progress_ns),
    RF_FIELD(LanePage, woke_ns),
    RF_FIELD(LanePage, parked),
    RF_FIELD(LanePage, generation_seen),
    RF_FIELD(LanePage, desired),
    RF_FIELD(LanePage, crash_count),
    RF_FIELD(LanePage, quarantine_key),
    RF_FIELD(LanePage, park_ticket),
    RF_FIELD(LanePage, groups_barred),
    RF_FIELD(LanePage, generation),
    RF_FIELD(LanePage, retire),
    RF_FIELD(LanePage, answers),
    RF_FIELD(LanePage, kept_slots),
    RF_FIELD(LanePage, counters),
    RF_FIELD(LaneCounters, steps),
    RF_FIELD(LaneCounters, busy_ns),
    RF_FIELD(LaneCounters, starved_ns),
    RF_FIELD(LaneCounters, blocked_ns),
    RF_FIELD(LaneCounters, sleeps),
    RF_FIELD(LaneCounters, wakes),
    RF_FIELD(LaneCounters, named),
    RF_FIELD(LaneCounters, note),
    RF_FIELD(NamedCounter, name),
    RF_FIELD(NamedCounter, value),
    RF_FIELD(LaneNote, version),
    RF_FIELD(LaneNote, bytes),
    RF_FIELD(LaneNote, done),
    RF_FIELD(LaneNote, total),
    RF_FIELD(LaneNote, text),
    RF_FIELD(AdmissionAnswer, epoch),
    RF_FIELD(AdmissionAnswer, skipped),
    RF_FIELD(AdmissionAnswer, from),
    RF_FIELD(Bell, rings),
    RF_FIELD(FeedState, phase),
    RF_FIELD(FeedState, reason_bytes),
    RF_FIELD(FeedState, supervisor_pid),
    RF_FIELD(FeedState, replacing),
    RF_FIELD(FeedState, reason),
    RF_FIELD(NodeLanesWords, shares),
    RF_FIELD(NodeLanesWords, floor),
    RF_FIELD(TailLine, tail),
    RF_FIELD(TailLine, tail_seq),
    RF_FIELD(TailLine, closed),
    RF_FIELD(TailLine, dropped),
    RF_FIELD(TailLine, discard),
    RF_FIELD(TailLine, discard_seq),
    RF_FIELD(HeadLine, head),
    RF_FIELD(HeadLine, head_seq),
    RF_FIELD(HeadLine, skipped),
    RF_FIELD(HeadLine, hold),
    RF_FIELD(RecordHeader, type),
    RF_FIELD(RecordHeader, flags),
    RF_FIELD(RecordHeader, bytes),
    RF_FIELD(RecordHeader, seq),
    RF_FIELD(RecordHeader, tag),
    RF_FIELD(RecordHeader, t_ns),
    RF_FIELD(RecordHeader, crc32c),
    RF_FIELD(RecordHeader, user),
    RF_FIELD(Descriptor, seq),
    RF_FIELD(Descriptor, slot),
    RF_FIELD(Descriptor, layout_id),
    RF_FIELD(Descriptor, offset),
    RF_FIELD(Descriptor, bytes),
    RF_FIELD(Descriptor, token),
    RF_FIELD(Descriptor, rows),
    RF_FIELD(Descriptor, crc32c),
    RF_FIELD(Descriptor, published_ns),
    RF_FIELD(Descriptor, ragged),
    RF_FIELD(ProducerLine, newest),
    RF_FIELD(ProducerLine, closed),
    RF_FIELD(GroupHead, state),
    RF_FIELD(GroupHead, kind),
    RF_FIELD(GroupHead, policy),
    RF_FIELD(GroupHead, redeliver),
    RF_FIELD(GroupHead, epoch),
    RF_FIELD(GroupHead, start),
    RF_FIELD(GroupHead, max_hold),
    RF_FIELD(GroupHead, max_tries),
    RF_FIELD(GroupHead, world),
    RF_FIELD(GroupHead, stall_ms),
    RF_FIELD(GroupHead, name),
    RF_FIELD(GroupHead, rejoin_ms),
    RF_FIELD(GroupHead, declared),
    RF_FIELD(GroupHead, from_oldest),
    RF_FIELD(GroupHead, brief),
    RF_FIELD(Member, state),
    RF_FIELD(Member, pid),
    RF_FIELD(Member, start_ticks),
    RF_FIELD(Member, taken),
    RF_FIELD(Member, done),
    RF_FIELD(Member, last_ns),
    RF_FIELD(Member, rank),
    RF_FIELD(Member, at_most_once),
    RF_FIELD(Member, waited_ns),
    RF_FIELD(GroupWaits, sum_ns),
    RF_FIELD(GroupWaits, counts),
    RF_FIELD(GroupPage, low),
    RF_FIELD(GroupPage, bell),
    RF_FIELD(GroupPage, members),
    RF_FIELD(GroupPage, waits),
    RF_FIELD(GroupPage, words),
};
#undef RF_FIELD

namespace detail {
constexpr std::uint64_t fnv(std::uint64_t hash, const char* text) noexcept {
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return hash;
}
constexpr std::uint64_t fnv(std::uint64_t hash, std::size_t number) noexcept {
  char digits[24] = {};
  std::size_t at = sizeof digits - 1;
  do {
    digits[--at] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return fnv(hash, digits + at);
}
constexpr std::uint64_t hash_layout() noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const FieldLayout& field : kLayout) {
    hash = fnv(fnv(fnv(fnv(hash, field.structure), ":"), field.field), ":");
    hash = fnv(fnv(fnv(fnv(hash, field.offset), ":"), field.bytes), ";");
  }
  return hash;
}
}  // namespace detail

inline constexpr std::uint64_t kLayoutHash = detail::hash_layout();

}  // namespace ringfeed::shm
