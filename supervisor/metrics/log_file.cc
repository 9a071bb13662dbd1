#include "supervisor/metrics/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ringfeed/shm/quote.h"

namespace ringfeed::metrics {
namespace {

// Never waits for anybody; what is written to it later may.
Result<shm::Fd> open_log(const std::string& file, int more = 0) {
  // Not blocking: a FIFO would be opened when somebody reads it.
  shm::Fd fd(::open(file.c_str(),
                    O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more,
                    0644));
  if (!fd && errno == ENXIO) {
    return Error{ErrorCode::kIo,
                 "it is a FIFO that nobody reads (start its reader first), or a "
                 "socket"};
  }
  // The description is this process's own, so nobody else is told to wait.
  if (!fd || ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK) != 0) {
    return Error{ErrorCode::kIo, std::strerror(errno)};
  }
  return fd;
}

std::string numbered(const std::string& path, std::uint32_t number) {
  return fmt::format("{}.{}", path, number);
}

Status rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return {};
  return Error{ErrorCode::kIo, fmt::format("{} cannot be renamed to {}: {}", escaped(from),
                                           escaped(to), std::strerror(errno))};
}

}  // namespace

Result<LogFile> LogFile::open(const std::string& path) {
  Result<shm::Fd> opened = open_log(path);
  if (!opened) return opened.error();
  LogFile file;
  file.path_ = path;
  file.fd_ = std::move(*opened);
  return file;
}

std::uint64_t LogFile::bytes() const {
  struct stat here {};
  if (::fstat(fd_.get(), &here) != 0 || !S_ISREG(here.st_mode)) return 0;
  return static_cast<std::uint64_t>(here.st_size);
}

Status LogFile::reopen() {
  Result<shm::Fd> fresh = open_log(path_);
  if (!fresh) return fresh.error();
  fd_ = std::move(*fresh);
  return {};
}

Status LogFile::rotate(std::uint32_t keep) {
  struct stat here {};
  struct stat there {};
  if (::fstat(fd_.get(), &here) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  if (::stat(path_.c_str(), &there) != 0 || here.st_dev != there.st_dev ||
      here.st_ino != there.st_ino) {
    return reopen();
  }
  const std::string next = path_ + ".new";
  Result<shm::Fd> fresh = open_log(next, O_NOFOLLOW);
  if (!fresh) {
    return Error{ErrorCode::kIo,
                 fmt::format("{} cannot be made: {}", escaped(next), fresh.error().message())};
  }
  // Whoever may read the old one may read the new one.
  static_cast<void>(::fchmod(fresh->get(), here.st_mode & 07777));
  for (std::uint32_t i = keep; i > 1; --i) {
    if (::access(numbered(path_, i - 1).c_str(), F_OK) != 0) continue;
    if (Status moved = rename(numbered(path_, i - 1), numbered(path_, i)); !moved) {
      ::unlink(next.c_str());
      return moved;
    }
  }
  Status moved = rename(path_, numbered(path_, 1));
  if (moved) {
    moved = rename(next, path_);
    if (!moved) static_cast<void>(rename(numbered(path_, 1), path_));
  }
  if (!moved) {
    ::unlink(next.c_str());
    return moved;
  }
  fd_ = std::move(*fresh);
  return {};
}

}  // namespace ringfeed::metrics
