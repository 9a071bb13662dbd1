// From a state that a death has left: new incarnations of all lanes bring the run to its end, in a
// process of their own, and what comes out is compared with the undisturbed run.
#pragma once

#include <cstdint>
#include <string>

#include "tests/crash/memory.h"
#include "tests/crash/scenario.h"

namespace ringfeed::crash {

// What is outside of the shared memory at the moment of a death, and survives it.
struct Survivors {
  std::size_t dead = 0;  // the lane
  Trainer::Position trainer;
  std::uint64_t letters = 0;
};

enum class Way : std::uint8_t {
  kAtOnce = 0,  // all lanes come back, then all go on
  kLate = 1,    // the others run on until they block, then the dead one comes back
};
inline constexpr std::size_t kWays = 2;

class Finisher {
 public:
  // `rig` and `memory` are this process's; they are left as they are.
  Finisher(const Scenario& scenario, testing::LaneRig& rig, Memory& memory, const Outcome& outcome);
  ~Finisher();
  Finisher(const Finisher&) = delete;
  Finisher& operator=(const Finisher&) = delete;

  // What was wrong; empty: nothing.
  std::string finish(const Survivors& survivors, Way way);

 private:
  std::string run(const Survivors& survivors, Way way);
  std::string compare(const Trainer& trainer, std::uint64_t letters) const;
  std::string last_words(int status) const;

  const Scenario& scenario_;
  testing::LaneRig& rig_;
  Memory& memory_;
  const Outcome& outcome_;
  char* text_;     // shared with the child
  int stderr_fd_;  // what it says when it dies
};

}  // namespace ringfeed::crash
