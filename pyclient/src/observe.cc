// An observer is no member: nobody waits for it, so the slot that it reads may be written at any
// moment. It copies first and then looks whether the copy is whole: the lane that gives up the
// batch says so in the slot's word before it writes the first byte (feed.h). Like a seqlock, but
// for the lock: the lane never waits, and a lane that dies in between leaves a word that makes this
// observer wait for the next batch.
#include "observe.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "feed_access.h"
#include "look.h"

namespace ringfeed::client {

struct Observed {
  Observed* next;
  uint64_t seq;
  uint8_t* data;
};

namespace {

using shm::FeedPhase;

// Of batches that are given up while they are copied: then the feed is faster than this process.
constexpr int kAttemptsMax = 8;

// The newest batch that was published since the last look; 0: there is none. Its number does not
// say: a lane may be far behind another that is slower now, or has ended.
uint64_t newest_batch(const rf_feed* feed, const Lanes& lanes) {
  uint64_t newest = 0;
  uint64_t newest_ns = 0;
  for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
    const uint64_t s = lanes.newest[lane];
    if (s <= feed->observed_newest[lane]) continue;
    // Read while it is replaced it may be any time: then the copy is not whole.
    const uint64_t ns = descriptor(feed, s).published_ns;
    if (newest == 0 || ns > newest_ns) {
      newest = s;
      newest_ns = ns;
    }
  }
  return newest;
}

// Each load is an acquire, so that those that check the copy come after it. Slots are whole pages,
// so the last word may be read beyond the batch's bytes.
void copy_out(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word =
        __atomic_load_n(reinterpret_cast<const uint64_t*>(from + at), __ATOMIC_ACQUIRE);
    memcpy(to + at, &word, sizeof word);
  }
}

bool is_whole(const rf_feed* feed, uint64_t s, uint64_t slot) {
  const auto* words = feed->payload.at<const std::atomic<uint64_t>>(shm::kGivenUpOffset);
  // acquire: the word of `seq` is read after it. Pairs with the store in FeedProducer::open().
  return words[slot].load(std::memory_order_acquire) < s &&
         descriptor(feed, s).seq.load(std::memory_order_acquire) == s;
}

// Batch `s`; kNothing: it is not there any more.
Look copy_batch(rf_feed* feed, uint64_t s, rf_batch* batch) {
  const shm::Descriptor& from = descriptor(feed, s);
  // acquire, pairs with the release of seq: what it describes is complete.
  if (from.seq.load(std::memory_order_acquire) != s) return {};
  rf_batch full{};
  full.seq = s;
  full.rows = from.rows;
  full.bytes = from.bytes;
  full.slot = from.slot;
  full.layout_id = from.layout_id;
  full.crc32c = from.crc32c;
  full.published_ns = from.published_ns;
  full.token[0] = from.token[0];
  full.token[1] = from.token[1];
  memcpy(full.ragged, from.ragged, sizeof full.ragged);
  if (full.slot >= feed->slots || full.bytes > feed->slot_bytes ||
      full.rows > feed->schema.rows_max) {
    return {};  // read while it was replaced; one that says so for ever is passed by
  }
  uint64_t bytes = full.bytes;
  for (uint32_t i = 0; i < feed->schema.tensor_count; ++i) {
    const rf_tensor& tensor = feed->tensors[i];
    if (!fits(tensor, full)) return {};
    const uint64_t item_bytes = tensor.item_bytes == 0 ? 1 : tensor.item_bytes;
    const uint64_t end = tensor.offset + rf_tensor_items(&tensor, &full) * item_bytes;
    if (end > bytes) bytes = end;
  }
  bytes = (bytes + 63) / 64 * 64;
  if (bytes > feed->slot_bytes) bytes = feed->slot_bytes;
  auto* const kept = static_cast<Observed*>(malloc(sizeof(Observed)));
  // Aligned as the tensors are in it.
  void* room = nullptr;
  if (kept == nullptr || posix_memalign(&room, 64, bytes == 0 ? 64 : bytes) != 0) {
    free(kept);
    return error(fail(feed, RF_NO_MEMORY,
                      "feed %s: no memory for a copy of batch %llu (%llu bytes)", feed->name,
                      static_cast<unsigned long long>(s), static_cast<unsigned long long>(bytes)));
  }
  auto* const data = static_cast<uint8_t*>(room);
  copy_out(data, feed->payload.data + slot_offset(feed, full.slot), bytes);
  if (!is_whole(feed, s, full.slot)) {
    free(data);
    free(kept);
    return {};
  }
  *kept = {feed->observed, s, data};
  feed->observed = kept;
  feed->users.fetch_add(1, std::memory_order_relaxed);  // relaxed, both: as in took()
  feed->held_count.fetch_add(1, std::memory_order_relaxed);
  full.data = data;
  full.struct_size = batch->struct_size;
  memcpy(batch, &full, batch->struct_size < sizeof full ? batch->struct_size : sizeof full);
  return {Found::kBatch, RF_OK};
}

}  // namespace

Look observe(rf_feed* feed, rf_batch* batch) {
  // acquire, pairs with rf_leave.
  if (feed->left.load(std::memory_order_acquire) != 0) return error(detached(feed));
  // acquire, pairs with the supervisor's release: what was published before the end is seen.
  const auto phase = static_cast<FeedPhase>(feed_state(feed).phase.load(std::memory_order_acquire));
  Lanes lanes;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    lanes = {};
    lanes.see(feed, false);
    const uint64_t s = newest_batch(feed, lanes);
    if (s == 0) break;
    const Look seen = copy_batch(feed, s, batch);
    if (seen.found == Found::kBatch) {
      // What was published before it is passed over.
      memcpy(feed->observed_newest, lanes.newest, feed->lanes * sizeof lanes.newest[0]);
    }
    if (seen.found != Found::kNothing) return seen;
  }
  if (phase == FeedPhase::kFailed) return error(failed(feed));
  if (phase == FeedPhase::kStopped) return error(stopped(feed));
  if (phase == FeedPhase::kEnded || lanes.all_closed) return {Found::kEnd, ended(feed, phase)};
  return {};
}

rf_status release_observed(rf_feed* feed, uint64_t seq) {
  pthread_mutex_lock(&feed->claiming);
  Observed** at = &feed->observed;
  while (*at != nullptr && (*at)->seq != seq) at = &(*at)->next;
  Observed* const found = *at;
  if (found != nullptr) *at = found->next;
  pthread_mutex_unlock(&feed->claiming);
  if (found == nullptr) {
    return fail(feed, RF_INVALID,
                "feed %s: batch %llu is not held by this handle: it was released before, or never "
                "seen",
                feed->name, static_cast<unsigned long long>(seq));
  }
  free(found->data);
  free(found);
  feed->held_count.fetch_sub(1, std::memory_order_relaxed);  // relaxed: own count
  put_user(feed);
  return RF_OK;
}

bool is_observed(rf_feed* feed, const rf_batch& batch) {
  pthread_mutex_lock(&feed->claiming);
  const Observed* at = feed->observed;
  while (at != nullptr && (at->seq != batch.seq || at->data != batch.data)) at = at->next;
  pthread_mutex_unlock(&feed->claiming);
  return at != nullptr;
}

bool supervisor_is_gone(const rf_feed* feed) {
  // relaxed: a hint.
  const uint32_t pid = feed_state(feed).supervisor_pid.load(std::memory_order_relaxed);
  return pid == 0 || (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
}

}  // namespace ringfeed::client
