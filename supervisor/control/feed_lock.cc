#include "supervisor/control/feed_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

namespace ringfeed::control {
namespace {

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> bytes;
  for (off_t at = 0;;) {
    const ssize_t n = ::pread(fd, bytes.data(), bytes.size(), at);
    if (n <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(n));
    at += n;
  }
}

}  // namespace

std::string LockRecord::text() const {
  std::string out = fmt::format("supervisor {} {}\n", supervisor.pid, supervisor.start_ticks);
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
    const LockRecord record = LockRecord::parse(read_all(lock.fd_.get()));
    if (held) {
      return Error{ErrorCode::kBusy,
                   fmt::format("feed '{}' is already run by process {}: stop it with 'ringfeed "
                               "stop {}', or give this feed another name",
                               feed, record.supervisor.pid, feed)};
    }
    // The holder before may have removed the file between our open and our lock: then the lock is
    // on a file that nobody else will ever see.
    struct stat ours {};
    struct stat named {};
    ::fstat(lock.fd_.get(), &ours);
    if (::stat(path.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
        ours.st_dev != named.st_dev) {
      continue;
    }
    lock.left_behind_ = record;
    return lock;
  }
}

void FeedLock::write(const LockRecord& record) {
  const std::string text = record.text();
  if (::pwrite(fd_.get(), text.data(), text.size(), 0) < 0 ||
      ::ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("lock file {}: {}", path_, std::strerror(errno)));
  }
}

void FeedLock::remove() {
  // Before the lock is given up, so that nobody else's file is removed.
  if (fd_) ::unlink(path_.c_str());
  fd_.reset();
}

std::vector<std::string> clear_remains(const LockRecord& record) {
  std::vector<std::string> done;
  for (const auto& [group, worker] : record.workers) {
    if (process::is_alive(worker) && process::kill_process(worker, SIGKILL)) {
      done.push_back(fmt::format("ended worker {} of stage group '{}'", worker.pid, group));
    }
  }
  for (const std::string& file : record.files) {
    if (::unlink(file.c_str()) == 0) done.push_back(fmt::format("removed {}", file));
  }
  return done;
}

}  // namespace ringfeed::control
