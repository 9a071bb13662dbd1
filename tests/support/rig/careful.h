// Signals of tests go to one process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdio>
#include <cstdlib>

namespace ringfeed::careful {

// kill(2). A test ends that asks for 0, which a status has where no process is and which would be
// the group of the test and its runner, or for -1, which a fork() returns that failed, and which
// would be everybody.
inline int kill_one(long long pid, int signal) {
  if (pid <= 1) {
    std::fprintf(stderr, "a signal %d for process %lld, which is no process of a test's\n", signal,
                 pid);
    std::abort();
  }
  return ::kill(static_cast<pid_t>(pid), signal);
}

}  // namespace ringfeed::careful
