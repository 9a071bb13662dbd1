// Waiting for a batch: a look, then sleep on the feed's bell, until a batch, the end, a timeout or
// the proof that nobody is left who could publish one. Modelled in tests/model/wakeup_feed.pml.
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

#include "feed_access.h"
#include "look.h"
#include "notices.h"
#include "observe.h"

namespace ringfeed::client {
namespace {

// So long nobody may live before waiting is given up: a supervisor may be on its way.
constexpr uint64_t kAbandonedNs = 5'000'000'000;

// A supervisor that does not know this member is that of another feed of the same name.
void note_answer(rf_feed* feed, const uint8_t* bytes, size_t count) {
  uint64_t of = 0;
  if (decode_id(bytes, count, &of) && of == kWaitId) return note_notices(feed, bytes, count);
  if (of == 0 && note_notice(feed, bytes, count)) return;
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
  uint8_t event[kHeardBytes];
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
  const uint64_t slept_ns = now_ns() - before;
  // relaxed, all: counters, for rf_stats, note_waited and the supervisor's status.
  feed->wait_ns.fetch_add(slept_ns, std::memory_order_relaxed);
  feed->waits.fetch_add(1, std::memory_order_relaxed);
  feed->next_wait_ns.fetch_add(slept_ns, std::memory_order_relaxed);
  if (!feed->observes) {
    feed->group->members[feed->member].waited_ns.fetch_add(slept_ns, std::memory_order_relaxed);
    // While it waits: nobody would see one that waits for ever.
    feed->group->waits.sum_ns.fetch_add(slept_ns, std::memory_order_relaxed);
  }
  return !interrupted;
}

// A batch has come: the group's page counts how long it was waited for, in calls before this one
// too.
void note_waited(rf_feed* feed) {
  if (feed->observes) return;
  // relaxed, all: counters that people look at.
  const uint64_t ns = feed->next_wait_ns.exchange(0, std::memory_order_relaxed);
  feed->group->waits.counts[shm::wait_bucket(ns)].fetch_add(1, std::memory_order_relaxed);
}

rf_status timed_out(const rf_feed* feed, Found found) {
  // relaxed, both: for a message.
  const bool gone = feed->supervisor_gone.load(std::memory_order_relaxed) != 0;
  const uint32_t phase = feed_state(feed).phase.load(std::memory_order_relaxed);
  static constexpr const char* kPhases[] = {"starting", "running", "draining",
                                            "ended",    "failed",  "stopped"};
  return fail(feed, RF_TIMEOUT, "feed %s%s%s: no batch came in time; the feed is %s%s%s",
              feed->name, feed->observes ? "" : ", group ", feed->group_name,
              phase < 6 ? kPhases[phase] : "in an unknown state",
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
  note_return(feed);
  if (feed->on_notice != nullptr && !feed->observes) hear_supervisor(feed);
  const Deadline deadline = Deadline::after(timeout_ms);
  for (;;) {
    // acquire: the value is older than the look below, so a batch published after the look has
    // changed it and the wait fails.
    const uint32_t rings = feed_bell(feed).load(std::memory_order_acquire);
    pthread_mutex_lock(&feed->claiming);
    const Look seen = feed->observes ? observe(feed, batch) : look(feed, batch);
    pthread_mutex_unlock(&feed->claiming);
    if (seen.found == Found::kBatch) {
      note_batch(feed);
      note_waited(feed);
    }
    if (seen.found == Found::kBatch || seen.found == Found::kEnd || seen.found == Found::kError) {
      return seen.status;
    }
    if (!feed->observes) {
      settle_debts(feed);
      hear_supervisor(feed);
    } else {
      // relaxed: a hint; the look at the processes decides.
      feed->supervisor_gone.store(supervisor_is_gone(feed) ? 1 : 0, std::memory_order_relaxed);
    }
    if (is_abandoned(feed)) {
      return fail(feed, RF_FEED_FAILED,
                  "feed %s: its supervisor and all its workers are gone: start it again with "
                  "`ringfeed run`, and attach again",
                  feed->name);
    }
    const int64_t left = deadline.left_ms(seen.found == Found::kJoining ? 2 : kSliceMs);
    if (left == 0) return timed_out(feed, seen.found);
    note_wait(feed);
    if (!sleep_on_bell(feed, rings, left)) {
      return fail(feed, RF_INTERRUPTED, "feed %s: interrupted while waiting", feed->name);
    }
  }
}
