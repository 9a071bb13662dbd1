// Taking batches and giving them back.
//
// A look goes over the claim words from the lowest batch that is not finished: given-back batches
// lie before new ones, so they are found first, and no private position can be wrong. At most
// D words are looked at, for only D batches can be unfinished. Modelled in tests/model/claims.pml;
// the waiting in tests/model/wakeup_feed.pml.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "feed_access.h"
#include "ringfeed/shm/crc32c.h"
#include "ringfeed/shm/failpoint.h"

namespace ringfeed::client {
namespace {

using shm::Claim;
using shm::ClaimState;
using shm::FeedPhase;
using shm::GroupState;
using shm::MemberState;

// So long nobody may live before waiting is given up: a supervisor may be on its way.
constexpr uint64_t kAbandonedNs = 5'000'000'000;

enum class Found {
  kBatch,    // claimed
  kNothing,  // not yet: sleep on the feed's bell
  kAgain,    // the hint was behind: look again at once
  kJoining,  // the group is being admitted; no bell tells its end
  kEnd,      // nothing will come
  kError,    // status and sentence are set
};

struct Look {
  Found found = Found::kNothing;
  rf_status status = RF_OK;
};

Look error(rf_status status) { return {Found::kError, status}; }

// The producing lanes as one moment saw them.
struct Lanes {
  uint64_t newest[shm::kDescriptorsMax];
  bool closed[shm::kDescriptorsMax];
  uint64_t top = 0;  // newest batch of all
  bool all_closed = true;
};

void see_lanes(const rf_feed* feed, bool over, Lanes* lanes) {
  for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
    const shm::ProducerLine& line = producer_line(feed, lane);
    // acquire, pairs with the release of closed in the lane's carry-out: `newest`, read after it,
    // is then the last there will be.
    lanes->closed[lane] = over || line.closed.load(std::memory_order_acquire) != 0;
    // acquire, pairs with the release of newest: batches up to it have their descriptors.
    lanes->newest[lane] = line.newest.load(std::memory_order_acquire);
    if (lanes->newest[lane] > lanes->top) lanes->top = lanes->newest[lane];
    lanes->all_closed = lanes->all_closed && lanes->closed[lane];
  }
}

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

// Would a wait for batch `s` (0: not known which) never end because of what this member holds?
// `limit`: the lowest batch that has to be published before anything can change.
rf_status check_exhausted(const rf_feed* feed, const Lanes& lanes, uint64_t s, uint64_t limit) {
  // relaxed: this process's own count.
  const uint32_t held = feed->held_count.load(std::memory_order_relaxed);
  if (held == 0) return RF_OK;
  const uint32_t max_hold = feed->group->head.max_hold;
  if (max_hold != 0 && held >= max_hold) {
    char why[64];
    snprintf(why, sizeof why, "may hold at most %u", max_hold);
    return exhausted(feed, why);
  }
  if (s != 0 && feed->ordered && lane_stuck(feed, (s - 1) % feed->lanes)) {
    return exhausted(feed, "the lane that writes the next batch has no other slot");
  }
  for (uint64_t i = 0; i < feed->descriptors; ++i) {
    const uint64_t mine = feed->held[i].load(std::memory_order_relaxed);  // relaxed: own list
    if (mine != 0 && mine + feed->descriptors <= limit) {
      return exhausted(feed, "one of them is so old that its descriptor is needed");
    }
  }
  bool any_room = false;
  for (uint64_t lane = 0; lane < feed->lanes && !any_room; ++lane) {
    any_room = !lanes.closed[lane] && !lane_stuck(feed, lane);
  }
  if (!any_room && !lanes.all_closed) {
    return exhausted(feed, "no lane that still writes has another slot");
  }
  return RF_OK;
}

// Raises the group's hint over the batches that are finished, so that looks stay short. Returns the
// lowest batch that may be unfinished.
uint64_t raise_low(rf_feed* feed, uint64_t base) {
  uint64_t low = base;
  for (uint64_t i = 0; i < feed->descriptors; ++i) {
    // relaxed: finished is final for a batch; nothing is read because of it.
    const Claim claim = shm::decode_claim(
        feed->group->words[low % feed->descriptors].load(std::memory_order_relaxed));
    if (!shm::claim_finished(claim, low)) break;
    ++low;
  }
  if (low == base) return low;
  // relaxed: a hint; all that follows from it is looked up in the words.
  uint64_t seen = feed->group->low.load(std::memory_order_relaxed);
  while (seen < low && !feed->group->low.compare_exchange_weak(seen, low, std::memory_order_relaxed,
                                                               std::memory_order_relaxed)) {
  }
  return low;
}

// The group is through with batch `s`: whoever waits for its slot is rung.
void ring_group(rf_feed* feed) {
  shm::GroupPage& group = *feed->group;
  // release, pairs with the acquire of the bell in the lane's sleep(): a lane that has read the new
  // value sees the batch given back. Rung without asking who waits: at batch rate a system call is
  // cheaper than to be wrong.
  group.bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &group.bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
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
                      "feed %s: batch %llu: tensor %s has more items, by its %u rows and the "
                      "lengths that vary, than fit its %llu bytes; it is skipped",
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

// Is this process still a member of the group that it joined?
Look check_member(const rf_feed* feed) {
  // acquire, pairs with rf_leave.
  if (feed->left.load(std::memory_order_acquire) != 0) return error(detached(feed));
  const shm::GroupPage& group = *feed->group;
  // acquire, pairs with the supervisor's release: head and members were written before the state.
  const auto state = static_cast<GroupState>(group.head.state.load(std::memory_order_acquire));
  // relaxed: ordered by the load of state.
  const uint64_t epoch = group.head.epoch.load(std::memory_order_relaxed);
  if ((state != GroupState::kActive && state != GroupState::kJoining) || epoch != feed->epoch) {
    return error(fail(feed, RF_DETACHED, "feed %s: group %s has left the feed%s: attach again",
                      feed->name, feed->group_name,
                      group.head.policy == static_cast<uint32_t>(shm::GroupPolicy::kDetach)
                          ? " because it lagged longer than stall_ms"
                      : group.head.policy == static_cast<uint32_t>(shm::GroupPolicy::kSkip)
                          ? " because one of its batches was held while all descriptors went round"
                          : ""));
  }
  // acquire, pairs with the supervisor's release of the entry.
  const auto own =
      static_cast<MemberState>(group.members[feed->member].state.load(std::memory_order_acquire));
  if (own != MemberState::kLive && own != MemberState::kAtEnd) {
    return error(fail(feed, RF_DETACHED,
                      "feed %s, group %s: member %u has been removed by the supervisor: attach "
                      "again",
                      feed->name, feed->group_name, feed->member));
  }
  return {state == GroupState::kJoining ? Found::kJoining : Found::kNothing, RF_OK};
}

// The feed's own reason.
rf_status failed(const rf_feed* feed) {
  const shm::FeedState& state = feed_state(feed);
  const uint32_t bytes =
      state.reason_bytes < sizeof state.reason ? state.reason_bytes : sizeof state.reason;
  if (bytes == 0) return fail(feed, RF_FEED_FAILED, "feed %s has failed", feed->name);
  return fail(feed, RF_FEED_FAILED, "%.*s", static_cast<int>(bytes), state.reason);
}

rf_status stopped(const rf_feed* feed) {
  const shm::FeedState& state = feed_state(feed);
  const uint32_t bytes =
      state.reason_bytes < sizeof state.reason ? state.reason_bytes : sizeof state.reason;
  return fail(feed, RF_FEED_STOPPED,
              "feed %s was stopped before its end, batches that were under way are lost: %.*s",
              feed->name, static_cast<int>(bytes), state.reason);
}

// Why it has come to its end: the run is over, or it was drained.
rf_status ended(const rf_feed* feed, FeedPhase phase) {
  const shm::FeedState& state = feed_state(feed);
  const uint32_t bytes =
      state.reason_bytes < sizeof state.reason ? state.reason_bytes : sizeof state.reason;
  // Lanes close before the supervisor says why; an order to drain it has said before.
  if (bytes == 0 || phase == FeedPhase::kStarting || phase == FeedPhase::kRunning) {
    return fail(feed, RF_END, "the run is over");
  }
  return fail(feed, RF_END, "%.*s", static_cast<int>(bytes), state.reason);
}

Look look(rf_feed* feed, rf_batch* batch) {
  const Look membership = check_member(feed);
  if (membership.found == Found::kError) return membership;
  shm::GroupPage& group = *feed->group;
  shm::Member& self = group.members[feed->member];

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
  Lanes lanes;
  see_lanes(feed, over, &lanes);

  const bool ranked = group.head.kind == static_cast<uint32_t>(shm::GroupKind::kRanked);
  const uint64_t world = ranked ? group.head.world : 1;
  const uint64_t rank = ranked ? self.rank : 0;
  if (world < 1 || world > shm::kMembersMax || rank >= world) {
    return error(fail(feed, RF_DAMAGED, "feed %s, group %s: rank %llu of world %llu", feed->name,
                      feed->group_name, static_cast<unsigned long long>(rank),
                      static_cast<unsigned long long>(world)));
  }
  // relaxed: start was stored before the group's state, which was read with acquire; low is a hint.
  const uint64_t start = group.head.start.load(std::memory_order_relaxed);
  const uint64_t low = group.low.load(std::memory_order_relaxed);
  uint64_t base = start > low ? start : low;
  if (base == 0) base = 1;
  // relaxed: this process's own count, changed under the claiming lock or made smaller.
  const uint32_t max_hold = group.head.max_hold;
  const bool may_claim =
      max_hold == 0 || feed->held_count.load(std::memory_order_relaxed) < max_hold;

  uint64_t awaited = 0;    // lowest batch of this member's that may still come
  bool elsewhere = false;  // a live member has one that may come back
  for (uint64_t s = base + (rank + world - (base - 1) % world) % world;
       s < base + feed->descriptors && s <= shm::kBatchSeqMax; s += world) {
    std::atomic<uint64_t>& word = group.words[s % feed->descriptors];
    // acquire, pairs with whoever gave the batch back or closed it.
    uint64_t seen = word.load(std::memory_order_acquire);
    for (;;) {
      const Claim claim = shm::decode_claim(seen);
      if (!shm::claim_open(claim, s)) {
        if (claim.seq == s && claim.state == ClaimState::kTaken && claim.member != feed->member) {
          // acquire, pairs with mark_at_end of the holder.
          elsewhere = elsewhere || claim.member >= shm::kMembersMax ||
                      group.members[claim.member].state.load(std::memory_order_acquire) !=
                          static_cast<uint32_t>(MemberState::kAtEnd);
        }
        break;
      }
      // acquire, pairs with the release of seq in the publishing step's carry-out: descriptor and
      // payload of the batch are complete.
      const uint64_t published = descriptor(feed, s).seq.load(std::memory_order_acquire);
      if (published > s) break;  // gone before this group was entitled to it
      if (published < s) {
        const uint64_t lane = (s - 1) % feed->lanes;
        if (lanes.closed[lane] && s > lanes.newest[lane]) break;  // will never be
        if (awaited == 0) awaited = s;
        break;
      }
      if (!may_claim) {
        // Another thread may have released one meanwhile: then there is room.
        if (const rf_status status = check_exhausted(feed, lanes, s, s); status != RF_OK) {
          return error(status);
        }
      }
      if (shm::claim_take(word, seen, s, feed->member)) {
        RF_FAILPOINT("client.next.claimed");
        const uint8_t tries = claim.seq == s ? claim.tries : uint8_t{0};
        auto at_end = static_cast<uint32_t>(MemberState::kAtEnd);
        // release: as in mark_at_end; a batch came back after the end.
        self.state.compare_exchange_strong(at_end, static_cast<uint32_t>(MemberState::kLive),
                                           std::memory_order_release, std::memory_order_relaxed);
        if (s < feed->position) {
          // Had been worked on before the position was saved.
          pass_over(feed, s);
          break;
        }
        raise_low(feed, base);
        return took(feed, s, tries, batch);
      }
      // Another member was quicker; acquire as above.
      seen = word.load(std::memory_order_acquire);
    }
    // An ordered feed is taken in its order; of a relaxed one all that is ready, and nothing lies
    // beyond the newest.
    if (awaited != 0 && (feed->ordered || s > lanes.top)) break;
  }
  const uint64_t unfinished = raise_low(feed, base);

  if (phase == FeedPhase::kFailed) return error(failed(feed));
  if (phase == FeedPhase::kStopped) return error(stopped(feed));
  if (lanes.all_closed && awaited == 0) {
    // A feed without a single batch may have failed by that: its supervisor, if there is one, says
    // so in a moment, and rings the bell. relaxed: a hint; it is heard again in the next slice.
    if (lanes.top == 0 && !over && feed->supervisor_gone.load(std::memory_order_relaxed) == 0) {
      return {Found::kNothing, RF_OK};
    }
    mark_at_end(feed);
    if (!elsewhere) return {Found::kEnd, ended(feed, phase)};
    return {Found::kNothing, RF_OK};
  }
  // Everything in sight was finished, and more may lie behind it.
  if (awaited == 0 && unfinished > base) return {Found::kAgain, RF_OK};
  const uint64_t limit = awaited != 0 ? awaited : base + feed->descriptors;
  if (const rf_status status = check_exhausted(feed, lanes, awaited, limit); status != RF_OK) {
    return error(status);
  }
  return {Found::kNothing, RF_OK};
}

// A supervisor that does not know this member is that of another feed of the same name.
void note_answer(rf_feed* feed, const uint8_t* bytes, size_t count) {
  auto* reply = static_cast<AttachReply*>(calloc(1, sizeof(AttachReply)));
  uint64_t id = 0;
  if (reply != nullptr && decode_reply(bytes, count, &id, reply) && id == kRejoinId &&
      reply->error != 0) {
    // relaxed, both: hints; what follows is decided by the look at the processes.
    feed->replaced.store(1, std::memory_order_relaxed);
    feed->supervisor_gone.store(1, std::memory_order_relaxed);
  }
  free(reply);
}

// Reads what the supervisor says without being asked; its end is noted for the timeout's sentence.
void hear_supervisor(rf_feed* feed) {
  uint8_t event[4096];
  for (int i = 0; i < 16; ++i) {
    const ssize_t received = recv(feed->socket, event, sizeof event, MSG_DONTWAIT);
    if (received > 0) {
      note_answer(feed, event, static_cast<size_t>(received));
      continue;
    }
    // relaxed: for a message.
    if (received == 0 || (received < 0 && errno == ECONNRESET)) {
      feed->supervisor_gone.store(1, std::memory_order_relaxed);
      if (feed->replaced.load(std::memory_order_relaxed) == 0) find_supervisor(feed, false);
    }
    return;
  }
}

// Is the process there that this number and start time name? (a zombie is not)
bool process_lives(uint32_t pid, uint64_t start_ticks) {
  char path[32];
  char text[512];
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno != ENOENT;
  const ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  if (count <= 0) return false;
  text[count] = '\0';
  // Fields 3 (state) and 22 (start time) behind the name, which may contain anything.
  const char* at = strrchr(text, ')');
  if (at == nullptr || at[1] == '\0' || at[2] == 'Z' || at[2] == 'X') return false;
  for (int field = 2; field < 22 && at != nullptr; ++field) at = strchr(at + 1, ' ');
  return at != nullptr && strtoull(at, nullptr, 10) == start_ticks;
}

// Processes whose lanes have finished count too: they hold the memory for the next supervisor, who
// may have a dead member's batches to give to others.
bool any_lane_lives(const rf_feed* feed) {
  const uint32_t lanes = feed->control.header()->geometry[0];
  for (uint32_t i = 0; i < lanes; ++i) {
    const auto& page = *feed->control.at<const shm::LanePage>(shm::lane_page_offset(i));
    // relaxed, all: whoever wrote them is asked for at the kernel.
    const uint32_t pid = page.pid.load(std::memory_order_relaxed);
    if (pid != 0 && process_lives(pid, page.start_ticks.load(std::memory_order_relaxed))) {
      return true;
    }
  }
  return false;
}

// Nobody is left who could publish anything, and nobody to start such processes again.
bool is_abandoned(rf_feed* feed) {
  // relaxed, all: decided by the look at the processes; a race only moves the moment.
  if (!feed->sees_processes || feed->supervisor_gone.load(std::memory_order_relaxed) == 0 ||
      any_lane_lives(feed)) {
    feed->abandoned_ns.store(0, std::memory_order_relaxed);
    return false;
  }
  const uint64_t now = now_ns();
  uint64_t since = 0;
  if (feed->abandoned_ns.compare_exchange_strong(since, now, std::memory_order_relaxed))
    return false;
  return now - since > kAbandonedNs;
}

// Sleeps until the bell has another value than `seen`, at most `ms`. False if a signal came.
bool sleep_on_bell(rf_feed* feed, uint32_t seen, int64_t ms) {
  const timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
  const uint64_t before = now_ns();
  // Not FUTEX_PRIVATE: the word is in memory shared with the producing lanes. Waiting only reads
  // it, so a read-only mapping suffices.
  const long result = syscall(SYS_futex, &feed_bell(feed), FUTEX_WAIT, seen, &timeout, nullptr, 0);
  const bool interrupted = result != 0 && errno == EINTR;
  // relaxed, both: counters for rf_stats.
  feed->wait_ns.fetch_add(now_ns() - before, std::memory_order_relaxed);
  feed->waits.fetch_add(1, std::memory_order_relaxed);
  return !interrupted;
}

rf_status timed_out(const rf_feed* feed, Found found) {
  // relaxed, both: for a message.
  const bool gone = feed->supervisor_gone.load(std::memory_order_relaxed) != 0;
  const uint32_t phase = feed_state(feed).phase.load(std::memory_order_relaxed);
  static constexpr const char* kPhases[] = {"starting", "running", "draining",
                                            "ended",    "failed",  "stopped"};
  return fail(feed, RF_TIMEOUT, "feed %s, group %s: no batch came in time; the feed is %s%s%s",
              feed->name, feed->group_name, phase < 6 ? kPhases[phase] : "in an unknown state",
              found == Found::kJoining ? ", the group is still being admitted" : "",
              gone ? " and its supervisor has closed the connection" : "");
}

}  // namespace
}  // namespace ringfeed::client

