#include "workers/runtime/fault.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "workers/runtime/log.h"

namespace ringfeed {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::size_t kStackBytes = 64 * 1024;
constexpr int kFramesMax = 16;  // fit into the log's tail (supervisor/group/log_tail.h)

thread_local shm::LanePage* lane_of_thread = nullptr;

// Only what may be called in a signal handler; the log is a pipe that the supervisor empties after
// this process's death.
void write_backtrace() {
  std::array<void*, kFramesMax> frames;
  const int count = ::backtrace(frames.data(), kFramesMax);
  static constexpr char kTitle[] = "backtrace, newest call first:\n";
  static_cast<void>(!::write(log_descriptor(), kTitle, sizeof kTitle - 1));
  ::backtrace_symbols_fd(frames.data(), count, log_descriptor());
}

void on_question(int) {
  if (lane_of_thread == nullptr) return;
  const int error = errno;
  write_backtrace();
  static constexpr char kEnd[] = "end of backtrace\n";
  static_cast<void>(!::write(log_descriptor(), kEnd, sizeof kEnd - 1));
  errno = error;
}

void on_fault(int signal, siginfo_t* info, void*) {
  // kill(2) from outside says nothing about what this thread was doing.
  const bool own = info->si_code > 0 || (info->si_code == SI_TKILL && info->si_pid == ::getpid());
  if (own && lane_of_thread != nullptr) {
    // relaxed: read after this process's death.
    lane_of_thread->faulted.store(static_cast<std::uint32_t>(signal), std::memory_order_relaxed);
    write_backtrace();
  }
  // SA_RESETHAND has put the default action back.
  ::raise(signal);
}

}  // namespace

void watch_for_faults() {
  // The first call loads what it needs, which a handler must not do.
  std::array<void*, 1> frame;
  static_cast<void>(::backtrace(frame.data(), 1));
  struct sigaction question {};
  question.sa_handler = on_question;
  question.sa_flags = SA_ONSTACK | SA_RESTART;
  ::sigaction(SIGUSR2, &question, nullptr);
  if (kSanitized) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int signal : kFaults) ::sigaction(signal, &action, nullptr);
}

FaultWatch::FaultWatch(shm::LanePage& page) : stack_(kStackBytes) {
  stack_t stack{};
  stack.ss_sp = stack_.data();
  stack.ss_size = stack_.size();
  ::sigaltstack(&stack, nullptr);
  lane_of_thread = &page;
}

FaultWatch::~FaultWatch() {
  lane_of_thread = nullptr;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  ::sigaltstack(&none, nullptr);
}

}  // namespace ringfeed
