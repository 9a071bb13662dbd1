// Taking batches and giving them back.
//
// A look goes over the claim words from the lowest batch that is not finished: given-back batches
// lie before new ones, so they are found first, and no private position can be wrong. Of each lane
// only the last D numbers are looked at, for its descriptors have no others. A lane that has ended,
// or is slow, stays behind for good: what the others publish is found however far ahead it is.
// Modelled in tests/model/claims.pml.
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "feed_access.h"
#include "look.h"
#include "notices.h"
#include "observe.h"
#include "ringfeed/shm/crc32c.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/requests.h"

namespace ringfeed::client {
namespace {

using shm::Claim;
using shm::ClaimState;
using shm::FeedPhase;
using shm::MemberState;

// Numbers of the batches that this member holds, for messages: "12, 13, 14".
void list_held(const rf_feed* feed, char* out, size_t room) {
  size_t used = 0;
  out[0] = '\0';
  uint32_t listed = 0;
  for (uint64_t i = 0; i < feed->descriptors && used < room; ++i) {
    // relaxed: for a message.
    const uint64_t s = feed->held[i].load(std::memory_order_relaxed);
    if (s == 0) continue;
    if (listed == 8) {
      snprintf(out + used, room - used, ", ...");
      return;
    }
    const int written = snprintf(out + used, room - used, "%s%llu", listed == 0 ? "" : ", ",
                                 static_cast<unsigned long long>(s));
    if (written < 0) return;
    used += static_cast<size_t>(written);
    ++listed;
  }
}

rf_status exhausted(const rf_feed* feed, const char* why) {
  char numbers[256];
  list_held(feed, numbers, sizeof numbers);
  return fail(feed, RF_SLOTS_EXHAUSTED,
              "feed %s, group %s: this member holds %u of %llu slots (batches %s) and %s: release "
              "a batch before the next one, or raise max_hold or feed_output.slots",
              feed->name, feed->group_name, feed->held_count.load(std::memory_order_relaxed),
              static_cast<unsigned long long>(feed->slots), numbers, why);
}

// Is every slot of this lane held by this member? Then the lane cannot write another batch before
// one is released here.
bool lane_stuck(const rf_feed* feed, uint64_t lane) {
  uint64_t held = 0;
  for (uint64_t i = 0; i < feed->descriptors; ++i) {
    // relaxed, both: this process's own list, changed under the claiming lock or by a release,
    // which can only make room.
    if (feed->held[i].load(std::memory_order_relaxed) != 0 &&
        feed->held_slot[i].load(std::memory_order_relaxed) % feed->lanes == lane) {
      ++held;
    }
  }
  return held >= feed->slots / feed->lanes;
}

// Can this lane publish nothing more before this member has released a batch?
bool lane_blocked(const rf_feed* feed, const Lanes& lanes, uint64_t lane) {
  if (lane_stuck(feed, lane)) return true;
  const uint64_t next = lanes.next_of(feed, lane, 1, 0, 1);
  if (next <= feed->descriptors) return false;
  // relaxed: own list. Its next descriptor is that of a batch that is held here.
  const uint64_t old = next - feed->descriptors;
  return feed->held[old % feed->descriptors].load(std::memory_order_relaxed) == old;
}

// Would a wait never end because of what this member holds? `awaited`: the batch that has to come
// next in an ordered feed; 0: not known which.
rf_status check_exhausted(const rf_feed* feed, const Lanes& lanes, uint64_t awaited) {
  // relaxed: this process's own count.
  const uint32_t held = feed->held_count.load(std::memory_order_relaxed);
  if (held == 0) return RF_OK;
  const uint32_t max_hold = feed->group->head.max_hold;
  if (max_hold != 0 && held >= max_hold) {
    char why[64];
    snprintf(why, sizeof why, "may hold at most %u", max_hold);
    return exhausted(feed, why);
  }
  if (awaited != 0 && feed->ordered && lane_blocked(feed, lanes, (awaited - 1) % feed->lanes)) {
    return exhausted(feed, lane_stuck(feed, (awaited - 1) % feed->lanes)
                               ? "the lane that writes the next batch has no other slot"
                               : "one of them is so old that its descriptor is needed");
  }
  bool any_room = lanes.all_closed;
  bool any_slot = false;
  for (uint64_t lane = 0; lane < feed->lanes && !any_room; ++lane) {
    any_room = !lanes.closed[lane] && !lane_blocked(feed, lanes, lane);
    any_slot = any_slot || (!lanes.closed[lane] && !lane_stuck(feed, lane));
  }
  if (any_room) return RF_OK;
  return exhausted(feed, any_slot ? "one of them is so old that its descriptor is needed"
                                  : "no lane that is still writing has another slot");
}

// Raises the group's hint over the batches that are finished, and over numbers that their lane has
// not used and never will, so that looks stay short.
void raise_low(rf_feed* feed, const Lanes& lanes, uint64_t base) {
  uint64_t low = base;
  for (uint64_t i = 0; i < feed->descriptors && low <= lanes.top; ++i) {
    // relaxed: finished is final for a batch; nothing is read because of it.
    const Claim claim = shm::decode_claim(
        feed->group->words[low % feed->descriptors].load(std::memory_order_relaxed));
    if (!shm::claim_finished(claim, low) && !lanes.never(feed, low)) break;
    ++low;
  }
  // relaxed: a hint; all that follows from it is looked up in the words.
  uint64_t seen = feed->group->low.load(std::memory_order_relaxed);
  while (seen < low && !feed->group->low.compare_exchange_weak(seen, low, std::memory_order_relaxed,
                                                               std::memory_order_relaxed)) {
  }
}

void wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// The group is through with batch `s`: whoever waits for its slot is rung.
void ring_group(rf_feed* feed) {
  shm::GroupPage& group = *feed->group;
  // release, pairs with the acquire of the bell in the lane's sleep(): a lane that has read the new
  // value sees the batch given back. Rung without asking who waits: at batch rate a system call is
  // cheaper than to be wrong.
  group.bell.fetch_add(1, std::memory_order_release);
  wake(group.bell);
}

// Has the group batch `s` to take?
bool is_ready(const rf_feed* feed, uint64_t s) {
  // relaxed, both: if it is taken at this moment, whoever takes it waits no more than for the next.
  return descriptor(feed, s).seq.load(std::memory_order_relaxed) == s &&
         shm::claim_open(shm::decode_claim(feed->group->words[s % feed->descriptors].load(
                             std::memory_order_relaxed)),
                         s);
}

void pass_over(rf_feed* feed, uint64_t s) {
  shm::claim_finish(feed->group->words[s % feed->descriptors], s, feed->member);
  ring_group(feed);
}

// An array that does not fit where it lies; null: all do. Without lengths that vary that is known
// from the schema.
const rf_tensor* too_large(const rf_feed* feed, const rf_batch& batch) {
  for (uint32_t i = 0; feed->ragged && i < feed->schema.tensor_count; ++i) {
    if (!fits(feed->tensors[i], batch)) return &feed->tensors[i];
  }
  return nullptr;
}

// Batch `s` is this member's: notes it and fills *batch.
Look took(rf_feed* feed, uint64_t s, uint8_t tries, rf_batch* batch) {
  const shm::Descriptor& from = descriptor(feed, s);
  rf_batch full{};
  full.seq = s;
  full.tries = tries;
  full.rows = from.rows;
  full.bytes = from.bytes;
  full.slot = from.slot;
  full.layout_id = from.layout_id;
  full.crc32c = from.crc32c;
  full.published_ns = from.published_ns;
  full.token[0] = from.token[0];
  full.token[1] = from.token[1];
  memcpy(full.ragged, from.ragged, sizeof full.ragged);
  const uint64_t offset = from.offset;
  shm::Member& self = feed->group->members[feed->member];
  // A claimed batch keeps its descriptor and its slot. If they have changed nevertheless, the group
  // had been given up before the claim.
  // acquire: the fields above were read before the number is looked at again.
  if (from.seq.load(std::memory_order_acquire) != s) {
    shm::claim_finish(feed->group->words[s % feed->descriptors], s, feed->member);
    return error(fail(feed, RF_DETACHED,
                      "feed %s, group %s: batch %llu was taken back while it was claimed: the "
                      "group has left the feed, attach again",
                      feed->name, feed->group_name, static_cast<unsigned long long>(s)));
  }
  if (full.slot >= feed->slots || offset != slot_offset(feed, full.slot) ||
      full.bytes > feed->slot_bytes || full.rows > feed->schema.rows_max) {
    shm::claim_finish(feed->group->words[s % feed->descriptors], s, feed->member);
    return error(fail(feed, RF_DAMAGED,
                      "feed %s: batch %llu: slot %u, offset %llu, %llu bytes, %u rows contradict "
                      "the feed (%llu slots of %llu bytes, %u rows)",
                      feed->name, static_cast<unsigned long long>(s), full.slot,
                      static_cast<unsigned long long>(offset),
                      static_cast<unsigned long long>(full.bytes), full.rows,
                      static_cast<unsigned long long>(feed->slots),
                      static_cast<unsigned long long>(feed->slot_bytes), feed->schema.rows_max));
  }
  if (const rf_tensor* const tensor = too_large(feed, full); tensor != nullptr) {
    shm::claim_finish(feed->group->words[s % feed->descriptors], s, feed->member);
    return error(fail(feed, RF_DAMAGED,
                      "feed %s: batch %llu: tensor %s with %u rows and its varying lengths does "
                      "not fit its %llu bytes; the batch is skipped",
                      feed->name, static_cast<unsigned long long>(s), tensor->name, full.rows,
                      static_cast<unsigned long long>(tensor->bytes)));
  }
  full.data = feed->payload.data + offset;
  // Released slots have no private pages, but a program that locks all its memory makes some for
  // slots that it does not hold; they would show bytes of that time.
  if (feed->private_view && !drop_private(feed->payload.data + offset, feed->slot_bytes)) {
    const int why = errno;
    shm::claim_finish(feed->group->words[s % feed->descriptors], s, feed->member);
    return error(fail(feed, RF_IO,
                      "feed %s: batch %llu: the private pages of slot %u cannot be dropped (%s), "
                      "so it might show old bytes; it is skipped: use read-only batches",
                      feed->name, static_cast<unsigned long long>(s), full.slot, strerror(why)));
  }
  // relaxed, all: the process's own list and counters that others only report.
  feed->held_slot[s % feed->descriptors].store(full.slot, std::memory_order_relaxed);
  feed->held_count.fetch_add(1, std::memory_order_relaxed);
  feed->users.fetch_add(1, std::memory_order_relaxed);
  // release, pairs with the acquire in rf_release: a thread that finds the batch here finds the
  // counts above as well.
  feed->held[s % feed->descriptors].store(s, std::memory_order_release);
  self.taken.fetch_add(1, std::memory_order_relaxed);
  self.last_ns.store(now_ns(), std::memory_order_relaxed);
  full.struct_size = batch->struct_size;
  memcpy(batch, &full, batch->struct_size < sizeof full ? batch->struct_size : sizeof full);
  return {Found::kBatch, RF_OK};
}

// What one look goes by, and what it has seen so far.
struct Sight {
  Lanes lanes;
  uint64_t base;  // lowest batch that may be unfinished
  uint64_t rank;
  uint64_t world;          // each `world`-th batch is this member's
  bool may_claim;          // max_hold allows another one
  uint64_t awaited = 0;    // lowest batch of this member's that may still come
  bool elsewhere = false;  // a live member has one that may come back

