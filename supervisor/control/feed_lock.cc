#include "supervisor/control/feed_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/control/hex.h"

namespace ringfeed::control {
namespace {

std::string read_all(const std::string& path) {
  const Result<std::string> text = shm::read_file(path);
  return text ? *text : "";
}

std::string state_path(const std::string& lock_path) {
  return std::filesystem::path(lock_path).replace_extension(".state").string();
}

}  // namespace

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  in >> id;
  return id;
}

std::string LockRecord::text() const {
  std::string out;
  if (!boot.empty()) out += fmt::format("boot {}\n", boot);
  out += fmt::format("supervisor {} {}\n", supervisor.pid, supervisor.start_ticks);
  if (!feed_id.empty()) out += fmt::format("feed_id {}\nseed {}\n", to_hex(feed_id), seed);
  if (!config.empty()) out += fmt::format("config {}\n", to_hex(config));
  if (!groups.empty()) out += fmt::format("groups {}\n", to_hex(groups));
  if (!snapshot.empty()) out += fmt::format("snapshot {}\n", snapshot);
  for (const auto& [group, worker] : workers) {
    out += fmt::format("worker {} {} {}\n", worker.pid, worker.start_ticks, group);
  }
  for (const std::string& file : files) out += fmt::format("file {}\n", file);
  return out;
}

LockRecord LockRecord::parse(const std::string& text) {
  LockRecord record;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    // A line without its end was being written when the supervisor died.
    if (lines.eof()) break;
    std::istringstream words(line);
    std::string what;
    words >> what;
    process::Identity who;
    if (what == "supervisor" && words >> who.pid >> who.start_ticks) record.supervisor = who;
    if (what == "worker") {
      std::string group;
      if (words >> who.pid >> who.start_ticks >> group) record.workers.emplace_back(group, who);
    }
    if (what == "file" && line.size() > 5) record.files.push_back(line.substr(5));
    if (what == "snapshot" && line.size() > 9) record.snapshot = line.substr(9);
    if (what == "boot") words >> record.boot;
    if (what == "seed") words >> record.seed;
    std::string digits;
    if (what == "feed_id" && words >> digits) record.feed_id = from_hex(digits);
    if (what == "config" && words >> digits) record.config = from_hex(digits);
    if (what == "groups" && words >> digits) record.groups = from_hex(digits);
  }
  return record;
}

Result<FeedLock> FeedLock::take(const std::string& path, const std::string& feed) {
  for (;;) {
    FeedLock lock;
    lock.path_ = path;
    lock.fd_ = shm::Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock.fd_) {
      return Error{ErrorCode::kIo, fmt::format("lock file {}: {}", path, std::strerror(errno))};
    }
    const bool held = ::flock(lock.fd_.get(), LOCK_EX | LOCK_NB) != 0;
    const LockRecord record = LockRecord::parse(read_all(state_path(path)));
    if (held) {
      return Error{ErrorCode::kBusy,
                   fmt::format("feed '{}' is already run by process {}: stop it with 'ringfeed "
                               "stop {}', or give this feed another name",
                               feed, record.supervisor.pid, feed)};
    }
    // The holder before may have removed the file between our open and our lock: then the lock is
    // on a file that nobody else will ever see.
    if (!lock.in_place()) continue;
    lock.left_behind_ = record;
    return lock;
  }
}

bool FeedLock::in_place() const {
  struct stat ours {};
  struct stat named {};
  return fd_ && ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

Status FeedLock::take_again(const std::string& feed, const std::string& feed_id) {
  Result<FeedLock> other = take(path_, feed);
  if (!other) return other.error();
  const LockRecord& there = other->left_behind();
  if (there.feed_id != feed_id && !living_workers(there).empty()) {
    return Error{ErrorCode::kBusy,
                 fmt::format("another feed '{}' goes on there without a supervisor: end it with "
                             "'ringfeed stop {} --now'",
                             feed, feed)};
  }
  fd_ = std::move(other->fd_);
  return {};
}

Status FeedLock::write(const LockRecord& record) {
  const std::string path = state_path(path_);
  const std::string partial = path + ".partial";
  const std::string text = record.text();
  const auto failed = [&] {
    const int error = errno;
    ::unlink(partial.c_str());
    return Error{system_code(error), fmt::format("{}: {}", partial, std::strerror(error))};
  };
  if (RF_FAILPOINT_ERROR("supervisor.record.write")) {
    return Error{ErrorCode::kIo, fmt::format("{}: a test wants no record", partial)};
  }
  const shm::Fd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return failed();
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(fd.get(), text.data() + at, text.size() - at);
    if (wrote < 0 && errno != EINTR) return failed();
    if (wrote > 0) at += static_cast<std::size_t>(wrote);
  }
  RF_FAILPOINT("supervisor.record.written");
  if (::rename(partial.c_str(), path.c_str()) != 0) return failed();
  return {};
}

void FeedLock::remove() {
  // Before the lock is given up, so that nobody else's files are removed.
  if (in_place()) {
    ::unlink(state_path(path_).c_str());
    RF_FAILPOINT("supervisor.lock.removing");
    ::unlink(path_.c_str());
  }
  fd_.reset();
}

std::vector<std::pair<std::string, process::Identity>> living_workers(const LockRecord& record) {
  std::vector<std::pair<std::string, process::Identity>> living;
  if (!record.boot.empty() && record.boot != boot_id()) return living;
  for (const auto& worker : record.workers) {
    if (process::is_alive(worker.second)) living.push_back(worker);
  }
  return living;
}

std::optional<LockRecord> find_orphan(const std::string& lock_path) {
  LockRecord record = LockRecord::parse(read_all(state_path(lock_path)));
  if (process::is_alive(record.supervisor) || living_workers(record).empty()) return std::nullopt;
  return record;
}

std::vector<std::string> clear_remains(const LockRecord& record) {
  std::vector<std::string> done;
  for (const auto& [group, worker] : living_workers(record)) {
    if (process::kill_process(worker, SIGKILL)) {
      done.push_back(fmt::format("ended worker {} of stage group '{}'", worker.pid, group));
    }
  }
  for (const std::string& file : record.files) {
    if (::unlink(file.c_str()) == 0) done.push_back(fmt::format("removed {}", file));
  }
  return done;
}

}  // namespace ringfeed::control
