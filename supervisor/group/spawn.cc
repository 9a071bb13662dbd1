#include "supervisor/group/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/os/signals.h"
#include "supervisor/os/text.h"

namespace ringfeed::process {
namespace {

constexpr int kLogPipeBytes = 1 << 20;
constexpr int kSocketBytes = 1 << 20;

[[noreturn]] void fail(const std::string& what) {
  throw Error(system_code(errno), what + ": " + std::strerror(errno));
}

struct Pipe {
  shm::Fd read;
  shm::Fd write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("the system provides no pipe");
  return {shm::Fd(ends[0]), shm::Fd(ends[1])};
}

// Whoever reads what blocks would wait for a process that has nothing to say, and for nothing else.
void set_nonblocking(int fd) {
  int on = 1;
  if (::ioctl(fd, FIONBIO, &on) != 0) fail("the system provides no descriptor that does not block");
}

// What a child starts with, beyond its descriptors: no blocked signals, a process group of its own
// unless it is to have the terminal; SIGPIPE and the warnings (signals.h) ignored, which it
// inherits; default handlers for the rest.
class SpawnSettings {
 public:
  explicit SpawnSettings(bool own_group = true) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    sigset_t handled;
    sigemptyset(&handled);
    for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGCHLD}) sigaddset(&handled, signal);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &handled);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    const int group = own_group ? POSIX_SPAWN_SETPGROUP : 0;
    ::posix_spawnattr_setflags(
        &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  // EBADF is what a limit of open files says that was lowered below the descriptor.
  void give(int fd, int as) {
    const int error = ::posix_spawn_file_actions_adddup2(&actions, fd, as);
    if (error == 0) return;
    throw Error(
        ErrorCode::kNoMemory,
        fmt::format("descriptor {} cannot be given to a worker: {}{}", fd, std::strerror(error),
                    error == EBADF ? ": it is above the open-file limit" : ""));
  }

  pid_t spawn(const std::string& binary, std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    pid_t pid = 0;
    // posix_spawn and not fork: the child borrows this address space until it executes, so no page
    // table is copied however much is mapped.
    const int error =
        ::posix_spawn(&pid, binary.c_str(), &actions, &attributes, argv.data(), environ);
    if (error != 0) {
      throw Error(system_code(error), fmt::format("worker binary {} cannot be started: {}", binary,
                                                  std::strerror(error)));
    }
    return pid;
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// The child that has just been started. Whatever is thrown, it is ended then.
Spawned watched(pid_t pid) {
  try {
    Spawned spawned;
    spawned.identity = {pid, start_ticks(pid).value_or(0)};
    spawned.pidfd = open_pidfd(pid);
    if (!spawned.pidfd) fail(fmt::format("process {} cannot be watched", pid));
    return spawned;
  } catch (...) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw;
  }
}

}  // namespace

std::string find_worker_binary() {
  std::vector<std::string> places;
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length > 0) {
    const std::string path(self, static_cast<std::size_t>(length));
    places.push_back(path.substr(0, path.rfind('/') + 1) + "ringfeed-worker");
  }
  if (const char* named = std::getenv("RINGFEED_WORKER"); named != nullptr && *named != '\0') {
    places.emplace_back(named);
  }
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    std::string_view rest(path);
    while (!rest.empty()) {
      const std::size_t colon = rest.find(':');
      if (colon != 0) places.push_back(std::string(rest.substr(0, colon)) + "/ringfeed-worker");
      rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
    }
  }
  std::string looked;
  for (const std::string& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place;
    looked += (looked.empty() ? "" : ", ") + place;
  }
  throw Error(
      ErrorCode::kNotFound,
      fmt::format("ringfeed-worker was not found (looked for {}): {}install it beside "
                  "ringfeed, or set RINGFEED_WORKER to its path",
                  looked, length > 0 ? "" : "mount /proc, which says where ringfeed is, or "));
}

std::string program_for(const std::string& worker, const std::string& program) {
  if (program.empty()) return worker;
  const std::size_t slash = worker.rfind('/');
  const std::string place =
      (slash == std::string::npos ? "" : worker.substr(0, slash + 1)) + program;
  if (::access(place.c_str(), X_OK) == 0) return place;
  // A plug-in lies elsewhere than ringfeed's own programs.
  try {
    const std::string own = find_worker_binary();
    const std::string beside = own.substr(0, own.rfind('/') + 1) + program;
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  } catch (const Error&) {  // then only this worker is there
  }
  throw Error(
      ErrorCode::kNotFound,
      fmt::format("{} was not found: it must be in the directory of the worker {}", place, worker));
}

bool is_of_package(const std::string& binary) {
  const std::filesystem::path prefix = std::filesystem::path(binary).parent_path().parent_path();
  return ::access((prefix / "__init__.py").c_str(), F_OK) == 0;
}