  // The first batch of this member's from `s` on.
  [[nodiscard]] uint64_t own_from(uint64_t s) const { return first_of_rank(s, rank, world); }
};

// Where this member's batches begin. kNothing, or kError: the group's page contradicts itself.
Look find_place(const rf_feed* feed, bool over, Sight* sight) {
  sight->lanes.see(feed, over);
  const shm::GroupPage& group = *feed->group;
  const bool ranked = group.head.kind == static_cast<uint32_t>(shm::GroupKind::kRanked);
  const uint64_t world = ranked ? group.head.world : 1;
  const uint64_t rank = ranked ? group.members[feed->member].rank : 0;
  if (world < 1 || world > shm::kMembersMax || rank >= world) {
    return error(fail(feed, RF_DAMAGED, "feed %s, group %s: rank %llu of world %llu", feed->name,
                      feed->group_name, static_cast<unsigned long long>(rank),
                      static_cast<unsigned long long>(world)));
  }
  // relaxed: start was stored before the group's state, which was read with acquire; low is a
  // hint.
  const uint64_t start = group.head.start.load(std::memory_order_relaxed);
  const uint64_t low = group.low.load(std::memory_order_relaxed);
  sight->base = start > low ? start : low;
  if (sight->base == 0) sight->base = 1;
  sight->rank = rank;
  sight->world = world;
  for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
    if (sight->lanes.closed[lane]) continue;
    const uint64_t next = sight->lanes.next_of(feed, lane, sight->base, rank, world);
    if (next != 0 && (sight->awaited == 0 || next < sight->awaited)) sight->awaited = next;
  }
  // relaxed: this process's own count, changed under the claiming lock or made smaller.
  const uint32_t max_hold = group.head.max_hold;
  sight->may_claim = max_hold == 0 || feed->held_count.load(std::memory_order_relaxed) < max_hold;
  return {};
}

// Batch `s`: claimed if it can be (kBatch, kError). kNothing: it is not for this member to take
// now, and *sight says whether it may come.
Look look_at(rf_feed* feed, uint64_t s, Sight* sight, rf_batch* batch) {
  shm::GroupPage& group = *feed->group;
  std::atomic<uint64_t>& word = group.words[s % feed->descriptors];
  // acquire, pairs with whoever gave the batch back or closed it.
  uint64_t seen = word.load(std::memory_order_acquire);
  for (;;) {
    const Claim claim = shm::decode_claim(seen);
    if (!shm::claim_open(claim, s)) {
      if (claim.seq == s && claim.state == ClaimState::kTaken && claim.member != feed->member) {
        // acquire, pairs with mark_at_end of the holder.
        sight->elsewhere = sight->elsewhere || claim.member >= shm::kMembersMax ||
                           group.members[claim.member].state.load(std::memory_order_acquire) !=
                               static_cast<uint32_t>(MemberState::kAtEnd);
      }
      return {};
    }
    // acquire, pairs with the release of seq in the publishing step's carry-out: descriptor and
    // payload of the batch are complete.
    const uint64_t published = descriptor(feed, s).seq.load(std::memory_order_acquire);
    // Gone before this group was entitled to it, or not there yet.
    if (published != s) return {};
    if (!sight->may_claim) {
      // Another thread may have released one meanwhile: then there is room.
      if (const rf_status status = check_exhausted(feed, sight->lanes, s); status != RF_OK) {
        return error(status);
      }
    }
    if (shm::claim_take(word, seen, s, feed->member)) {
      RF_FAILPOINT("client.next.claimed");
      const uint8_t tries = claim.seq == s ? claim.tries : uint8_t{0};
      auto at_end = static_cast<uint32_t>(MemberState::kAtEnd);
      // release: as in mark_at_end; a batch came back after the end.
      group.members[feed->member].state.compare_exchange_strong(
          at_end, static_cast<uint32_t>(MemberState::kLive), std::memory_order_release,
          std::memory_order_relaxed);
      if (s < feed->position) {
        // Had been worked on before the position was saved.
        pass_over(feed, s);
        return {};
      }
      raise_low(feed, sight->lanes, sight->base);
      return took(feed, s, tries, batch);
    }
    // Another member was quicker; acquire as above.
    seen = word.load(std::memory_order_acquire);
  }
}

// What a look means that has taken nothing.
Look took_nothing(rf_feed* feed, FeedPhase phase, bool over, const Sight& sight) {
  raise_low(feed, sight.lanes, sight.base);
  if (phase == FeedPhase::kFailed) return error(failed(feed));
  if (phase == FeedPhase::kStopped) return error(stopped(feed));
  if (sight.lanes.all_closed && sight.awaited == 0) {
    // A feed without a single batch may have failed by that: its supervisor, if there is one,
    // says so in a moment, and rings the bell. relaxed: a hint; it is heard again in the next
    // slice.
    if (sight.lanes.top == 0 && !over &&
        feed->supervisor_gone.load(std::memory_order_relaxed) == 0) {
      return {};
    }
    mark_at_end(feed);
    if (!sight.elsewhere) return {Found::kEnd, ended(feed, phase)};
    return {};
  }
  if (const rf_status status = check_exhausted(feed, sight.lanes, sight.awaited); status != RF_OK) {
    return error(status);
  }
  return {};
}

}  // namespace

