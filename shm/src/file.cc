#include "ringfeed/shm/file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {

Result<std::string> read_file(const std::string& path) noexcept {
  const auto refused = [&path] {
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 fmt::format("{}: {}", path, ::strerrordesc_np(errno))};
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return refused();
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused();
    if (got == 0) return text;
    text.append(block, static_cast<std::size_t>(got));
  }
}

}  // namespace ringfeed::shm
