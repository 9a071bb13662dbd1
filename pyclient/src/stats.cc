// Where a member, its group and the feed stand.
#include <string.h>
#include <unistd.h>

#include "feed_access.h"
#include "look.h"

namespace ringfeed::client {
namespace {

// Has the group finished batch `s`?
bool finished(const rf_feed* feed, uint64_t s) {
  // relaxed: for a report; nothing is read because of it.
  const uint64_t word = feed->group->words[s % feed->descriptors].load(std::memory_order_relaxed);
  return shm::claim_finished(shm::decode_claim(word), s);
}

// Calls `what` with the batches from `from` on that are published and not finished, lowest first.
template <typename What>
void each_unfinished(const rf_feed* feed, const Lanes& lanes, uint64_t from, const What& what) {
  for (uint64_t end = 0; lanes.next_stretch(feed, &from, &end); from = end) {
    for (uint64_t s = from; s < end; ++s) {
      if (!lanes.describes(feed, s) || finished(feed, s)) continue;
      if (descriptor(feed, s).seq.load(std::memory_order_relaxed) == s) what(s);
    }
  }
}

// What concerns the group. relaxed, all: a report of numbers that move on; none is acted on.
void fill_group(const rf_feed* feed, const Lanes& lanes, rf_stats_info* full) {
  const shm::GroupPage& group = *feed->group;
  const shm::Member& self = group.members[feed->member];
  full->taken = self.taken.load(std::memory_order_relaxed);
  full->done = self.done.load(std::memory_order_relaxed);
  full->start = group.head.start.load(std::memory_order_relaxed);
  const uint64_t low = group.low.load(std::memory_order_relaxed);
  uint64_t from = full->start > low ? full->start : low;
  if (from == 0) from = 1;
  full->max_hold = group.head.max_hold;
  full->group_index = feed->group_index;
  full->member = feed->member;
  for (const shm::Member& member : group.members) {
    const auto state = static_cast<shm::MemberState>(member.state.load(std::memory_order_relaxed));
    if (state == shm::MemberState::kLive || state == shm::MemberState::kAtEnd) ++full->members;
  }
  const bool ranked = group.head.kind == static_cast<uint32_t>(shm::GroupKind::kRanked);
  full->kind = ranked ? RF_RANKED : RF_SHARED;
  full->rank = ranked ? self.rank : 0;
  full->world = ranked ? group.head.world : 1;
  // The lowest batch that this member may get: one that is there, or one that may still come.
  full->next = 0;
  each_unfinished(feed, lanes, from, [&](uint64_t s) {
    ++full->lag;
    if (full->next == 0 && (s - 1) % full->world == full->rank) full->next = s;
  });
  for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
    if (lanes.ended[lane]) continue;
    const uint64_t next = lanes.next_of(feed, lane, from, full->rank, full->world);
    if (next != 0 && (full->next == 0 || next < full->next)) full->next = next;
  }
  if (full->next == 0) full->next = first_of_rank(full->published + 1, full->rank, full->world);
}

}  // namespace
}  // namespace ringfeed::client

using namespace ringfeed;          // NOLINT: this file defines the C functions
using namespace ringfeed::client;  // NOLINT

extern "C" rf_status rf_stats(rf_feed* feed, rf_stats_info* stats) {
  if (feed == nullptr || stats == nullptr || stats->struct_size < sizeof(uint32_t)) {
    return fail(feed, RF_INVALID, "stats: a handle and a struct with its struct_size are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  const User user(feed);
  // acquire, pairs with rf_leave.
  if (!user || feed->left.load(std::memory_order_acquire) != 0) return detached(feed);
  rf_stats_info full{};
  full.struct_size = stats->struct_size;
  // relaxed, all below: a report of numbers that move on; none is acted on.
  full.phase = feed_state(feed).phase.load(std::memory_order_relaxed);
  Lanes lanes;
  lanes.see(feed, false);
  full.closed = lanes.all_closed ? 1 : 0;
  full.published = lanes.top;
  full.world = 1;
  if (!feed->observes) fill_group(feed, lanes, &full);
  full.wait_ns = feed->wait_ns.load(std::memory_order_relaxed);
  full.waits = feed->waits.load(std::memory_order_relaxed);
  full.held = feed->held_count.load(std::memory_order_relaxed);
  full.slots = static_cast<uint32_t>(feed->slots);
  full.lanes = static_cast<uint32_t>(feed->lanes);
  full.supervisor_pid = feed_state(feed).supervisor_pid.load(std::memory_order_relaxed);
  if (full.supervisor_pid == 0) full.supervisor_pid = feed->supervisor_pid;
  full.ordered = feed->ordered ? 1 : 0;
  memcpy(full.feed_id, feed->feed_control.header()->feed_id, sizeof full.feed_id);
  memcpy(full.feed, feed->name, sizeof full.feed);
  memcpy(full.group, feed->group_name, sizeof full.group);
  memcpy(full.output, feed->output_alias, sizeof full.output);
  // A path that could be connected to is shorter; the rest is zero.
  memcpy(full.socket, feed->socket_path, strnlen(feed->socket_path, sizeof full.socket - 1));
  memcpy(stats, &full, stats->struct_size < sizeof full ? stats->struct_size : sizeof full);
  return RF_OK;
}
