// What a worker does with its last breath: the lane whose thread faulted says so on its page, and a
// backtrace goes to the log. Then the process dies of the signal as it would have.
//
// And what it answers when it is asked where a lane is: SIGUSR2 to the thread of a lane
// (supervisor/feed/replay.cc) has it write its backtrace to the log and go on. Whoever asks does
// so before he kills a lane that hangs: a backtrace may wait for a lock that the thread holds.
#pragma once

#include <cstddef>
#include <vector>

#include "ringfeed/shm/lane_page.h"

namespace ringfeed {

// Once per process. Under a sanitizer faults are left to it: it has handlers of its own.
void watch_for_faults();

// While it lives, faults of this thread are this lane's.
class FaultWatch {
 public:
  explicit FaultWatch(shm::LanePage& page);
  ~FaultWatch();
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;

 private:
  std::vector<std::byte> stack_;  // for the handler: the thread's own may be what has run out
};

}  // namespace ringfeed
