// RF_FAILPOINT("shm.journal.before_commit") names a place where a test may kill or stop this
// process. RF_FAILPOINT_ERROR("shm.segment.reserve") can also report a failure: it is true if a
// test wants one, and the code after it does what it does when the system refuses.
//
// Compiled in with -DRINGFEED_FAILPOINTS (presets debug and asan); otherwise they are nothing at
// all. The environment, which is read once when the process starts, arms one of them:
//   RINGFEED_FAILPOINT="name=action@count"   action: kill (SIGKILL), stop (SIGSTOP), exit, error;
//                                            count: on which passing, from 1
//   RINGFEED_FAILPOINT_ONCE=FILE             only for whoever makes this file, so that a successor
//                                            with the same environment lives; it says who it was
//   RINGFEED_FAILPOINT=list                  the process says all its places on standard output,
//                                            one a line (" error" behind those that can fail), and
//                                            ends
//
// The places are objects in their own section, which the linker puts side by side. So the list is
// complete even if none of them is passed, and a new place is on it at once. This works only in a
// function with one definition, not in a template or an inline function of a header. Depends on
// libc alone, so that the client library has failpoints too.
#pragma once

#ifdef RINGFEED_FAILPOINTS
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ringfeed::shm {

// alignas: the compiler must not align it more, so that neighbours in the section form an array.
class alignas(64) Failpoint {
 public:
  constexpr Failpoint(const char* name, bool fails) noexcept : name_(name), fails_(fails) {}
  // True: report a failure here.
  bool pass() noexcept;
  [[nodiscard]] const char* name() const noexcept { return name_; }
  [[nodiscard]] bool fails() const noexcept { return fails_; }

 private:
  const char* name_;
  bool fails_;
  std::atomic<std::uint64_t> passed_{0};
};
static_assert(sizeof(Failpoint) == 64, "an array without gaps");

// All places of this program or library.
Failpoint* failpoints_begin() noexcept;
Failpoint* failpoints_end() noexcept;

// For tests in this process: arms `name` for the count-th passing from now ("" disarms all).
void arm_failpoint(const char* name, char action, std::uint64_t count) noexcept;

}  // namespace ringfeed::shm

#define RF_FAILPOINT_HERE(name, fails)                                                     \
  [[gnu::section("rf_failpoints"), gnu::used]] static constinit ::ringfeed::shm::Failpoint \
  failpoint_here(name, fails)

#define RF_FAILPOINT(name)                    \
  do {                                        \
    RF_FAILPOINT_HERE(name, false);           \
    static_cast<void>(failpoint_here.pass()); \
  } while (false)

#define RF_FAILPOINT_ERROR(name)   \
  ([]() noexcept {                 \
    RF_FAILPOINT_HERE(name, true); \
    return failpoint_here.pass();  \
  }())
#else
#define RF_FAILPOINT(name) static_cast<void>(0)
#define RF_FAILPOINT_ERROR(name) false
#endif
