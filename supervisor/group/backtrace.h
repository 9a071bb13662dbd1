// Asks a lane that hangs where it is.
#pragma once

#include <sys/types.h>

#include <string>

namespace ringfeed::process {

// Has the thread that runs this lane write its backtrace into the worker's log, and with a stage in
// Python also Python's (workers/runtime/fault.h). The process must not be reaped yet. False: there
// is no such thread.
bool ask_for_backtrace(pid_t pid, const std::string& lane);

}  // namespace ringfeed::process
