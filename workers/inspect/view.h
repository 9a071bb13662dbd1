// Shows records that other programs of ringfeed have: those that `ringfeed try` passes on for a
// stage that is not in Python, and dead letters.
#pragma once

#include "workers/inspect/describers.h"

namespace ringfeed::inspect {

// Reads records from the descriptor until its end, and prints each, as a domain describes it. Each
// stands behind four numbers of 64 bits: its length, its two tags, and 1 if it came out of the
// stage, 0 if it goes in. At the end "done 0" goes over the socket. The exit status.
int view(int socket, int records, const Describers& describers);

// Of the files whose paths come over standard input, each with a byte 0 behind it: what they hold,
// as a domain describes it, each with a byte 0 behind it. Nothing is said of one that cannot be
// read. The exit status.
int describe_records(const Describers& describers);

}  // namespace ringfeed::inspect