WorkerLinks make_worker_links() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    fail("the system provides no socket for a worker");
  }
  WorkerLinks links;
  links.socket = shm::Fd(pair[0]);
  links.their_socket = shm::Fd(pair[1]);
  ::setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
  set_nonblocking(pair[0]);
  Pipe log = make_pipe();
  ::fcntl(log.write.get(), F_SETPIPE_SZ, kLogPipeBytes);
  set_nonblocking(log.read.get());
  set_nonblocking(log.write.get());
  links.log = std::move(log.read);
  links.their_log = std::move(log.write);
  return links;
}

Spawned spawn_worker(const std::string& binary, int lock, const std::string& word) {
  if (RF_FAILPOINT_ERROR("supervisor.worker.starved")) {
    throw Error(ErrorCode::kNoMemory,
                fmt::format("worker binary {}: a test wants no descriptors to be left", binary));
  }
  if (RF_FAILPOINT_ERROR("supervisor.worker.spawn")) {
    throw Error(ErrorCode::kIo,
                fmt::format("worker binary {}: a test wants no process to be started", binary));
  }
  WorkerLinks links = make_worker_links();
  const shm::Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) fail("/dev/null cannot be opened");

  SpawnSettings settings;
  settings.give(null.get(), STDIN_FILENO);
  settings.give(links.their_log.get(), STDOUT_FILENO);
  settings.give(links.their_log.get(), STDERR_FILENO);
  settings.give(links.their_socket.get(), kSetupFd);
  if (lock >= 0) settings.give(lock, kLockFd);
  const pid_t pid = settings.spawn(binary, {"ringfeed-worker", word, std::to_string(kSetupFd)});
  Spawned spawned = watched(pid);
  spawned.socket = std::move(links.socket);
  spawned.log = std::move(links.log);
  return spawned;
}

Spawned spawn_heard(const std::string& binary, const std::vector<std::string>& words) {
  Pipe log = make_pipe();
  set_nonblocking(log.read.get());
  set_nonblocking(log.write.get());
  const shm::Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null) fail("/dev/null cannot be opened");
  SpawnSettings settings;
  settings.give(null.get(), STDIN_FILENO);
  settings.give(log.write.get(), STDOUT_FILENO);
  settings.give(log.write.get(), STDERR_FILENO);
  Spawned spawned = watched(settings.spawn(binary, words));
  spawned.log = std::move(log.read);
  return spawned;
}

Foreground spawn_foreground(const std::string& binary, const std::vector<std::string>& words) {
  WorkerLinks links = make_worker_links();
  Pipe records = make_pipe();
  set_nonblocking(records.write.get());
  SpawnSettings settings(false);
  // Neither may lie where the other one goes.
  const shm::Fd socket(::fcntl(links.their_socket.get(), F_DUPFD_CLOEXEC, kRecordsFd + 1));
  const shm::Fd from(::fcntl(records.read.get(), F_DUPFD_CLOEXEC, kRecordsFd + 1));
  if (!socket || !from) fail("the system provides no descriptor for a program");
  settings.give(socket.get(), kSetupFd);
  settings.give(from.get(), kRecordsFd);
  std::vector<std::string> arguments{"ringfeed-worker", "--try-fd", std::to_string(kSetupFd),
                                     std::to_string(kRecordsFd)};
  arguments.insert(arguments.end(), words.begin(), words.end());
  Foreground foreground;
  foreground.process = watched(settings.spawn(binary, arguments));
  foreground.process.socket = std::move(links.socket);
  foreground.records = std::move(records.write);
  return foreground;
}

std::string Ending::text() const {
  if (!known && !told) return "an unknown status (it was not started by this supervisor)";
  if (signal != 0) return signal_text(signal);
  return fmt::format("exit status {}", status);
}

Ending reap(const shm::Fd& pidfd) {
  siginfo_t info{};
  while (::waitid(P_PIDFD, static_cast<id_t>(pidfd.get()), &info, WEXITED) != 0) {
    if (errno == ECHILD) {
      pollfd ended{pidfd.get(), POLLIN, 0};
      while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
      }
      return {.known = false};
    }
    if (errno != EINTR) fail("waiting for a worker fails");
  }
  Ending ending;
  ending.exited = info.si_code == CLD_EXITED;
  (ending.exited ? ending.status : ending.signal) = info.si_status;
  return ending;
}

Asked spawn_asked(const std::string& binary, int question, const std::vector<std::string>& words) {
  Pipe from = make_pipe();
  set_nonblocking(from.read.get());
  SpawnSettings settings;
  settings.give(question, STDIN_FILENO);
  settings.give(from.write.get(), STDOUT_FILENO);
  Asked asked;
  std::vector<std::string> arguments{"ringfeed-worker"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  asked.pid = settings.spawn(binary, arguments);
  asked.pidfd = open_pidfd(asked.pid);
  if (!asked.pidfd) {
    const int error = errno;
    ::kill(asked.pid, SIGKILL);
    ::waitpid(asked.pid, nullptr, 0);
    errno = error;
    fail(fmt::format("process {} cannot be watched", asked.pid));
  }
  asked.answer = std::move(from.read);
  return asked;
}

}  // namespace ringfeed::process
