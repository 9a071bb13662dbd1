// RF_FAILPOINT("shm.journal.before_commit") names a place where a test may kill, stall or stop this
// process.
//
// Compiled in with -DRINGFEED_FAILPOINTS (presets debug and asan); nothing at all otherwise. The
// environment arms one:
//   RINGFEED_FAILPOINT="name=action@count"   action: kill (SIGKILL), stop (SIGSTOP), exit; count:
//   on which passing, from 1
// Every place that this process has passed is registered by name, so that a test which has once
// passed all of them can iterate over all of them.
#pragma once

#ifdef RINGFEED_FAILPOINTS
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::shm {

class Failpoint {
 public:
  explicit Failpoint(const char* name) noexcept;
  void pass() noexcept;

 private:
  const char* name_;
  std::atomic<std::uint64_t> passed_{0};
  std::uint64_t fire_at_ = 0;
  char action_ = 0;
};

// For tests in this process: arms `name` for the count-th passing from now ("" disarms all).
void arm_failpoint(const char* name, char action, std::uint64_t count) noexcept;
// For tests: the names beginning with `prefix` of the places passed so far, in order, each once.
std::vector<std::string> failpoints(std::string_view prefix);

}  // namespace ringfeed::shm

#define RF_FAILPOINT(name)                                  \
  do {                                                      \
    static ::ringfeed::shm::Failpoint failpoint_here(name); \
    failpoint_here.pass();                                  \
  } while (false)
#else
#define RF_FAILPOINT(name) static_cast<void>(0)
#endif
