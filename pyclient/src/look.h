// One look for a batch, and what may come of it: take.cc looks, membership.cc says whether this
// process may, wait.cc looks again and again.
#pragma once

#include "client.h"
#include "feed_access.h"

namespace ringfeed::client {

enum class Found {
  kBatch,    // claimed
  kNothing,  // not yet: sleep on the feed's bell
  kJoining,  // the group is being admitted; no bell tells its end
  kEnd,      // nothing will come
  kError,    // status and sentence are set
};

struct Look {
  Found found = Found::kNothing;
  rf_status status = RF_OK;
};

// The first batch of rank `rank` of `world`, from `s` (1 or more) on.
inline uint64_t first_of_rank(uint64_t s, uint64_t rank, uint64_t world) {
  return s + (rank + world - (s - 1) % world) % world;
}

// The producing lanes as one moment saw them. Lane l writes the batches l + 1, l + 1 + L, ...; each
// goes on by itself, and ends where it ends, so they may be any number of batches apart.
struct Lanes {
  uint64_t newest[shm::kDescriptorsMax];
  bool closed[shm::kDescriptorsMax];  // nothing more comes: by the lane's word, or the feed is over
  bool ended[shm::kDescriptorsMax];   // by the lane's word
  uint64_t top = 0;                   // newest batch of all
  bool all_closed = true;

  void see(const rf_feed* feed, bool over) {
    for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
      const shm::ProducerLine& line = producer_line(feed, lane);
      // acquire, pairs with the release of closed in the lane's carry-out: `newest`, read after it,
      // is then the last there will be.
      ended[lane] = line.closed.load(std::memory_order_acquire) != 0;
      closed[lane] = over || ended[lane];
      // acquire, pairs with the release of newest: batches up to it have their descriptors.
      newest[lane] = line.newest.load(std::memory_order_acquire);
      if (newest[lane] > top) top = newest[lane];
      all_closed = all_closed && closed[lane];
    }
  }
  // Can there be a descriptor of batch `s`? A lane has those of its last D numbers.
  bool describes(const rf_feed* feed, uint64_t s) const {
    const uint64_t last = newest[(s - 1) % feed->lanes];
    return s <= last && s + feed->descriptors > last;
  }
  // Its lane has ended before it.
  bool never(const rf_feed* feed, uint64_t s) const {
    const uint64_t lane = (s - 1) % feed->lanes;
    return ended[lane] && s > newest[lane];
  }
  // The first batch from `from` on that the lane has not published and that is of rank `rank`; 0:
  // the lane has none for that rank.
  uint64_t next_of(const rf_feed* feed, uint64_t lane, uint64_t from, uint64_t rank,
                   uint64_t world) const {
    const uint64_t lanes = feed->lanes;
    uint64_t s = newest[lane] == 0 ? lane + 1 : newest[lane] + lanes;
    if (s < from) s += (from - s + lanes - 1) / lanes * lanes;
    for (uint64_t i = 0; i < world; ++i, s += lanes) {
      if ((s - 1) % world == rank) return s;
    }
    return 0;
  }
  // The next numbers from *from on, [*from, *end), among which lanes have descriptors; false: there
  // are none.
  bool next_stretch(const rf_feed* feed, uint64_t* from, uint64_t* end) const {
    const auto first_of = [&](uint64_t lane) {
      return newest[lane] > feed->descriptors ? newest[lane] - feed->descriptors + 1 : 1;
    };
    uint64_t begin = UINT64_MAX;
    for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
      if (newest[lane] < *from) continue;
      const uint64_t first = first_of(lane) > *from ? first_of(lane) : *from;
      if (first < begin) begin = first;
    }
    if (begin == UINT64_MAX) return false;
    *from = begin;
    for (uint64_t lane = 0; lane < feed->lanes; ++lane) {
      if (first_of(lane) <= begin && newest[lane] >= *end) *end = newest[lane] + 1;
    }
    return true;
  }
};

inline Look error(rf_status status) { return {Found::kError, status}; }

// Claims the lowest batch that is this member's to take and fills *batch with it (kBatch). With
// feed->claiming held. After a death in here the supervisor finds the claim by its word.
Look look(rf_feed* feed, rf_batch* batch);

// Wakes lanes whose wake-up rf_ask has put off: before this process waits itself.
void settle_debts(rf_feed* feed);

// Is this process still a member of the group that it joined? kNothing (it is), kJoining or kError.
Look check_member(const rf_feed* feed);

// Why the feed gives nothing more: it has failed, was stopped, or has come to its end (the run is
// over, or it was drained). The sentence is the feed's own reason.
rf_status failed(const rf_feed* feed);
rf_status stopped(const rf_feed* feed);
rf_status ended(const rf_feed* feed, shm::FeedPhase phase);

}  // namespace ringfeed::client
