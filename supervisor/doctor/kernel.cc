// The kernel: its version, the system calls that a container may forbid, and /proc.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>

#include "ringfeed/shm/segment.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/texts.h"

namespace ringfeed::doctor {
namespace {

// From 5.4 on there is all that a feed needs (waitid() on a pidfd was the last), from 6.1 on all
// that it uses.
constexpr int kNeeds[] = {5, 4};
constexpr int kUses[] = {6, 1};

int failed(bool is_done) { return is_done ? 0 : errno; }

int try_memfd() {
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return failed(static_cast<bool>(fd));
}
int try_seals() {
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return failed(fd && ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK) == 0);
}
int try_reserve() {
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC));
  return failed(fd && ::fallocate(fd.get(), 0, 0, ::sysconf(_SC_PAGESIZE)) == 0);
}
int try_reopen() {
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC));
  if (!fd) return errno;
  const shm::Fd again(
      ::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDWR | O_CLOEXEC));
  return failed(static_cast<bool>(again));
}
shm::Fd own_pidfd() { return shm::Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))); }
int try_pidfd() { return failed(static_cast<bool>(own_pidfd())); }
int try_pidfd_signal() {
  const shm::Fd pidfd = own_pidfd();
  return failed(pidfd && ::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) == 0);
}
int try_pidfd_wait() {
  const shm::Fd pidfd = own_pidfd();
  siginfo_t info{};
  const int waited =
      pidfd ? ::waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG) : -1;
  return waited == 0 || errno == ECHILD ? 0 : errno;  // nobody is its own child
}
int try_lock() {
  const shm::Fd fd(::memfd_create("ringfeed doctor", MFD_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return failed(fd && ::fcntl(fd.get(), F_OFD_SETLK, &lock) == 0);
}
int try_sockets() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  const shm::Fd ends[]{shm::Fd(pair[0]), shm::Fd(pair[1])};
  ucred peer{};
  socklen_t size = sizeof peer;
  return failed(::getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0);
}
int try_events() {
  const shm::Fd loop(::epoll_create1(EPOLL_CLOEXEC));
  const shm::Fd said(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop || !said) return errno;
  epoll_event event{};
  return failed(::epoll_ctl(loop.get(), EPOLL_CTL_ADD, said.get(), &event) == 0);
}
int try_signals() {
  sigset_t set;
  sigemptyset(&set);
  const shm::Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  return failed(static_cast<bool>(fd));
}
int try_futex() {
  int word = 0;
  return failed(::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0) >= 0);
}
int try_random() {
  char byte = 0;
  return failed(::getrandom(&byte, 1, GRND_NONBLOCK) == 1 || errno == EAGAIN);
}
int try_subreaper() { return failed(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); }
int try_futex_waitv() {
  constexpr long kFutexWaitv = 449;
  ::syscall(kFutexWaitv, nullptr, 0U, 0U, nullptr, CLOCK_MONOTONIC);
  return errno == EINVAL ? 0 : errno;  // no words to wait for
}

struct Trial {
  const char* name;
  int (*run)();
  const char* cost;
  bool is_needed;
};
constexpr Trial kTrials[] = {
    {"memfd_create", try_memfd, "no feed can start: its memory is made of memfds", true},
    {"fcntl(F_ADD_SEALS) on a memfd", try_seals, "no feed can start: its memory is sealed", true},
    {"fallocate on a memfd", try_reserve, "no feed can start: its memory is reserved first", true},
    {"opening a memfd through /proc/self/fd", try_reopen,
     "no feed can start: its memory is opened again through /proc", true},
    {"pidfd_open", try_pidfd, "no stage can be started, as its death could not be proved", true},
    {"pidfd_send_signal", try_pidfd_signal,
     "a stage that hangs cannot be ended, nor `ringfeed stop --now`", true},
    {"waitid(P_PIDFD)", try_pidfd_wait, "a stage that has died is not replaced", true},
    {"fcntl(F_OFD_SETLK)", try_lock, "no feed can start: its workers hold such a lock", true},
    {"socketpair(SOCK_SEQPACKET)", try_sockets, "no stage can be started or be told what to do",
     true},
    {"epoll and eventfd", try_events, "no supervisor can start", true},
    {"signalfd", try_signals, "no supervisor can start", true},
    {"futex", try_futex, "no stage and no trainer can wait for the other", true},
    {"getrandom", try_random, "no feed can start: its identity is drawn", true},
    {"prctl(PR_SET_CHILD_SUBREAPER)", try_subreaper,
     "how a process of a stage in Python ended is not known to the supervisor", false},
    {"futex_waitv", try_futex_waitv,
     "a lane with several inputs that has to wait looks at them every millisecond", false},
};

