// Whether this process is still a member of its group, and why its feed gives nothing more.
// Modelled in tests/model/claims.pml.
#include "feed_access.h"
#include "look.h"

namespace ringfeed::client {

using shm::FeedPhase;
using shm::GroupState;
using shm::MemberState;

Look check_member(const rf_feed* feed) {
  // acquire, pairs with rf_leave.
  if (feed->left.load(std::memory_order_acquire) != 0) return error(detached(feed));
  const shm::GroupPage& group = *feed->group;
  // acquire, pairs with the supervisor's release: head and members were written before the state.
  const auto state = static_cast<GroupState>(group.head.state.load(std::memory_order_acquire));
  // relaxed: ordered by the load of state.
  const uint64_t epoch = group.head.epoch.load(std::memory_order_relaxed);
  if ((state != GroupState::kActive && state != GroupState::kJoining) || epoch != feed->epoch) {
    return error(
        fail(feed, RF_DETACHED, "feed %s: group %s has left the feed%s: attach again", feed->name,
             feed->group_name,
             group.head.policy == static_cast<uint32_t>(shm::GroupPolicy::kDetach)
                 ? " because it lagged longer than stall_ms"
             : group.head.policy == static_cast<uint32_t>(shm::GroupPolicy::kSkip)
                 ? " because one of its batches was held while all other descriptors were used"
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
              "feed %s was stopped before its end, batches in progress are lost: %.*s", feed->name,
              static_cast<int>(bytes), state.reason);
}

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

}  // namespace ringfeed::client
