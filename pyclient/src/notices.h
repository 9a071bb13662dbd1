// What the people who run a trainer should hear: for whom it waits, who has waited for it, that the
// feed leaves out much of its data, and that it stands still.
//
// This library asks the supervisor for the first two, over the member's own connection, and never
// waits for an answer: it is read with whatever else the supervisor says. A question or an answer
// that is lost with a supervisor is asked again. The others the supervisor says by itself, a few
// times in a run, so somebody who wants notices looks into the socket with each batch.
#pragma once

#include "client.h"

namespace ringfeed::client {

// The caller has come for a batch, or gives one back: asks who has waited for it, if it comes after
// a pause.
void note_return(rf_feed* feed);
// The caller is about to sleep because there is no batch: after some seconds, asks for whom.
void note_wait(rf_feed* feed);
// It has got one.
void note_batch(rf_feed* feed);
// An answer to one of these questions.
void note_notices(rf_feed* feed, const uint8_t* bytes, size_t count);
// What it says without being asked. False: it is no notice.
bool note_notice(const rf_feed* feed, const uint8_t* bytes, size_t count);

}  // namespace ringfeed::client
