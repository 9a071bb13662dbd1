// The processors that this process may use.
#pragma once

#include <sched.h>

#include <functional>
#include <vector>

namespace ringfeed::process {

// sched_getaffinity(), or what stands for it in a test.
using AskAffinity = std::function<int(pid_t, std::size_t, cpu_set_t*)>;

// Their numbers, ascending, of machines with any number of them; empty: the system does not say.
[[nodiscard]] std::vector<int> usable_processors(const AskAffinity& ask = ::sched_getaffinity);

}  // namespace ringfeed::process
