#include "supervisor/control/feed_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/os/text.h"

namespace ringfeed::control {
namespace {

constexpr std::string_view kFormat = "record 2";
constexpr std::string_view kEnd = "end";

constexpr std::chrono::milliseconds kBetweenLooks{10};
// For the memory of killed workers to be taken down, as long as they are seen to do that.
constexpr std::chrono::seconds kEndingS{10};

// Why a file is not to be believed, or opened for more than a look; "": it is a regular one of this
// user's.
std::string mistrust(const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return fmt::format(
        "is {}, not a regular file: only ringfeed should put anything there: remove it",
        S_ISLNK(info.st_mode)    ? "a symbolic link"
        : S_ISDIR(info.st_mode)  ? "a directory"
        : S_ISFIFO(info.st_mode) ? "a FIFO"
                                 : "a device or socket");
  }
  if (info.st_uid != ::geteuid()) {
    return fmt::format(
        "belongs to user {}, and this is user {}: act as that user, or set control.directory or "
        "RINGFEED_SOCKET_DIR to a directory of yours",
        info.st_uid, ::geteuid());
  }
  return {};
}

// Opens the lock or the record, without a wait for anybody. Errors: kNotFound, kIo.
Result<shm::Fd> open_own(const std::string& path, int flags) {
  struct stat info {};
  // Before it is opened, for to open a device may do something.
  if (::lstat(path.c_str(), &info) == 0) {
    if (const std::string why = mistrust(info); !why.empty()) {
      return Error{ErrorCode::kIo, fmt::format("{} {}", path, why)};
    }
  }
  shm::Fd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600));
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 fmt::format("{}: {}", path, std::strerror(errno))};
  }
  if (const std::string why = mistrust(info); !why.empty()) {
    return Error{ErrorCode::kIo, fmt::format("{} {}", path, why)};
  }
  return fd;
}

// nullopt: there is none.
Result<std::optional<std::string>> read_record(const std::string& path) {
  const Result<shm::Fd> fd = open_own(path, O_RDONLY);
  if (!fd) {
    if (fd.error().code() == ErrorCode::kNotFound) return std::optional<std::string>();
    return fd.error();
  }
  Result<std::string> text = shm::read_to_end(fd->get(), path);
  if (!text) return Error{ErrorCode::kIo, text.error().message()};
  return std::optional<std::string>(std::move(*text));
}

// In one line.
std::string in_one_line(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\') out += c;
      out += c;
    }
  }
  return out;
}
std::string from_one_line(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else {
      out += text[++i] == 'n' ? '\n' : text[i];
    }
  }
  return out;
}

// The inode of a namespace; 0 if the system has none of that kind.
Result<std::uint64_t> namespace_inode(const char* kind) {
  const std::string link = fmt::format("/proc/self/ns/{}", kind);
  struct stat info {};
  if (::stat(link.c_str(), &info) == 0) return std::uint64_t{info.st_ino};
  if (errno == ENOENT) return std::uint64_t{0};
  return Error{ErrorCode::kIo, fmt::format("{}: {}", link, std::strerror(errno))};
}

// Byte 0 of the lock file, of whoever may write to the feed's memory.
struct flock workers_lock(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

// How the namespace of the record's workers differs from this process's.
std::string_view other_namespace(const LockRecord& record) {
  const Namespaces own = own_namespaces().value_or_throw();
  return record.namespaces->pid == own.pid ? "time namespace" : "pid namespace";
}

std::string state_path(const std::string& lock_path) {
  return std::filesystem::path(lock_path).replace_extension(".state").string();
}

}  // namespace

std::string boot_id() {
  // Kept: it is asked for again where no descriptor may be left.
  static std::string known;
  if (!known.empty()) return known;
  Result<std::string> id = shm::read_file("/proc/sys/kernel/random/boot_id");
  if (!id && id.error().code() == ErrorCode::kNotFound) return {};
  known = std::move(id).value_or_throw();
  known.resize(std::min(known.size(), known.find('\n')));
  return known;
}

bool was_another_boot(const LockRecord& record) {
  if (record.boot.empty()) return false;
  const std::string now = boot_id();
  return !now.empty() && now != record.boot;
}

bool was_this_boot(const LockRecord& record) {
  return !record.boot.empty() && record.boot == boot_id();
}

