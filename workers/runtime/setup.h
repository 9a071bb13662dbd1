// What the supervisor sends a new process: its part of the feed, and the descriptors of its memory.
#pragma once

#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"

namespace ringfeed {

class WorkerSetup;

// One packet, with its descriptors added to `descriptors`; empty at the end of the stream. Throws
// Error (kIo).
std::string receive_packet(int socket, std::vector<shm::Fd>& descriptors);

// The setup lies in a memfd, which is descriptor 0; those of the segments follow, in as many
// packets as it takes. Throws Error (kIo).
WorkerSetup receive_setup(int socket, std::vector<shm::Fd>& descriptors);

}  // namespace ringfeed
