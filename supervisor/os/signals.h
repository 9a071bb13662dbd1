// What signals mean to a supervisor and to the processes that it starts.
//
//   SIGTERM, SIGINT   drain; the second one stops now
//   SIGQUIT           stops now
//   SIGHUP            the log file is opened anew
//   all others        logged: those that would end a process and are sent by hand, by schedulers as
//                     a warning or by a limit (SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, real-time
//                     signals, ...)
//
//
// None of them depends on what the process has inherited: whoever starts it with signals blocked or
// ignored (nohup) gets the same. Faults (SIGSEGV and its like) and SIGKILL are as ever.
#pragma once

#include <signal.h>

#include <string>

namespace ringfeed::process {

// From the first line of `ringfeed run` on: a warning that comes while a feed is being prepared
// waits until there is somebody to log it, and children ignore it.
void hold_warnings();

// All signals above are held back for a signalfd, which is the caller's; nothing else is blocked.
// SIGPIPE is ignored, and children can be waited for.
[[nodiscard]] sigset_t take_signals();

// "signal 10 (User defined signal 1)".
[[nodiscard]] std::string signal_text(int signal);

}  // namespace ringfeed::process
