// Dead letters on disk: the bytes of a record that killed its worker too often, and what is known
// about it.
//
// DIRECTORY/STAGE-PORT-LANE.RING-SEQ.record holds the record as it stood in the ring, the same
// name with .json who it was (feed, stage, node, lane, port, ring, seq, lineage, user, bytes,
// xxh3), what happened (deaths, cause), and what it takes to give it to its stage once more,
// elsewhere and later (seed, config, version): supervisor/cli/letter.h reads it.
#pragma once

#include <cstdint>
#include <string>

#include "ringfeed/shm/result.h"
#include "workers/runtime/lane.h"

namespace ringfeed {

struct DeadLetterFacts {
  std::string directory = {};
  std::string feed = {};
  std::string stage = {};
  std::string node = {};
  std::uint32_t lane = 0;
  std::string cause = {};  // what the supervisor knows: signal, last words
  std::uint32_t deaths = 0;
  std::uint64_t seed = 0;
  std::string config = {};   // of the whole feed, in text format
  std::string version = {};  // of this program
};

// Writes both files, each complete or absent; writing again replaces them by the same. Returns the
// path of the record. Error: kIo, with the path and the system's reason.
Result<std::string> write_dead_letter(const DeadLetterFacts& facts, const DeadLetter& letter);

}  // namespace ringfeed
