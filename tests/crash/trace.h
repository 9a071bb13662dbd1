// A scenario run once, stepped: every state of its memory, in order.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/crash/scenario.h"
#include "tests/crash/stepper.h"

namespace ringfeed::crash {

// The states of one round; of the trainer's and of other changes between rounds if `stepped` is
// false: these are nobody's deaths.
struct Round {
  bool stepped = false;
  std::uint64_t act = 0;  // acts before it
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
  std::vector<std::size_t> acts;  // who was next: a lane, or the trainer (the number of lanes)
};

// Runs the scenario on the rig, which is built and has not been used. The order of the rounds comes
// from the seed. A lane that has found nothing to do is asleep until its next round, so that its
// neighbours ring its bell.
Trace trace(const Scenario& scenario, testing::LaneRig& rig, const Memory& memory,
            const Outcome& outcome, std::uint64_t seed, bool every_instruction);

// Makes the acts before this round again, on another rig of the scenario, and dies in it behind so
// many states.
[[noreturn]] void die(const Scenario& scenario, const Trace& trace, const Round& round,
                      std::uint64_t states, testing::LaneRig& rig, const Memory& memory,
                      std::uint64_t* letters);

}  // namespace ringfeed::crash
