// The worker process: maps its part of the feed, recovers its lanes, runs one thread per lane.
#pragma once

#include <unistd.h>

#include "workers/runtime/registry.h"

namespace ringfeed {

// Which thread runs the first lane of a worker: its own, as every other lane's, or the one that
// calls run_worker(), for stages that call what only the main thread of a process may do.
enum class FirstLane { kOwnThread, kCallersThread };

// Runs the stage group that the supervisor describes over `setup_fd` (proto/worker.proto). Returns
// the exit status: 0 when all lanes have finished or were told to stop. Throws Error if it cannot
// start. `log_fd`: the write end of the pipe that the supervisor empties.
int run_worker(int setup_fd, const Registry& registry, FirstLane first = FirstLane::kOwnThread,
               int log_fd = STDERR_FILENO);

// Reads a DataLoaderConfig from standard input and writes its PipelinePlan to standard output.
int print_plan(const Registry& registry);

// Reads the same, and writes its DataLooks.
int print_looks(const Registry& registry);

// Writes its KindList to standard output.
int print_kinds(const Registry& registry);

}  // namespace ringfeed
