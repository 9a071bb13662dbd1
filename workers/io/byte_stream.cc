#include "workers/io/byte_stream.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "workers/io/unpacker.h"

namespace ringfeed::formats {
namespace {

constexpr std::size_t kInputBytes = std::size_t{256} << 10;
// By so many bytes the beginning of a member is told from others.
constexpr std::size_t kMagicBytesMax = 6;
constexpr int kIdleStepsMax = 8;

bool begins(std::span<const std::byte> bytes, std::initializer_list<unsigned> magic) noexcept {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), bytes.begin(), [](unsigned wanted, std::byte is) {
           return std::byte{static_cast<std::uint8_t>(wanted)} == is;
         });
}

}  // namespace

Packing packing_of(std::span<const std::byte> bytes) noexcept {
  if (begins(bytes, {0x1f, 0x8b})) return Packing::kGzip;
  if (begins(bytes, {0x28, 0xb5, 0x2f, 0xfd})) return Packing::kZstd;
  // A skippable frame, as pzstd writes one before each other frame.
  if (bytes.size() >= 4 && (bytes[0] & std::byte{0xf0}) == std::byte{0x50} &&
      begins(bytes.subspan(1), {0x2a, 0x4d, 0x18})) {
    return Packing::kZstd;
  }
  if (begins(bytes, {'B', 'Z', 'h'}) && bytes.size() >= 4 && bytes[3] >= std::byte{'1'} &&
      bytes[3] <= std::byte{'9'}) {
    // A text may begin so: what follows is a block, or the end of a stream without any.
    const std::span<const std::byte> rest =
        bytes.subspan(4, std::min<std::size_t>(bytes.size() - 4, 2));
    if (begins(rest, {0x31, 0x41}) || begins(rest, {0x17, 0x72})) return Packing::kBzip2;
  }
  if (begins(bytes, {0xfd, '7', 'z', 'X', 'Z', 0})) return Packing::kXz;
  return Packing::kPlain;
}

Result<Packing> packing_of(int fd) {
  std::byte first[kMagicBytesMax];
  const ssize_t got = ::pread(fd, first, sizeof first, 0);
  if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  return packing_of(std::span(first).first(static_cast<std::size_t>(got)));
}

ByteStream::ByteStream(shm::Fd fd, Packing packing, std::uint64_t begin,
                       std::uint64_t window_bytes_max)
    : ByteStream(fd.get(), packing, begin, window_bytes_max) {
  own_ = std::move(fd);
}

ByteStream::ByteStream(int fd, Packing packing, std::uint64_t begin, std::uint64_t window_bytes_max)
    : fd_(fd), at_(begin), offset_(begin), checked_(0), packing_(packing) {
  if (packing == Packing::kPlain) {
    checked_ = kToEnd;
    return;
  }
  RF_CHECK(begin == 0, begin);
  input_.resize(kInputBytes);
  unpacker_ = unpacker_of(packing, window_bytes_max);
}

ByteStream::~ByteStream() = default;

Result<std::size_t> ByteStream::read_plain(std::span<std::byte> out) {
  for (;;) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    at_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
}

// More input behind what is there.
Status ByteStream::refill() {
  if (input_over_) return {};
  std::copy(input_.begin() + static_cast<std::ptrdiff_t>(input_begin_),
            input_.begin() + static_cast<std::ptrdiff_t>(input_end_), input_.begin());
  input_end_ -= std::exchange(input_begin_, 0);
  const Result<std::size_t> got = read_plain(std::span(input_).subspan(input_end_));
  if (!got) return got.error();
  input_end_ += *got;
  input_over_ = *got == 0;
  return {};
}

Result<bool> ByteStream::begin_member() {
  for (;;) {
    if (any_) {
      while (input_begin_ != input_end_ && input_[input_begin_] == std::byte{0}) ++input_begin_;
    }
    if (input_over_ || input_end_ - input_begin_ >= kMagicBytesMax) break;
    if (Status filled = refill(); !filled) return filled.error();
  }
  const std::span<const std::byte> next(input_.data() + input_begin_, input_end_ - input_begin_);
  if (packing_of(next) != packing_) {
    if (!next.empty()) {
      struct stat file {};
      const std::uint64_t begin = at_ - next.size();
      const bool known = ::fstat(fd_, &file) == 0;
      trailing_bytes_ = std::max(known ? static_cast<std::uint64_t>(file.st_size) : 0, at_) - begin;
    }
    return false;
  }
  if (Status begun = unpacker_->begin(); !begun) return begun.error();
  return true;
}

Result<std::size_t> ByteStream::read(std::span<std::byte> out) {
  if (out.empty()) return std::size_t{0};
  if (unpacker_ == nullptr) {
    Result<std::size_t> got = read_plain(out);
    if (got) offset_ += *got;
    return got;
  }
  std::size_t given = 0;
  int idle = 0;  // steps without a byte in or out
  while (given < out.size() && !over_ && !fault_) {
    if (!in_member_) {
      const Result<bool> follows = begin_member();
      if (!follows) fault_ = follows.error();
      in_member_ = follows && *follows;
      over_ = follows && !*follows;
      continue;
    }
    if (input_begin_ == input_end_) {
      // What there is goes out before the file is waited for.
      if (given != 0) break;
      if (Status filled = refill(); !filled) fault_ = filled.error();
      if (!fault_ && input_begin_ == input_end_) {
        // What it has taken may not have come out yet.
        Unpacker::Step rest;
        if (unpacker_->run({}, out, rest) && rest.given != 0) {
          offset_ += rest.given;
          return rest.given;
        }
        fault_ = Error{ErrorCode::kDamaged,
                       fmt::format("byte {} of the file: it ends in the middle of its packed data: "
                                   "it has been truncated or is still being written",
                                   at_)};
      }
      continue;
    }
    Unpacker::Step step;
    const Status ran = unpacker_->run(
        std::span<const std::byte>(input_).subspan(input_begin_, input_end_ - input_begin_),
        out.subspan(given), step);
    input_begin_ += step.used;
    if (!ran) {
      // What this call has of the member is in doubt.
      const std::uint64_t doubted = std::min<std::uint64_t>(offset_ - checked_, given);
      given -= doubted;
      offset_ -= doubted;
      fault_ = Error{ran.error().code(),
                     fmt::format("byte {} of the file: {}", at_ - (input_end_ - input_begin_),
                                 ran.error().message())};
      break;
    }
    if (step.used != 0 || step.given != 0) idle = 0;
    if (++idle > kIdleStepsMax) fault_ = Error{ErrorCode::kDamaged, "unpacking it gets nowhere"};
    given += step.given;
    offset_ += step.given;
    if (!step.ended) continue;
    in_member_ = false;
    any_ = true;
    checked_ = offset_;
  }
  if (given == 0 && fault_) return *fault_;
  return given;
}

}  // namespace ringfeed::formats