using namespace ringfeed;          // NOLINT: this file defines the C functions
using namespace ringfeed::client;  // NOLINT

extern "C" rf_status rf_next(rf_feed* feed, int64_t timeout_ms, rf_batch* batch) {
  if (feed == nullptr || batch == nullptr || batch->struct_size < offsetof(rf_batch, token)) {
    return fail(feed, RF_INVALID,
                "next: a handle and a batch with struct_size set to sizeof(rf_batch) are needed");
  }
  if (feed->pid != getpid()) return forked(feed);
  const User user(feed);
  if (!user) return detached(feed);
  const Deadline deadline = Deadline::after(timeout_ms);
  for (;;) {
    // acquire: the value is older than the look below, so a batch published after the look has
    // changed it and the wait fails.
    const uint32_t rings = feed_bell(feed).load(std::memory_order_acquire);
    pthread_mutex_lock(&feed->claiming);
    const Look seen = look(feed, batch);
    pthread_mutex_unlock(&feed->claiming);
    if (seen.found == Found::kBatch || seen.found == Found::kEnd || seen.found == Found::kError) {
      return seen.status;
    }
    if (seen.found == Found::kAgain) continue;
    hear_supervisor(feed);
    if (is_abandoned(feed)) {
      return fail(feed, RF_FEED_FAILED,
                  "feed %s: its supervisor and all its workers are gone: start it again with "
                  "`ringfeed run`, and attach again",
                  feed->name);
    }
    const int64_t left = deadline.left_ms(seen.found == Found::kJoining ? 2 : kSliceMs);
    if (left == 0) return timed_out(feed, seen.found);
    if (!sleep_on_bell(feed, rings, left)) {
      return fail(feed, RF_INTERRUPTED, "feed %s: interrupted while waiting", feed->name);
    }
  }
}

