#include "ringfeed/shm/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string_view>

#include "ringfeed/shm/segment.h"
#include "ringfeed/shm/starvation.h"

namespace ringfeed::shm {
namespace {

// ESRCH: a file of /proc whose process has ended since it was opened.
bool is_gone(int error) noexcept { return error == ENOENT || error == ESRCH; }

}  // namespace

void open_standard_streams() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

Result<std::string> read_to_end(int fd, const std::string& name, std::size_t bytes_max) {
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t got = ::read(fd, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return Error{is_gone(errno) ? ErrorCode::kNotFound : ErrorCode::kIo,
                   fmt::format("{}: {}", name, ::strerrordesc_np(errno))};
    }
    if (got == 0) return text;
    if (text.size() + static_cast<std::size_t>(got) > bytes_max) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: has more than {} bytes", name, bytes_max)};
    }
    text.append(block, static_cast<std::size_t>(got));
  }
}

Result<std::string> read_file(const std::string& path, std::size_t bytes_max) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return Error{is_gone(errno) ? ErrorCode::kNotFound : ErrorCode::kIo,
                 fmt::format("{}: {}", path, ::strerrordesc_np(errno))};
  }
  return read_to_end(file.get(), path, bytes_max);
}

Result<std::string> read_regular_file(const std::string& path) {
  const Result<Fd> file = open_regular(path);
  if (!file) {
    return Error{file.error().code(), fmt::format("{}: {}", path, file.error().message())};
  }
  return read_to_end(file->get(), path);
}

Result<std::vector<std::string>> names_in(const std::string& directory) {
  const auto failed = [&] {
    return Error{is_gone(errno)         ? ErrorCode::kNotFound
                 : is_starvation(errno) ? ErrorCode::kNoMemory
                                        : ErrorCode::kIo,
                 fmt::format("{}: {}", directory, ::strerrordesc_np(errno))};
  };
  const auto close = [](DIR* entries) { ::closedir(entries); };
  const std::unique_ptr<DIR, decltype(close)> entries(::opendir(directory.c_str()), close);
  if (!entries) return failed();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return failed();
  return names;
}

Result<Fd> open_regular(const std::string& path) {
  const auto refused = [] {
    const bool gone = errno == ENOENT || errno == ENOTDIR;
    return Error{is_starvation(errno) ? ErrorCode::kNoMemory
                 : gone               ? ErrorCode::kNotFound
                                      : ErrorCode::kIo,
                 ::strerrordesc_np(errno)};
  };
  // Not blocking: on a regular file that means nothing, and a FIFO is opened without a writer.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return refused();
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return refused();
  if (S_ISREG(info.st_mode)) return fd;
  const char* const what = S_ISDIR(info.st_mode)    ? "a directory"
                           : S_ISFIFO(info.st_mode) ? "a FIFO"
                                                    : "a device";
  return Error{ErrorCode::kIo, fmt::format("it is {}, not a regular file", what)};
}

}  // namespace ringfeed::shm