void settle_debts(rf_feed* feed) {
  // relaxed, both: this process's own.
  const uint64_t owed = feed->owed.exchange(0, std::memory_order_relaxed);
  for (uint64_t lane = 0; owed >> lane != 0; ++lane) {
    if ((owed >> lane & 1) == 0) continue;
    wake(shm::request_bell(feed->owed_table.load(std::memory_order_relaxed), lane + 1));
  }
}

Look look(rf_feed* feed, rf_batch* batch) {
  const Look membership = check_member(feed);
  if (membership.found == Found::kError) return membership;
  // acquire, pairs with the supervisor's release: what was published before the end, or the reason
  // of the failure, is seen.
  const auto phase = static_cast<FeedPhase>(feed_state(feed).phase.load(std::memory_order_acquire));
  if (membership.found == Found::kJoining) {
    return phase == FeedPhase::kFailed    ? error(failed(feed))
           : phase == FeedPhase::kStopped ? error(stopped(feed))
                                          : membership;
  }
  const bool over =
      phase == FeedPhase::kEnded || phase == FeedPhase::kFailed || phase == FeedPhase::kStopped;
  Sight sight;
  if (const Look place = find_place(feed, over, &sight); place.found == Found::kError) return place;
  // An ordered feed is taken in its order; of a relaxed one all that is ready.
  const uint64_t last = feed->ordered && sight.awaited != 0 ? sight.awaited - 1 : shm::kBatchSeqMax;
  for (uint64_t from = sight.base, end = 0; sight.lanes.next_stretch(feed, &from, &end);
       from = end) {
    for (uint64_t s = sight.own_from(from); s < end && s <= last; s += sight.world) {
      if (!sight.lanes.describes(feed, s)) continue;
      const Look seen = look_at(feed, s, &sight, batch);
      if (seen.found != Found::kNothing) return seen;
    }
  }
  return took_nothing(feed, phase, over, sight);
}

}  // namespace ringfeed::client

