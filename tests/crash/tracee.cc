#include "tests/crash/tracee.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "ringfeed/shm/result.h"

// Where the child makes the system calls that the tracer puts into its mouth.
asm(".text\n"
    ".globl ringfeed_crash_syscall\n"
    "ringfeed_crash_syscall:\n"
    "  syscall\n"
    "  ud2\n");
extern "C" const char ringfeed_crash_syscall[];

namespace ringfeed::crash {

Tracee::Tracee(const std::function<void()>& body) {
  pid_ = ::fork();
  RF_CHECK(pid_ >= 0, errno);
  if (pid_ == 0) {
    RF_CHECK(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0, errno);
    stop(SIGSTOP);
    body();
    ::_exit(0);
  }
  const int status = wait("starting");
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) lost("starting", status);
  RF_CHECK(::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL) == 0, errno);
}

Tracee::~Tracee() { kill(); }

void Tracee::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, __WALL) == pid_ && !WIFSIGNALED(status) && !WIFEXITED(status)) {
  }
  pid_ = -1;
}

void Tracee::stop(int signal) { ::kill(::getpid(), signal); }

int Tracee::wait(const char* doing) {
  int status = 0;
  pid_t got = 0;
  do {
    got = ::waitpid(pid_, &status, __WALL);
  } while (got < 0 && errno == EINTR);
  RF_CHECK(got == pid_, got, errno);
  if (!WIFSTOPPED(status)) {
    pid_ = -1;
    lost(doing, status);
  }
  return status;
}

void Tracee::lost(const char* doing, int status) {
  throw Error(
      ErrorCode::kIo,
      WIFSTOPPED(status)
          ? fmt::format("the traced lanes stopped with signal {} ({}) while {}", WSTOPSIG(status),
                        ::strsignal(WSTOPSIG(status)), doing)
          : fmt::format("the traced lanes ended with status {:#x} while {}", status, doing));
}

void Tracee::resume(int request) {
  RF_CHECK(::ptrace(static_cast<__ptrace_request>(request), pid_, nullptr, nullptr) == 0, errno);
}

void Tracee::run_to(int signal) {
  resume(PTRACE_CONT);
  const int status = wait("running");
  if (WSTOPSIG(status) != signal) lost("running", status);
}

// mprotect() of one page, made by the child.
void Tracee::protect(std::uint64_t page, int protection) {
  user_regs_struct before{};
  RF_CHECK(::ptrace(PTRACE_GETREGS, pid_, nullptr, &before) == 0, errno);
  user_regs_struct call = before;
  call.rax = SYS_mprotect;
  call.rdi = page;
  call.rsi = kPage;
  call.rdx = static_cast<std::uint64_t>(protection);
  call.rip = reinterpret_cast<std::uint64_t>(ringfeed_crash_syscall);
  // No system call was interrupted, so the kernel must not repeat one.
  call.orig_rax = ~std::uint64_t{0};
  RF_CHECK(::ptrace(PTRACE_SETREGS, pid_, nullptr, &call) == 0, errno);
  resume(PTRACE_SINGLESTEP);
  const int status = wait("changing the protection of a page");
  if (WSTOPSIG(status) != SIGTRAP) lost("changing the protection of a page", status);
  RF_CHECK(::ptrace(PTRACE_GETREGS, pid_, nullptr, &call) == 0, errno);
  RF_CHECK(call.rax == 0, call.rax, page);
  RF_CHECK(::ptrace(PTRACE_SETREGS, pid_, nullptr, &before) == 0, errno);
}

bool Tracee::next_store(int signal, bool every_instruction, Store* store) {
  store->pages.clear();
  store->rip = 0;
  for (bool storing = false;;) {
    resume(storing || every_instruction ? PTRACE_SINGLESTEP : PTRACE_CONT);
    const int status = wait("running to its next store");
    const int stopped_by = WSTOPSIG(status);
    if (stopped_by == signal && !storing) return false;
    if (stopped_by == SIGTRAP) {
      ++instructions_;
      if (!storing) continue;
      for (const std::uint64_t page : store->pages) protect(page, PROT_READ);
      return true;
    }
    siginfo_t fault{};
    RF_CHECK(::ptrace(PTRACE_GETSIGINFO, pid_, nullptr, &fault) == 0, errno);
    if (stopped_by != SIGSEGV || fault.si_code != SEGV_ACCERR)
      lost("running to its next store", status);
    user_regs_struct registers{};
    RF_CHECK(::ptrace(PTRACE_GETREGS, pid_, nullptr, &registers) == 0, errno);
    store->rip = registers.rip;
    storing = true;
    // An instruction that stores across the end of a page faults on one page after the other.
    const std::uint64_t page = reinterpret_cast<std::uint64_t>(fault.si_addr) & ~(kPage - 1);
    RF_CHECK(store->pages.size() < 4, page, registers.rip);
    store->pages.push_back(page);
    protect(page, PROT_READ | PROT_WRITE);
  }
}

}  // namespace ringfeed::crash
