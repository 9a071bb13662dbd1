// Looking at batches without taking them.
#pragma once

#include "look.h"

namespace ringfeed::client {

// Copies the newest batch, unless this handle has given it before (kBatch, kError, kEnd). With
// feed->claiming held.
Look observe(rf_feed* feed, rf_batch* batch);

// Frees what observe() gave.
rf_status release_observed(rf_feed* feed, uint64_t seq);
// Is this one of them?
bool is_observed(rf_feed* feed, const rf_batch& batch);

// There is neither a supervisor nor will there be one soon: a hint.
bool supervisor_is_gone(const rf_feed* feed);

}  // namespace ringfeed::client
