// Where the parts of a mapped feed lie, and the small acts that several files need.
#pragma once

#include "client.h"

namespace ringfeed::client {

inline const shm::FeedState& feed_state(const rf_feed* feed) {
  return *feed->control.at<const shm::FeedState>(shm::kFeedStateOffset);
}
inline const shm::ProducerLine& producer_line(const rf_feed* feed, uint64_t lane) {
  return *feed->feed_control.at<const shm::ProducerLine>(shm::kProducerLinesOffset +
                                                         lane * sizeof(shm::ProducerLine));
}
inline const shm::Descriptor& descriptor(const rf_feed* feed, uint64_t s) {
  return *feed->feed_control.at<const shm::Descriptor>(
      shm::descriptors_offset(feed->lanes) + s % feed->descriptors * sizeof(shm::Descriptor));
}
inline const std::atomic<uint32_t>& feed_bell(const rf_feed* feed) {
  return feed->feed_control.at<const shm::Bell>(shm::kFeedBellOffset)->rings;
}

inline uint64_t slot_offset(const rf_feed* feed, uint64_t slot) {
  return shm::kPageBytes + slot * feed->slot_bytes;
}

inline rf_status forked(const rf_feed* feed) {
  return fail(feed, RF_FORKED,
              "feed %s: this handle belongs to process %d, not to its child: attach in the child",
              feed->name, static_cast<int>(feed->pid));
}

// Looks for the supervisor that has come after one that died, and tells it of this member; does not
// wait for its answer. At most every 100 ms unless `now`. False: there is none yet.
bool find_supervisor(rf_feed* feed, bool now);

// Gives up one use of the memory; the last one leaves the feed and unmaps it.
void put_user(rf_feed* feed);

// A call under way: what is mapped stays so until it ends. False if nothing is mapped any more.
class User {
 public:
  explicit User(rf_feed* feed) : feed_(feed) {
    // relaxed: only whether there is a use left decides, and then the memory has been there all
    // along.
    uint32_t users = feed->users.load(std::memory_order_relaxed);
    while (users != 0 &&
           !feed->users.compare_exchange_weak(users, users + 1, std::memory_order_relaxed,
                                              std::memory_order_relaxed)) {
    }
    if (users == 0) feed_ = nullptr;
  }
  ~User() {
    if (feed_ != nullptr) put_user(feed_);
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;
  explicit operator bool() const { return feed_ != nullptr; }

 private:
  rf_feed* feed_;
};

inline rf_status detached(const rf_feed* feed) {
  return fail(feed, RF_DETACHED, "feed %s: detached by this process", feed->name);
}

// This member will ask for nothing more that it is not given back: the others may end without it.
inline void mark_at_end(rf_feed* feed) {
  auto live = static_cast<uint32_t>(shm::MemberState::kLive);
  // release: the claims that led here are seen by whoever counts this member as at its end. An
  // exchange and not a store: an entry that the supervisor has freed stays free.
  feed->group->members[feed->member].state.compare_exchange_strong(
      live, static_cast<uint32_t>(shm::MemberState::kAtEnd), std::memory_order_release,
      std::memory_order_relaxed);
}

}  // namespace ringfeed::client
