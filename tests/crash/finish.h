// From a state that a death has left: new incarnations of all lanes bring the run to its end, in
// another process and on private pages, and what comes out is compared with the undisturbed run.
//
// One process finishes run after run, each with new lanes on fresh mappings of the memory as it
// then is. One that dies or hangs is replaced.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "ringfeed/shm/segment.h"
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
  struct Request {
    Survivors survivors;
    Way way;
  };
  void start();
  [[noreturn]] void serve(int requests, int replies);
  std::string run(const Request& request);
  std::string compare(const Trainer& trainer, std::uint64_t letters) const;
  std::string last_words();

  const Scenario& scenario_;
  testing::LaneRig& rig_;
  Memory& memory_;
  const Outcome& outcome_;
  pid_t child_ = -1;
  shm::Fd requests_;
  shm::Fd replies_;
  shm::Fd stderr_;  // what it says when it dies
};

}  // namespace ringfeed::crash