Result<Namespaces> own_namespaces() {
  char number[32] = {};
  if (::readlink("/proc/self", number, sizeof number - 1) <= 0 ||
      std::to_string(::getpid()) != number) {
    return Error{
        ErrorCode::kIo,
        "/proc is not mounted, or does not belong to the pid namespace of this process, so "
        "the processes of the feed cannot be checked: mount /proc there (unshare "
        "--mount-proc)"};
  }
  const Result<std::uint64_t> pid = namespace_inode("pid");
  if (!pid) return pid.error();
  const Result<std::uint64_t> time = namespace_inode("time");
  if (!time) return time.error();
  return Namespaces{*pid, *time};
}

// ringfeed.torch reads the lines "supervisor" and "over", too: _shared_parent.py.
std::string LockRecord::text() const {
  std::string out = fmt::format("{}\n", kFormat);
  if (!boot.empty()) out += fmt::format("boot {}\n", boot);
  if (namespaces) out += fmt::format("namespaces {} {}\n", namespaces->pid, namespaces->time);
  if (lock_inode != 0) out += fmt::format("lock {} {}\n", lock_device, lock_inode);
  out += fmt::format("supervisor {} {}\n", supervisor.pid, supervisor.start_ticks);
  if (!feed_id.empty()) out += fmt::format("feed_id {}\nseed {}\n", to_hex(feed_id), seed);
  if (!config.empty()) out += fmt::format("config {}\n", to_hex(config));
  if (!groups.empty()) out += fmt::format("groups {}\n", to_hex(groups));
  if (!snapshot.empty()) out += fmt::format("snapshot {}\n", in_one_line(snapshot));
  for (const auto& [group, worker] : workers) {
    out += fmt::format("worker {} {} {}\n", worker.pid, worker.start_ticks, group);
  }
  for (const std::string& file : files) out += fmt::format("file {}\n", in_one_line(file));
  if (!making_mark.empty()) {
    out += fmt::format("making {} {}\n", making_mark, in_one_line(making_directory));
  }
  if (over) out += "over\n";
  if (!failed.empty()) out += fmt::format("failed {}\n", in_one_line(failed));
  return out + fmt::format("{}\n", kEnd);
}

LockRecord LockRecord::parse(const std::string& text, bool* whole) {
  LockRecord record;
  std::istringstream lines(text);
  std::string line;
  // Format 1 had neither a first line nor a last one, and took paths as they are.
  const bool quotes = text.starts_with(kFormat);
  bool ended = !quotes && !text.empty() && text.back() == '\n';
  const auto path_in = [quotes](const std::string& of, std::size_t from) {
    return quotes ? from_one_line(of.substr(from)) : of.substr(from);
  };
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
    if (what == "file" && line.size() > 5) record.files.push_back(path_in(line, 5));
    if (what == "snapshot" && line.size() > 9) record.snapshot = path_in(line, 9);
    if (Namespaces own; what == "namespaces" && words >> own.pid >> own.time) {
      record.namespaces = own;
    }
    if (what == "lock") words >> record.lock_device >> record.lock_inode;
    if (std::string mark; what == "making" && words >> mark && line.size() > 8 + mark.size()) {
      record.making_mark = mark;
      record.making_directory = path_in(line, 8 + mark.size());
    }
    record.over = record.over || what == "over";
    if (what == "failed" && line.size() > 7) record.failed = from_one_line(line.substr(7));
    ended = ended || (quotes && line == kEnd);
    if (what == "boot") words >> record.boot;
    if (what == "seed") words >> record.seed;
    std::string digits;
    if (what == "feed_id" && words >> digits) record.feed_id = from_hex(digits);
    if (what == "config" && words >> digits) record.config = from_hex(digits);
    if (what == "groups" && words >> digits) record.groups = from_hex(digits);
  }
  if (whole != nullptr) *whole = ended;
  return record;
}