// The number of the error, or minus that of the signal that a filter has sent.
int carry_out(const Trial& trial) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(std::min(trial.run(), 255));
  if (pid < 0)
    throw Error(ErrorCode::kIo,
                fmt::format("no process can be started to look: {}", std::strerror(errno)));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Whether a filter is in force, as in most containers.
bool is_filtered() {
  const std::optional<std::string> status = text_of("/proc/self/status");
  return status && status_in(*status, "Seccomp").value_or("0") == "2";
}

Finding refused(const Trial& trial, int error) {
  const std::string what = error < 0
                               ? fmt::format("{} is forbidden: it ends the process ({})",
                                             trial.name, ::strsignal(-error))
                               : fmt::format("{} is refused: {}", trial.name, std::strerror(error));
  const Remedy remedy{
      .advice = is_filtered()
                    ? fmt::format("a seccomp filter is in force: allow the call in the container's "
                                  "profile (docker run --security-opt seccomp=PROFILE)")
                    : std::string("use Linux 5.16 or newer, or ask who has taken the call away")};
  return trial.is_needed ? wrong(what, trial.cost, remedy) : better(what, trial.cost, remedy);
}

// Is a process of somebody else's, which is there, hidden from us?
bool hides_others() {
  constexpr pid_t kInit = 1;
  if (::kill(kInit, 0) != 0 && errno == ESRCH) return false;
  return ::access("/proc/1/stat", R_OK) != 0;
}

}  // namespace

Findings look_at_kernel() {
  utsname system{};
  ::uname(&system);
  int major = 0;
  int minor = 0;
  if (std::sscanf(system.release, "%d.%d", &major, &minor) != 2) {
    return {not_known(fmt::format("the kernel's release is '{}'", system.release))};
  }
  const auto older = [&](const int(&than)[2]) {
    return major < than[0] || (major == than[0] && minor < than[1]);
  };
  const std::string what =
      fmt::format("{} {} on {}", system.sysname, system.release, system.machine);
  const Remedy newer{.advice = "install a kernel of 6.1 or newer"};
  if (older(kNeeds)) {
    return {wrong(what + " is too old", "no feed can start: a stage's death is proved by a pidfd",
                  newer)};
  }
  if (older(kUses)) {
    return {
        better(what + " is older than 6.1",
               "memory stays in small pages, so a stage with a reservoir of a million frames is "
               "back 150 ms after its death and not after 23",
               newer)};
  }
  return {fine(what)};
}

Findings look_at_system_calls() {
  Findings findings;
  for (const Trial& trial : kTrials) {
    if (const int error = carry_out(trial); error != 0) findings.push_back(refused(trial, error));
  }
  if (findings.empty()) {
    findings.push_back(
        fine(fmt::format("all {} that a feed uses are allowed", std::size(kTrials))));
  }
  return findings;
}

Findings look_at_proc() {
  const std::string anew = as_root("mount -t proc proc /proc");
  if (const Result<control::Namespaces> own = control::own_namespaces(); !own) {
    return {wrong(own.error().message(), "no feed can start: it could not tell its own processes",
                  {anew, "in the namespace of this process"})};
  }
  Findings findings;
  if (!text_of("/proc/sys/kernel/random/boot_id") || !text_of("/proc/meminfo")) {
    findings.push_back(better(
        "/proc shows processes alone (subset=pid)",
        "free memory is not compared with what a feed needs, and what a dead feed has left is not "
        "removed, because the boot is not known",
        {anew, "a whole one over it"}));
  }
  const std::vector<Mount> mounts = mounts_in(text_of("/proc/self/mountinfo").value_or(""));
  const Mount* const mount = mount_of(mounts, "/proc");
  const std::string hides = mount == nullptr ? "" : mount->value_of("hidepid");
  if (hides_others()) {
    findings.push_back(better(
        hides.empty() ? "/proc does not show processes of others"
                      : fmt::format("/proc is mounted with hidepid={}", hides),
        "beside workers of a feed that somebody else has started, `ringfeed run` and `ringfeed "
        "clean` refuse to act, because they cannot see whether these live",
        {as_root("mount -o remount,hidepid=0 /proc"), ""}));
  }
  if (findings.empty())
    findings.push_back(fine("/proc shows all processes and the system's files"));
  return findings;
}

}  // namespace ringfeed::doctor