extern "C" rf_status rf_pass_over(rf_feed* feed, uint64_t position) {
  if (feed == nullptr) return fail(feed, RF_INVALID, "pass over: a handle is needed");
  if (feed->pid != getpid()) return forked(feed);
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

extern "C" rf_status rf_release(rf_feed* feed, uint64_t seq) {
  if (feed == nullptr) return fail(feed, RF_INVALID, "release: a handle is needed");
  if (feed->pid != getpid()) return forked(feed);
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
  feed->held_count.fetch_sub(1, std::memory_order_relaxed);  // relaxed: own count
  const rf_status status =
      finished
          ? RF_OK
          : fail(feed, RF_DETACHED,
                 "feed %s, group %s: batch %llu had been taken away from member %u before it "
                 "was released",
                 feed->name, feed->group_name, static_cast<unsigned long long>(seq), feed->member);
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
  if (batch->seq == 0 ||
      feed->held[batch->seq % feed->descriptors].load(std::memory_order_acquire) != batch->seq) {
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
              "feed %s: batch %llu: its %llu bytes have the checksum %08x and had %08x when they "
              "were published: something has written into them",
              feed->name, seq, static_cast<unsigned long long>(batch->bytes), found, batch->crc32c);
}

extern "C" rf_status rf_release_batch(rf_feed* feed, const rf_batch* batch) {
  if (batch == nullptr) return fail(feed, RF_INVALID, "release: a batch is needed");
  return batch->seq == 0 ? RF_OK : rf_release(feed, batch->seq);
}