Result<FeedLock> FeedLock::take(const std::string& path, const std::string& feed) {
  for (;;) {
    FeedLock lock;
    lock.path_ = path;
    Result<shm::Fd> fd = open_own(path, O_RDWR | O_CREAT);
    if (!fd) {
      return Error{ErrorCode::kIo, fmt::format("lock file {}", fd.error().message())};
    }
    lock.fd_ = std::move(*fd);
    const bool held = ::flock(lock.fd_.get(), LOCK_EX | LOCK_NB) != 0;
    const Result<std::optional<std::string>> text = read_record(state_path(path));
    bool whole = false;
    const bool exists = text && *text;
    const LockRecord record = exists ? LockRecord::parse(**text, &whole) : LockRecord();
    if (held) {
      return Error{ErrorCode::kBusy,
                   fmt::format("feed '{}' already runs in process {}: stop it with 'ringfeed "
                               "stop {}', or give this feed another name",
                               feed, record.supervisor.pid, feed)};
    }
    // The holder before may have removed the file between our open and our lock: then the lock is
    // on a file that nobody else will ever see.
    if (!lock.in_place()) continue;
    if (!text) {
      return Error{text.error().code(), fmt::format("what is left of feed '{}' is unknown: {}",
                                                    feed, text.error().message())};
    }
    lock.left_behind_ = record;
    // A lock that workers keep is all that shows them where the record is gone.
    struct flock workers = workers_lock(F_WRLCK);
    lock.keeps_ =
        exists || ::fcntl(lock.fd_.get(), F_OFD_GETLK, &workers) != 0 || workers.l_type != F_UNLCK;
    if (exists && !whole) {
      lock.whole_ =
          Error{ErrorCode::kDamaged,
                fmt::format("the record of feed '{}', {}, is damaged, so what is left of the feed "
                            "is unknown: repair the file, or start a new feed with --fresh",
                            feed, state_path(path))};
    }
    return lock;
  }
}

bool FeedLock::in_place() const {
  struct stat ours {};
  struct stat named {};
  return fd_ && ::fstat(fd_.get(), &ours) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

Status FeedLock::take_again(const std::string& feed, const std::string& feed_id) {
  Result<FeedLock> other = take(path_, feed);
  if (!other) return other.error();
  const LockRecord& there = other->left_behind();
  try {
    if (there.feed_id != feed_id) {
      // Those that keep the lock may be this feed's own, if its file is there again.
      struct stat file {};
      struct stat ours {};
      const bool own = worker_lock_ && ::fstat(worker_lock_.get(), &ours) == 0 &&
                       ::fstat(other->fd_.get(), &file) == 0 && file.st_dev == ours.st_dev &&
                       file.st_ino == ours.st_ino;
      if (!living_workers(there).empty() || (!own && other->workers_hold())) {
        return Error{ErrorCode::kBusy,
                     fmt::format("another feed '{}' is running there without a supervisor: end it "
                                 "with 'ringfeed stop {} --now'",
                                 feed, feed)};
      }
    }
  } catch (const Error& error) {
    return error;
  }
  fd_ = std::move(other->fd_);
  return {};
}

bool FeedLock::workers_hold() const {
  struct flock lock = workers_lock(F_WRLCK);
  if (::fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno)));
  }
  return lock.l_type != F_UNLCK;
}

bool FeedLock::is_elsewhere() const {
  const LockRecord& left = left_behind_;
  if (!left.namespaces || left.workers.empty() || was_another_boot(left)) return false;
  return *left.namespaces != own_namespaces().value_or_throw();
}

