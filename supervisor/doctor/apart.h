// Checks, each in a process of its own: one that crashes, or hangs on a file system that is away,
// costs its own answer and no other. All run at a time, so the slowest decides how long it takes.
//
// Such a process leads a process group, which is killed when its time is over, with whatever it has
// started. It has no standard streams: where it cannot be killed (it waits for a disk), nobody who
// reads ours waits for it. It may write no file: SIGXFSZ and the like are ignored, and Python is
// told to keep its compiled modules to itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

struct Check {
  std::string name;
  std::function<Findings()> look;
  // It asks the kernel alone, and is looked at here if no process can be started.
  bool asks_kernel = false;
};

// The findings of each, in the order of the checks. What throws, dies, or has not answered within
// `limit_ms` is not known.
[[nodiscard]] Findings look_apart(const std::vector<Check>& checks, int limit_ms);

// In a check: what it and the programs it has started have written to the standard error, the last
// line of it; "": nothing.
[[nodiscard]] std::string last_words();

}  // namespace ringfeed::doctor
