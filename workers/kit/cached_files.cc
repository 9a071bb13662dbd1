#include "workers/kit/cached_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ringfeed {
namespace {

constexpr std::string_view kObjects = "/objects/";
constexpr std::chrono::seconds kRenewAfter(30);
constexpr std::size_t kRootsMax = 1024;
constexpr std::size_t kReasonBytesMax = 64 * 1024;

constexpr std::int64_t kTimesFromS = 1'000'000'000;
constexpr std::uint64_t kTimesS = std::uint64_t{1} << 29;
constexpr std::string_view kTimedLayout = "ringfeed cache 2\n";

std::uint64_t fnv_1a(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const char letter : text) {
    value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  }
  return value;
}

bool has_its_time(const struct stat& file) {
  return file.st_mtim.tv_sec == copy_time_s(static_cast<std::uint64_t>(file.st_size),
                                            static_cast<std::uint32_t>(file.st_mtim.tv_nsec));
}

// Is what has the path a file, and no link to one, that is as it was fetched?
bool is_whole(const std::string& path, int fd) {
  struct stat named {};
  struct stat file {};
  if (::lstat(path.c_str(), &named) != 0 || S_ISLNK(named.st_mode)) return false;
  return ::fstat(fd, &file) == 0 && has_its_time(file);
}

// A directory, a FIFO or whatever else is no file, in a copy's place.
bool is_no_file(const std::string& path) {
  struct stat named {};
  return ::lstat(path.c_str(), &named) == 0 && !S_ISREG(named.st_mode);
}

std::string wish_path(const std::string& root, const std::string& name, bool ahead) {
  return fmt::format("{}/wanted/{}-{}", root, ahead ? 1 : 0, wish_hash(name));
}

}  // namespace

std::string wish_hash(std::string_view name) { return fmt::format("{:016x}", fnv_1a(name)); }

std::int64_t copy_time_s(std::uint64_t bytes, std::uint32_t nanoseconds) {
  return kTimesFromS +
         static_cast<std::int64_t>(fnv_1a(fmt::format("{} {}", bytes, nanoseconds)) % kTimesS);
}

CachedFiles::Root CachedFiles::root_at(const std::string& directory) {
  if (const auto known = roots_.find(directory); known != roots_.end()) return known->second;
  const std::string marker = directory + "/ringfeed-cache";
  const Result<std::string> layout = shm::read_regular_file(marker);
  Root root = Root::kNone;
  if (layout) {
    root = *layout == kTimedLayout ? Root::kTimed : Root::kCache;
  } else if (layout.error().code() == ErrorCode::kNoMemory) {
    // No descriptor is left to read it: it is asked again the next time.
    return ::access(marker.c_str(), F_OK) == 0 ? Root::kCache : Root::kNone;
  }
  if (roots_.size() >= kRootsMax) roots_.clear();
  return roots_.emplace(directory, root).first->second;
}

std::optional<CachedFiles::Copy> CachedFiles::copy_of(const std::string& path) {
  // The names below may hold "/objects/" too: the first that belongs to a cache is the cache's.
  for (std::size_t at = path.find(kObjects); at != std::string::npos;
       at = path.find(kObjects, at + 1)) {
    std::string root = path.substr(0, at);
    const Root kind = root_at(root);
    if (kind == Root::kNone) continue;
    return Copy{std::move(root), path.substr(at + kObjects.size()), kind == Root::kTimed};
  }
  return std::nullopt;
}

bool CachedFiles::is_damaged(const std::string& path, const struct stat& file) {
  if (has_its_time(file)) return false;
  const std::optional<Copy> copy = copy_of(path);
  return copy && copy->timed;
}

Result<shm::Fd> CachedFiles::open(const std::string& path, Wish wish) {
  Result<shm::Fd> fd = shm::open_regular(path);
  const std::optional<Copy> copy = copy_of(path);
  if (!copy) return fd;
  if (fd && copy->timed && !is_whole(path, fd->get())) return miss(path, *copy);
  if (fd) {
    // What was used last goes last. It may be somebody else's file: then it is as old as it is.
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                               {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
    static_cast<void>(::futimens(fd->get(), times));
    wished_.erase(path);
    if (wish == Wish::kDrop) {
      ::unlink(wish_path(copy->root, copy->name, false).c_str());
      ::unlink(wish_path(copy->root, copy->name, true).c_str());
    }
    return fd;
  }
  // EAGAIN looks like starvation: it is being removed just now.
  if (fd.error().code() == ErrorCode::kNoMemory) {
    return Error{ErrorCode::kBusy, fd.error().message()};
  }
  if (fd.error().code() != ErrorCode::kNotFound && !is_no_file(path)) return fd;
  return miss(path, *copy);
}

Error CachedFiles::miss(const std::string& path, const Copy& copy) {
  const std::string failure = fmt::format("{}/failed/{}", copy.root, wish_hash(copy.name));
  const std::string wish = wish_path(copy.root, copy.name, false);
  const Clock::time_point now = Clock::now();
  const auto wished = wished_.find(path);
  if (wished != wished_.end()) {
    const Result<shm::Fd> said = shm::open_regular(failure);
    const Result<std::string> told =
        said ? shm::read_to_end(said->get(), failure, kReasonBytesMax) : said.error();
    if (told && told->starts_with(copy.name + "\n")) {
      wished_.erase(wished);
      std::string reason = told->substr(copy.name.size() + 1);
      while (reason.ends_with('\n')) reason.pop_back();
      return Error{ErrorCode::kNotFound, std::move(reason)};
    }
    if (now - wished->second < kRenewAfter) {
      return Error{ErrorCode::kBusy, "it is being fetched"};
    }
    wished->second = now;
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                               {.tv_sec = 0, .tv_nsec = UTIME_NOW}};
    if (::utimensat(AT_FDCWD, wish.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0) {
      return Error{ErrorCode::kBusy, "it is being fetched"};
    }
  } else {
    // What was said to somebody else, or to a predecessor, is asked again.
    ::unlink(failure.c_str());
  }
  if (::symlink(copy.name.c_str(), wish.c_str()) != 0 && errno != EEXIST) {
    const int error = errno;
    // A disk without room for a name today may have it tomorrow.
    const bool may_pass = error == ENOSPC || error == EDQUOT || error == ENOMEM;
    return Error{may_pass ? ErrorCode::kBusy : ErrorCode::kNotFound,
                 fmt::format("it is no more in the cache {}, and cannot be wished for: {}",
                             copy.root, ::strerrordesc_np(error))};
  }
  wished_.insert_or_assign(path, now);
  return Error{ErrorCode::kBusy, "it is being fetched"};
}

void CachedFiles::ask_ahead(const std::string& path) {
  const std::optional<Copy> copy = copy_of(path);
  if (!copy) return;
  // It need not succeed: who opens it asks again.
  static_cast<void>(::symlink(copy->name.c_str(), wish_path(copy->root, copy->name, true).c_str()));
}

}  // namespace ringfeed
