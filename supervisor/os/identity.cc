#include "supervisor/os/identity.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"

namespace ringfeed::process {
namespace {

struct Stat {
  char state = '?';
  std::uint64_t start_ticks = 0;
};

// Errors: kNotFound (there is no such process), kIo (the system does not let us look).
Result<Stat> read_stat(pid_t pid) {
  const Result<std::string> file = shm::read_file(fmt::format("/proc/{}/stat", pid));
  if (!file) return file.error();
  const std::string& text = *file;
  // The second field is the name in parentheses and may contain anything, parentheses too.
  const std::size_t close = text.rfind(')');
  const Error strange{ErrorCode::kIo, fmt::format("/proc/{}/stat is in another format", pid)};
  if (close == std::string::npos) return strange;
  std::istringstream fields(text.substr(close + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> stat.start_ticks)) return strange;
  return stat;
}

// Whether a process of that number lives that /proc, mounted with hidepid, does not show.
bool is_hidden(pid_t pid) { return pid > 0 && (::kill(pid, 0) == 0 || errno != ESRCH); }

}  // namespace

std::optional<std::uint64_t> start_ticks(pid_t pid) {
  const Result<Stat> stat = read_stat(pid);
  if (!stat) return std::nullopt;
  return stat->start_ticks;
}

shm::Fd open_pidfd(pid_t pid) {
  return shm::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool has_ended(int pidfd) {
  pollfd ready{pidfd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0;
}

Life life_of(const Identity& identity) {
  const Result<Stat> stat = read_stat(identity.pid);
  if (!stat) {
    return stat.error().code() == ErrorCode::kNotFound && !is_hidden(identity.pid) ? Life::kGone
                                                                                   : Life::kUnknown;
  }
  const bool same = stat->start_ticks == identity.start_ticks;
  return same && stat->state != 'Z' && stat->state != 'X' ? Life::kLives : Life::kGone;
}

bool is_alive(const Identity& identity) { return life_of(identity) != Life::kGone; }

Result<shm::Fd> open_living(const Identity& identity) {
  if (RF_FAILPOINT_ERROR("supervisor.adoption.watch")) {
    return Error{ErrorCode::kIo,
                 fmt::format("process {}: a test wants it not to be watched", identity.pid)};
  }
  shm::Fd pidfd = open_pidfd(identity.pid);
  if (!pidfd) {
    // EINVAL: no number of a process.
    if (errno == ESRCH || errno == EINVAL) return shm::Fd();
    return Error{ErrorCode::kIo, fmt::format("process {} cannot be watched: {}", identity.pid,
                                             std::strerror(errno))};
  }
  // The pidfd first, then the look at the start time: both are about the same process.
  const Result<Stat> stat = read_stat(identity.pid);
  if (!stat && stat.error().code() != ErrorCode::kNotFound) return stat.error();
  if (!stat && !has_ended(pidfd.get())) {
    return Error{ErrorCode::kIo,
                 fmt::format("process {} is alive, but /proc does not show it here: mount /proc "
                             "without hidepid, or run as its user",
                             identity.pid)};
  }
  if (!stat || stat->start_ticks != identity.start_ticks || has_ended(pidfd.get())) {
    return shm::Fd();
  }
  return pidfd;
}

bool kill_process(const Identity& identity, int signal) {
  // The pidfd first: whatever it names now keeps its number until it is closed or reaped, so the
  // look at the start time and the signal are about the same process.
  const shm::Fd pidfd = open_pidfd(identity.pid);
  if (!pidfd || start_ticks(identity.pid) != identity.start_ticks) return false;
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

std::string executable_name(pid_t pid) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(fmt::format("/proc/{}/exe", pid).c_str(), path, sizeof path);
  if (length <= 0) return {};
  std::string name(path, static_cast<std::size_t>(length));
  // The kernel's mark of a file that has been replaced since.
  constexpr std::string_view kDeleted = " (deleted)";
  if (name.ends_with(kDeleted)) name.resize(name.size() - kDeleted.size());
  return name.substr(name.rfind('/') + 1);
}

std::string program_of(std::string_view arguments) {
  constexpr std::size_t kNameBytes = 100;
  std::vector<std::string_view> words;
  while (!arguments.empty()) {
    const std::size_t end = std::min(arguments.find('\0'), arguments.size());
    words.push_back(arguments.substr(0, end));
    arguments.remove_prefix(std::min(end + 1, arguments.size()));
  }
  const auto base = [](std::string_view path) { return path.substr(path.rfind('/') + 1); };
  if (words.empty()) return {};
  std::string name(base(words[0]));
  if (!name.starts_with("python")) return name.substr(0, kNameBytes);
  // As Python reads them: letters that stand together, of which four take the rest, or the next
  // word. Of what is not known here nothing is shown.
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string_view letters = words[i];
    if (letters.empty() || letters == "-" || letters.starts_with("--")) break;
    if (!letters.starts_with('-')) {
      name += fmt::format(" {}", base(letters));
      break;
    }
    letters.remove_prefix(1);
    const std::size_t at = letters.find_first_of("cmWX");
    if (at == std::string_view::npos) continue;
    const std::string_view rest = letters.substr(at + 1);
    if (letters[at] == 'W' || letters[at] == 'X') {
      if (rest.empty()) ++i;
      continue;
    }
    const std::string_view module = !rest.empty() ? rest : i + 1 < words.size() ? words[i + 1] : "";
    if (letters[at] == 'm' && !module.empty()) name += fmt::format(" -m {}", module);
    break;
  }
  return name.substr(0, kNameBytes);
}

std::string program_name(const Identity& identity) {
  const Result<std::string> line = shm::read_file(fmt::format("/proc/{}/cmdline", identity.pid));
  if (!line || start_ticks(identity.pid) != identity.start_ticks) return {};
  return program_of(*line);
}

char state_letter(const Identity& identity) {
  const Result<Stat> stat = read_stat(identity.pid);
  return stat && stat->start_ticks == identity.start_ticks ? stat->state : '?';
}

pid_t pid_in_own_namespace(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with("NSpid:")) continue;
    return static_cast<pid_t>(
        std::strtol(line.c_str() + line.find_last_of("\t ") + 1, nullptr, 10));
  }
  return 0;
}

}  // namespace ringfeed::process
