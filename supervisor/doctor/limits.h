// What this process may have, and how a shell raises it.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

// The hard limit: a program may raise its soft one up to there. kNoLimit: there is none.
[[nodiscard]] std::uint64_t hard_limit(__rlimit_resource resource);
[[nodiscard]] std::uint64_t soft_limit(__rlimit_resource resource);

// "prlimit --pid $$ --nofile=4096:4096": for the shell that it is typed into, and what that starts.
// `name` as prlimit(1) has it; kNoLimit: unlimited. Beyond the hard limit it takes
// CAP_SYS_RESOURCE; where that is not to be had there is no command, and the advice names what is
// done outside.
[[nodiscard]] Remedy raise_limit(const std::string& name, std::uint64_t value, bool beyond_hard);

// Processes and threads that this user may still start: by RLIMIT_NPROC, which counts all of them
// and does not count for root, and by control groups. nullopt: no limit.
struct TaskRoom {
  std::uint64_t left = 0;
  std::uint64_t limit = 0;
  std::string file = {};  // of the control group; "": RLIMIT_NPROC
  // As many as are there, and `more`.
  [[nodiscard]] Remedy remedy(std::uint64_t more) const;
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] std::optional<TaskRoom> task_room();

}  // namespace ringfeed::doctor
