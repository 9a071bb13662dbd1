#include "supervisor/control/silent_feed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "ringfeed/shm/file.h"
#include "supervisor/control/place.h"

namespace ringfeed::control {
namespace {

std::string user_text(uid_t user) {
  const passwd* const known = ::getpwuid(user);
  return known == nullptr ? fmt::format("user {}", user) : fmt::format("user {}", known->pw_name);
}

// The record, if it can be read from here. A link or a FIFO in its place is none.
std::optional<LockRecord> record_at(const std::string& path, bool& whole) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const shm::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return std::nullopt;
  const Result<std::string> text = shm::read_to_end(fd.get(), path);
  if (!text) return std::nullopt;
  return LockRecord::parse(*text, &whole);
}

bool has_files(const LockRecord& record) {
  return !record.snapshot.empty() || std::ranges::any_of(record.files, [](const std::string& file) {
    return ::access(file.c_str(), F_OK) == 0;
  });
}

// Are numbers of processes in it those of this system, boot and namespace?
bool counts_here(const LockRecord& record) {
  const Result<Namespaces> own = own_namespaces();
  return own && record.namespaces && *own == *record.namespaces && !was_another_boot(record);
}

SilentFeed with_state(SilentFeed found, std::string state, std::string reason) {
  found.state = std::move(state);
  found.reason = std::move(reason);
  if (found.owner == ::geteuid()) return found;
  found.reason += fmt::format(" (its files belong to {}: as that user)", user_text(found.owner));
  return found;
}

SilentFeed orphaned(SilentFeed found, const std::string& feed, bool seen) {
  const std::string who =
      found.supervisor == 0 ? "" : fmt::format(" (process {})", found.supervisor);
  const std::string_view which =
      seen ? "its workers go on" : "workers of it go on that cannot be seen from here";
  return with_state(
      std::move(found), "ORPHANED",
      fmt::format("its supervisor{} is dead, {}: `ringfeed run CONFIG` takes it over, "
                  "`ringfeed stop {} --now` ends it",
                  who, which, feed));
}

SilentFeed ended(SilentFeed found) {
  if (!found.record.failed.empty()) {
    std::string reason =
        fmt::format("{}: `ringfeed run CONFIG` starts it anew, `ringfeed clean` forgets it",
                    found.record.failed);
    return with_state(std::move(found), "FAILED", std::move(reason));
  }
  std::string reason = "all its processes have died";
  if (found.supervisor != 0) {
    reason += fmt::format(" (its supervisor was process {})", found.supervisor);
  }
  reason += has_files(found.record)
                ? ": `ringfeed run CONFIG` continues it, `ringfeed clean --force` removes what it "
                  "left"
                : ": `ringfeed run CONFIG` starts it anew, `ringfeed clean` forgets it";
  return with_state(std::move(found), "DEAD", std::move(reason));
}

}  // namespace

LockHolders holders_of(const std::string& lock_path) {
  LockHolders holders;
  struct stat info {};
  if (::lstat(lock_path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return holders;
  const shm::Fd fd(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  // Only asked for, not taken.
  if (fd && ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0) {
    holders.known = true;
    holders.workers = lock.l_type != F_UNLCK;
  }
  std::ifstream locks("/proc/locks");
  struct statfs system {};
  // These show a file under another device than the kernel's list does.
  const bool renumbers = ::statfs(lock_path.c_str(), &system) != 0 ||
                         system.f_type == BTRFS_SUPER_MAGIC ||
                         system.f_type == OVERLAYFS_SUPER_MAGIC;
  if (!locks || renumbers) return holders;
  holders.known = true;
  const std::string file =
      fmt::format("{:02x}:{:02x}:{}", major(info.st_dev), minor(info.st_dev), info.st_ino);
  // "7: FLOCK  ADVISORY  WRITE 4711 00:1b:99 0 EOF"; behind "->" is one who waits.
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number;
    std::string kind;
    std::string rule;
    std::string way;
    std::string place;
    pid_t pid = 0;
    if (!(words >> number >> kind >> rule >> way >> pid >> place) || place != file) continue;
    if (kind == "FLOCK") holders.supervisor = pid;
    if (kind == "OFDLCK" && way == "READ") holders.workers = true;
  }
  return holders;
}

std::optional<SilentFeed> find_silent(const std::string& directory, const std::string& feed) {
  const std::string lock = lock_path(directory, feed);
  const std::string state = fmt::format("{}/{}.state", directory, feed);
  struct stat info {};
  if (::lstat(state.c_str(), &info) != 0 && ::lstat(lock.c_str(), &info) != 0) return std::nullopt;
  SilentFeed found;
  found.owner = info.st_uid;
  bool whole = false;
  const bool is_recorded = S_ISREG(info.st_mode) && ::lstat(state.c_str(), &info) == 0;
  const std::optional<LockRecord> record = record_at(state, whole);
  if (record) {
    found.record = *record;
    found.supervisor = record->supervisor.pid;
  }
  const LockHolders holders = holders_of(lock);
  if (holders.supervisor != 0) {
    if (record && record->over && record->supervisor.pid == holders.supervisor) {
      return std::nullopt;  // it ends
    }
    found.supervisor = holders.supervisor;
    return with_state(
        std::move(found), "STARTING",
        fmt::format("its supervisor (process {}) does not listen yet", holders.supervisor));
  }
  const bool counts = record && whole && counts_here(*record);
  const std::size_t living = counts ? living_workers(*record).size() : 0;
  if (holders.workers || living != 0) return orphaned(std::move(found), feed, living != 0);
  if (record && !record->failed.empty()) return ended(std::move(found));
  if (!is_recorded) return std::nullopt;
  if (holders.known || counts) {
    const bool is_over =
        record && (record->over || record->workers.empty() || was_another_boot(*record) || !whole ||
                   !counts || process::is_alive(record->supervisor));
    if (is_over) return std::nullopt;
    return ended(std::move(found));
  }
  if (record) return std::nullopt;
  return with_state(std::move(found), "NO_ANSWER",
                    "whether any of its processes lives cannot be told from here");
}

}  // namespace ringfeed::control