using namespace ringfeed;          // NOLINT: this file defines the C functions
using namespace ringfeed::client;  // NOLINT

extern "C" rf_status rf_pass_over(rf_feed* feed, uint64_t position) {
  if (feed == nullptr) return fail(feed, RF_INVALID, "pass over: a handle is needed");
  if (feed->pid != getpid()) return forked(feed);
  if (feed->observes) {
    return fail(feed, RF_INVALID, "feed %s: an observer has no place in the feed", feed->name);
  }
  if (position > kSeqMax) {
    return fail(feed, RF_INVALID, "pass over: position %llu: batches have numbers from 1 to %llu",
                static_cast<unsigned long long>(position),
                static_cast<unsigned long long>(kSeqMax));
  }
  const User user(feed);
  if (!user) return detached(feed);
  pthread_mutex_lock(&feed->claiming);
  if (position > feed->position) feed->position = position;
  pthread_mutex_unlock(&feed->claiming);
  return RF_OK;
}

extern "C" rf_status rf_ask(rf_feed* feed, void* table, uint64_t table_bytes, uint64_t seq,
                            uint64_t offset, uint64_t size, uint64_t kind, int may_wait) {
  if (feed != nullptr && feed->pid != getpid()) return forked(feed);
  auto* const bytes = static_cast<std::byte*>(table);
  if (!shm::are_requests(bytes, table_bytes)) {
    return fail(feed, RF_INVALID, "ask: the memory is no table of requests");
  }
  if (seq == 0 || seq > kSeqMax || offset > table_bytes || size > table_bytes - offset) {
    return fail(feed, RF_INVALID, "ask: request %llu of %llu bytes at %llu leaves the table",
                static_cast<unsigned long long>(seq), static_cast<unsigned long long>(size),
                static_cast<unsigned long long>(offset));
  }
  const auto put = [=] { shm::put_request(bytes, seq, offset, size, kind); };
  std::atomic<uint32_t>& bell = shm::request_bell(bytes, seq);
  if (feed == nullptr) {
    put();
    wake(bell);
    return RF_OK;
  }
  const User user(feed);
  if (!user) return detached(feed);
  put();
  if (shm::is_planned(bytes)) {
    ring_group(feed);
  } else if (may_wait != 0 && seq > feed->lanes && feed->lanes <= 64 &&
             is_ready(feed, seq - feed->lanes)) {
    // relaxed, both: this process's own.
    feed->owed_table.store(bytes, std::memory_order_relaxed);
    feed->owed.fetch_or(uint64_t{1} << (seq - 1) % feed->lanes, std::memory_order_relaxed);
  } else {
    wake(bell);
  }
  return RF_OK;
}

