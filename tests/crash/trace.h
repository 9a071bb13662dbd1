// A scenario run once in a traced child: every state of its memory, in order.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/crash/lanes.h"
#include "tests/crash/scenario.h"

namespace ringfeed::crash {

// The states of one round; of the trainer's and of other changes between rounds if `stepped` is
// false: these are nobody's deaths.
struct Round {
  bool stepped = false;
  std::size_t lane = 0;
  Kind kind = Kind::kWait;
  std::uint64_t first_state = 0;
  std::uint64_t state_count = 0;
  std::uint64_t instructions = 0;
  Trainer::Position trainer = {};  // during the round
};

struct Trace {
  Image base;
  Log log;
  std::vector<Round> rounds;
};

// Runs the scenario on the rig, which is built and has not been used. The order of the rounds comes
// from the seed.
Trace trace(const Scenario& scenario, testing::LaneRig& rig, const Memory& memory,
            const Outcome& outcome, std::uint64_t seed, bool every_instruction);

}  // namespace ringfeed::crash
