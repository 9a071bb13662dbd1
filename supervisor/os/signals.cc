#include "supervisor/os/signals.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace ringfeed::process {
namespace {

constexpr std::array kEnds = {SIGTERM, SIGINT, SIGQUIT};
constexpr std::array kWarnings = {SIGHUP,  SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF,
                                  SIGXCPU, SIGXFSZ, SIGPWR,  SIGIO,   SIGSTKFLT};

// Ignored as well as blocked: a blocked one is delivered nevertheless to whoever waits for it, and
// a process that is started from here inherits that it ignores them, from its first instruction on.
void add_warnings(sigset_t& set) {
  const auto add = [&](int signal) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    // A profiler's, say.
    if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) return;
    sigaddset(&set, signal);
    ::signal(signal, SIG_IGN);
  };
  for (const int signal : kWarnings) add(signal);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) add(signal);
}

}  // namespace

void hold_warnings() {
  sigset_t warnings;
  sigemptyset(&warnings);
  add_warnings(warnings);
  ::pthread_sigmask(SIG_BLOCK, &warnings, nullptr);
}

sigset_t take_signals() {
  sigset_t handled;
  sigemptyset(&handled);
  add_warnings(handled);
  for (const int signal : kEnds) sigaddset(&handled, signal);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &handled, nullptr);
  return handled;
}

std::string signal_text(int signal) {
  const char* const name = ::strsignal(signal);
  return fmt::format("signal {} ({})", signal, name == nullptr ? "unknown" : name);
}

}  // namespace ringfeed::process