std::string FeedLock::lives_unseen(std::chrono::milliseconds patience) const {
  const LockRecord& left = left_behind_;
  const auto is_seen = [](const auto& worker) {
    return process::life_of(worker.second) == process::Life::kLives;
  };
  const auto end = std::chrono::steady_clock::now() + patience;
  while (workers_hold()) {
    const auto maybe = living_workers(left);
    if (std::any_of(maybe.begin(), maybe.end(), is_seen)) return {};
    if (std::chrono::steady_clock::now() >= end) {
      if (is_elsewhere()) {
        return fmt::format("some of its workers live in another {}", other_namespace(left));
      }
      return fmt::format(
          "some of its workers live but cannot be seen from here (they hold a lock on {})", path_);
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  // Nobody keeps a lock on this file; it may not be theirs.
  struct stat own {};
  const bool theirs = ::fstat(fd_.get(), &own) == 0 && own.st_dev == left.lock_device &&
                      own.st_ino == left.lock_inode;
  if (theirs || !is_elsewhere()) return {};
  return fmt::format(
      "its {} workers were started in another {}, and the file that showed whether they are alive "
      "is gone",
      left.workers.size(), other_namespace(left));
}

std::string FeedLock::unseen_remedy() const {
  if (is_elsewhere()) return "run 'ringfeed run' in that namespace, or end the workers there";
  return fmt::format(
      "run 'ringfeed run' where /proc shows them, as their user, or end them: 'fuser "
      "{}' as root names them",
      path_);
}

int FeedLock::worker_lock() {
  if (!worker_lock_) {
    shm::Fd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct flock lock = workers_lock(F_RDLCK);
    if (!fd || ::fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) {
      throw Error(ErrorCode::kIo, fmt::format("lock file {}: {}", path_, std::strerror(errno)));
    }
    worker_lock_ = std::move(fd);
  }
  return worker_lock_.get();
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
  // Whatever has that name, a death or somebody has left it there: it is not written to.
  if (::unlink(partial.c_str()) != 0 && errno != ENOENT) {
    const int error = errno;
    struct stat info {};
    const bool directory = ::lstat(partial.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    return Error{system_code(error),
                 directory ? fmt::format("{}: a directory is in the way: remove it", partial)
                           : fmt::format("{}: {}", partial, std::strerror(error))};
  }
  const shm::Fd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
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
  if (in_place() && !keeps_) {
    ::unlink(state_path(path_).c_str());
    RF_FAILPOINT("supervisor.lock.removing");
    ::unlink(path_.c_str());
  }
  fd_.reset();
}

std::vector<std::pair<std::string, process::Identity>> living_workers(const LockRecord& record) {
  std::vector<std::pair<std::string, process::Identity>> living;
  if (record.workers.empty()) return living;
  if (was_another_boot(record)) return living;
  if (record.namespaces) {
    const Result<Namespaces> own = own_namespaces();
    if (!own || *own != *record.namespaces) return living;
  }
  for (const auto& worker : record.workers) {
    if (process::is_alive(worker.second)) living.push_back(worker);
  }
  return living;
}

Result<std::optional<LockRecord>> find_orphan(const std::string& lock_path) {
  const Result<std::optional<std::string>> text = read_record(state_path(lock_path));
  if (!text) return text.error();
  if (!*text) return std::optional<LockRecord>();
  LockRecord record = LockRecord::parse(**text);
  if (process::is_alive(record.supervisor) || living_workers(record).empty()) {
    return std::optional<LockRecord>();
  }
  return std::optional<LockRecord>(std::move(record));
}

namespace {

// Until nobody keeps the workers' lock: those that were killed, and no others, end by themselves.
void wait_for_end(const FeedLock& lock, const std::vector<process::Identity>& killed) {
  const auto begin = std::chrono::steady_clock::now();
  auto seen = begin;  // the last moment at which one of them was there
  while (lock.workers_hold()) {
    const auto now = std::chrono::steady_clock::now();
    if (std::any_of(killed.begin(), killed.end(), process::is_alive)) seen = now;
    if (now - seen > FeedLock::kDyingMs || now - begin > kEndingS) {
      throw Error(ErrorCode::kBusy,
                  fmt::format("some of its workers live but cannot be ended from here: {}",
                              lock.unseen_remedy()));
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace

void remove_unfinished(const LockRecord& record) {
  if (record.making_mark.empty()) return;
  const Result<std::vector<std::string>> names = shm::names_in(record.making_directory);
  if (!names) return;
  for (const std::string& name : *names) {
    const std::string file = (std::filesystem::path(record.making_directory) / name).string();
    if (!file.ends_with(record.making_mark) ||
        std::find(record.files.begin(), record.files.end(), file) != record.files.end()) {
      continue;
    }
    ::unlink(file.c_str());
  }
}

std::vector<std::string> clear_remains(const LockRecord& record, const FeedLock* lock) {
  std::vector<std::string> done;
  std::vector<process::Identity> ended;
  for (const auto& [group, worker] : living_workers(record)) {
    if (process::kill_process(worker, SIGKILL)) {
      done.push_back(fmt::format("ended worker {} of stage group '{}'", worker.pid, group));
      ended.push_back(worker);
    } else if (process::is_alive(worker)) {
      throw Error(ErrorCode::kIo,
                  fmt::format("worker {} of stage group '{}' may be alive but cannot be ended from "
                              "here: end it as its user, where /proc shows it",
                              worker.pid, group));
    }
  }
  if (lock != nullptr && !lock->is_elsewhere()) wait_for_end(*lock, ended);
  for (const std::string& file : record.files) {
    if (::unlink(file.c_str()) == 0) done.push_back(fmt::format("removed {}", file));
  }
  return done;
}

}  // namespace ringfeed::control