extern "C" rf_status rf_release(rf_feed* feed, uint64_t seq) {
  if (feed == nullptr) return fail(feed, RF_INVALID, "release: a handle is needed");
  if (feed->pid != getpid()) return forked(feed);
  if (feed->observes) return release_observed(feed, seq);
  uint64_t expected = seq;
  // acquire, pairs with the release in rf_next; relaxed on failure: nothing is read. Exactly one
  // release of a batch gets past here.
  if (seq == 0 || !feed->held[seq % feed->descriptors].compare_exchange_strong(
                      expected, 0, std::memory_order_acquire, std::memory_order_relaxed)) {
    return fail(feed, RF_INVALID,
                "feed %s: batch %llu is not held by this handle: it was released before, or never "
                "taken",
                feed->name, static_cast<unsigned long long>(seq));
  }
  if (feed->private_view) {
    // Before the exchange: after it the slot may be written and leased here again by another
    // thread, whose pages these would be. relaxed: stored by the taker before `held`.
    const uint64_t slot = feed->held_slot[seq % feed->descriptors].load(std::memory_order_relaxed);
    // Refused only where rf_next would be refused the same and say so.
    drop_private(feed->payload.data + slot_offset(feed, slot), feed->slot_bytes);
  }
  RF_FAILPOINT("client.release.finishing");
  shm::GroupPage& group = *feed->group;
  const bool finished = shm::claim_finish(group.words[seq % feed->descriptors], seq, feed->member);
  shm::Member& self = group.members[feed->member];
  RF_FAILPOINT("client.release.finished");
  if (finished) {
    // relaxed, both: counters that others only report.
    self.done.fetch_add(1, std::memory_order_relaxed);
    self.last_ns.store(now_ns(), std::memory_order_relaxed);
    ring_group(feed);
  }
  note_return(feed);
  feed->held_count.fetch_sub(1, std::memory_order_relaxed);  // relaxed: own count
  const rf_status status = finished ? RF_OK
                                    : fail(feed, RF_DETACHED,
                                           "feed %s, group %s: batch %llu was taken away from "
                                           "member %u before it was released",
                                           feed->name, feed->group_name,
                                           static_cast<unsigned long long>(seq), feed->member);
  put_user(feed);
  return status;
}

