#include "workers/inspect/describers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "ringfeed/shm/result.h"
#include "workers/io/tar.h"

namespace ringfeed::inspect {

using nlohmann::ordered_json;

File::File(const std::string& path)
    // Not blocking: a pipe that nobody writes to is not waited for.
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status {};
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, fmt::format("{}: is neither a file nor a directory", path));
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

std::vector<std::byte> File::read(std::uint64_t offset, std::uint64_t count) const {
  if (offset >= bytes_) return {};
  std::vector<std::byte> out(static_cast<std::size_t>(std::min(count, bytes_ - offset)));
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read at byte {}: {}", path_,
                                              offset + done, std::strerror(errno)));
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  out.resize(done);
  return out;
}

std::vector<std::byte> File::read_whole(std::uint64_t most) const {
  if (bytes_ > most) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} bytes are more than one game can have ({})", path_, bytes_, most));
  }
  return read(0, bytes_);
}

void Report::is(const char* kind, std::string text) {
  out["kind"] = kind;
  out["text"] = std::move(text);
}

void Report::problem(std::string text) { out["problems"].push_back(std::move(text)); }

void refuse(std::string text) { throw Error(ErrorCode::kInvalidArgument, std::move(text)); }

bool is_tar(std::span<const std::byte> head) {
  constexpr std::size_t kMagicAt = 257;
  return head.size() >= formats::kTarBlockBytes && text_of(head).substr(kMagicAt, 5) == "ustar";
}

std::string plural(std::uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string number_text(const ordered_json& value) {
  if (!value.is_number_float()) return value.dump();
  const auto number = value.get<double>();
  return std::isnan(number) ? "nan" : fmt::format("{}", number);
}

}  // namespace ringfeed::inspect
