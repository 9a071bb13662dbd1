#include "supervisor/report/report_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::report {
namespace {

Error failed(const std::string& path, int error) {
  const char* const remedy = error == ENOSPC || error == EDQUOT
                                 ? "make room, or name a file elsewhere"
                             : error == ENOENT || error == ENOTDIR ? "make its directory first"
                             : error == EFBIG ? "raise the limit of file sizes (ulimit -f)"
                                              : "name a file that can be written";
  return {ErrorCode::kIo, fmt::format("the report {} cannot be written: {}: {}", escaped(path),
                                      std::strerror(error), remedy)};
}

// A new file beside `path`, with a name that nobody else has; it is gone with this object, unless
// it was put in its place.
class Beside {
 public:
  explicit Beside(const std::string& path) : name_(path + ".XXXXXX") {
    fd_ = shm::Fd(::mkostemp(name_.data(), O_CLOEXEC));
    if (!fd_) name_.clear();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool put_at(const std::string& path) {
    if (::rename(name_.c_str(), path.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  std::string name_;
  shm::Fd fd_;
};

// As the umask has it, and not as mkostemp() makes files, which are their owner's alone.
mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

Status try_report(const std::string& path) {
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the report {} cannot be written: that is {}: name a file",
                             escaped(path), S_ISDIR(there.st_mode) ? "a directory" : "no file"));
  }
  const Beside file(path);
  if (file.fd() < 0) return failed(path, errno);
  return {};
}

Status write_report(const std::string& path, std::string_view page) {
  Beside file(path);
  if (file.fd() < 0) return failed(path, errno);
  while (!page.empty()) {
    const ssize_t n = ::write(file.fd(), page.data(), page.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, errno);
    page.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::fchmod(file.fd(), usual_mode()) != 0 || ::fsync(file.fd()) != 0 || !file.put_at(path)) {
    return failed(path, errno);
  }
  return {};
}

}  // namespace ringfeed::report