extern "C" rf_status rf_verify(rf_feed* feed, const rf_batch* batch) {
  if (feed == nullptr || batch == nullptr) {
    return fail(feed, RF_INVALID, "verify: a handle and a batch are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  const auto seq = static_cast<unsigned long long>(batch->seq);
  // acquire, pairs with the release in rf_next, whichever thread called it.
  const bool held = feed->observes ? is_observed(feed, *batch)
                                   : feed->held[batch->seq % feed->descriptors].load(
                                         std::memory_order_acquire) == batch->seq;
  if (batch->seq == 0 || !held) {
    return fail(feed, RF_INVALID, "feed %s: batch %llu is not held by this handle", feed->name,
                seq);
  }
  if (batch->crc32c == 0) {
    return fail(feed, RF_INVALID,
                "feed %s: batch %llu has no checksum: set checksum: true in the feed_output of "
                "its configuration",
                feed->name, seq);
  }
  const uint32_t found = shm::crc32c(batch->data, batch->bytes);
  if (found == batch->crc32c) return RF_OK;
  return fail(feed, RF_DAMAGED,
              "feed %s: batch %llu: its %llu bytes have the checksum %08x, but had %08x when they "
              "were published: something has written to them",
              feed->name, seq, static_cast<unsigned long long>(batch->bytes), found, batch->crc32c);
}

extern "C" rf_status rf_release_batch(rf_feed* feed, const rf_batch* batch) {
  if (batch == nullptr) return fail(feed, RF_INVALID, "release: a batch is needed");
  return batch->seq == 0 ? RF_OK : rf_release(feed, batch->seq);
}
