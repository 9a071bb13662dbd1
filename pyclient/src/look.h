// One look for a batch, and what may come of it: take.cc looks, membership.cc says whether this
// process may, wait.cc looks again and again.
#pragma once

#include "client.h"

namespace ringfeed::client {

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

inline Look error(rf_status status) { return {Found::kError, status}; }

// Claims the lowest batch that is this member's to take and fills *batch with it (kBatch). With
// feed->claiming held. After a death in here the supervisor finds the claim by its word.
Look look(rf_feed* feed, rf_batch* batch);

// Is this process still a member of the group that it joined? kNothing (it is), kJoining or kError.
Look check_member(const rf_feed* feed);

// Why the feed gives nothing more: it has failed, was stopped, or has come to its end (the run is
// over, or it was drained). The sentence is the feed's own reason.
rf_status failed(const rf_feed* feed);
rf_status stopped(const rf_feed* feed);
rf_status ended(const rf_feed* feed, shm::FeedPhase phase);

}  // namespace ringfeed::client
