#include "supervisor/group/backtrace.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "ringfeed/shm/file.h"

namespace ringfeed::process {

// The thread is found by its name (workers/runtime/worker.cc): that of the lane, or, where the main
// thread runs the only lane of a process, that of the group, which is called the same.
bool ask_for_backtrace(pid_t pid, const std::string& lane) {
  constexpr std::size_t kNameBytesMax = 15;
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  const Result<std::vector<std::string>> threads = shm::names_in(tasks);
  if (!threads) return false;  // it has ended
  for (const std::string& name : {lane, "rf-" + lane}) {
    for (const std::string& task : *threads) {
      std::string comm;
      std::getline(std::ifstream(fmt::format("{}/{}/comm", tasks, task)), comm);
      if (comm != name.substr(0, kNameBytesMax)) continue;
      return ::syscall(SYS_tgkill, pid, std::atoi(task.c_str()), SIGUSR2) == 0;
    }
  }
  return false;
}

}  // namespace ringfeed::process
