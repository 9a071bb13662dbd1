// What a worker is told at its start: its lanes, their ends of rings, and the segments that it
// maps.
//
// A worker gets exactly the segments that its lanes need: control (writable: its lane pages and the
// bells), the locks (never mapped), rings and head lines that it reads or writes, its arenas, and,
// if it writes batches, feed control, payload and all group pages. It also gets the descriptors of
// all others, to hold and not to map: as long as one worker lives, no memory is lost with the rest,
// and the next supervisor finds all of it there. Descriptor 0 is the serialized setup itself, so
// that the packet stays small; SegmentSetup.fd_index counts from 1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/layout/feed_memory.h"

namespace ringfeed {
class WorkerSetup;
}

namespace ringfeed::layout {

struct SetupFacts {
  std::string config_bytes = {};  // the serialized DataLoaderConfig
  std::uint64_t seed = 0;
  bool ordered = true;
  std::uint32_t supervisor_pid = 0;
  std::string dead_letters = {};  // directory
  std::string socket = {};        // control socket
};

// `setup`, and the segments whose descriptors go with it: those behind its fd_index, in that order
// (the first is fd_index 1), then the others.
struct GroupSetup {
  std::vector<std::uint32_t> segments;
};
GroupSetup fill_setup(const FeedMemory& memory, std::uint32_t group, const SetupFacts& facts,
                      WorkerSetup& setup);

}  // namespace ringfeed::layout
