#include "workers/io/byte_stream.h"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringfeed::formats {
namespace {

constexpr std::size_t kInputBytes = std::size_t{256} << 10;

Error damaged(std::uint64_t at, std::string_view what) {
  return {ErrorCode::kDamaged, fmt::format("byte {} of the file: {}", at, what)};
}

Error truncated(std::uint64_t at) {
  return damaged(at,
                 "it ends in the middle of its packed data: it has been truncated or is still "
                 "being written");
}

}  // namespace

Packing packing_of(std::span<const std::byte> bytes) noexcept {
  const auto begins = [&](std::initializer_list<unsigned> magic) {
    return bytes.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), bytes.begin(), [](unsigned wanted, std::byte is) {
             return std::byte{static_cast<std::uint8_t>(wanted)} == is;
           });
  };
  if (begins({0x1f, 0x8b})) return Packing::kGzip;
  if (begins({0x28, 0xb5, 0x2f, 0xfd})) return Packing::kZstd;
  return Packing::kPlain;
}

Result<Packing> packing_of(int fd) {
  std::byte first[4];
  const ssize_t got = ::pread(fd, first, sizeof first, 0);
  if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  return packing_of(std::span(first).first(static_cast<std::size_t>(got)));
}

class ByteStream::Gzip {
 public:
  Gzip() { begin(); }
  void begin() {
    ::isal_inflate_init(&state);
    state.crc_flag = ISAL_GZIP;
    in_member = false;
  }
  inflate_state state{};
  bool in_member = false;  // bytes of the present one have been taken
  bool any = false;        // a member has ended
};

class ByteStream::Zstd {
 public:
  Zstd() : context(::ZSTD_createDCtx()) {
    if (context != nullptr) {
      ::ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, 27);  // kWindowBytesMax
    }
  }
  ~Zstd() { ::ZSTD_freeDCtx(context); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;
  ZSTD_DCtx* context;
  std::size_t wants = 0;  // 0: between two frames
};

ByteStream::ByteStream(shm::Fd fd, Packing packing, std::uint64_t begin, std::uint64_t end)
    : fd_(std::move(fd)), at_(begin), end_(end), offset_(begin) {
  if (packing == Packing::kPlain) return;
  RF_CHECK(begin == 0, begin);
  input_.resize(kInputBytes);
  if (packing == Packing::kGzip) {
    gzip_ = std::make_unique<Gzip>();
  } else {
    zstd_ = std::make_unique<Zstd>();
  }
}

ByteStream::~ByteStream() = default;

Result<std::size_t> ByteStream::read_plain(std::span<std::byte> out) {
  const std::size_t wanted = std::min<std::uint64_t>(out.size(), end_ - std::min(at_, end_));
  while (wanted != 0) {
    const ssize_t got = ::pread(fd_.get(), out.data(), wanted, static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    at_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
  return std::size_t{0};
}

Status ByteStream::refill() {
  if (input_begin_ != input_end_ || input_over_) return {};
  const Result<std::size_t> got = read_plain(input_);
  if (!got) return got.error();
  input_begin_ = 0;
  input_end_ = *got;
  input_over_ = *got == 0;
  return {};
}

Result<std::size_t> ByteStream::read(std::span<std::byte> out) {
  if (out.empty()) return std::size_t{0};
  if (gzip_ == nullptr && zstd_ == nullptr) {
    Result<std::size_t> got = read_plain(out);
    if (got) offset_ += *got;
    return got;
  }
  for (;;) {
    if (Status filled = refill(); !filled) return filled.error();
    const std::size_t have = input_end_ - input_begin_;
    const std::uint64_t packed_at = at_ - have;
    std::size_t used = 0;
    std::size_t given = 0;
    if (gzip_ != nullptr) {
      if (have == 0) {
        if (gzip_->in_member || !gzip_->any) return truncated(packed_at);
        return std::size_t{0};
      }
      const auto* from = reinterpret_cast<const std::uint8_t*>(input_.data() + input_begin_);
      // Behind the last member there may be padding, or what no reader of gzip files looks at.
      if (!gzip_->in_member && gzip_->any && *from != 0x1f) {
        input_begin_ = input_end_;
        continue;
      }
      inflate_state& state = gzip_->state;
      state.next_in = const_cast<std::uint8_t*>(from);
      state.avail_in = static_cast<std::uint32_t>(have);
      state.next_out = reinterpret_cast<std::uint8_t*>(out.data());
      state.avail_out = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), 1U << 30));
      const std::uint32_t room = state.avail_out;
      gzip_->in_member = true;
      const int status = ::isal_inflate(&state);
      used = have - state.avail_in;
      given = room - state.avail_out;
      if (status < 0) {
        if (given == 0)
          return damaged(packed_at + used, fmt::format("no valid gzip data ({})", status));
        // What came before it is given first: the next call meets the fault again.
        state.avail_in = 0;
      }
      if (state.block_state == ISAL_BLOCK_FINISH) {
        gzip_->begin();
        gzip_->any = true;
      }
    } else {
      if (zstd_->context == nullptr) return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
      if (have == 0) {
        if (zstd_->wants != 0) return truncated(packed_at);
        return std::size_t{0};
      }
      ZSTD_inBuffer in{input_.data() + input_begin_, have, 0};
      ZSTD_outBuffer to{out.data(), out.size(), 0};
      const std::size_t status = ::ZSTD_decompressStream(zstd_->context, &to, &in);
      if (::ZSTD_isError(status) != 0) {
        return damaged(packed_at + in.pos,
                       fmt::format("no valid Zstandard data: {}", ::ZSTD_getErrorName(status)));
      }
      zstd_->wants = status;
      used = in.pos;
      given = to.pos;
    }
    input_begin_ += used;
    offset_ += given;
    if (given != 0) return given;
  }
}

}  // namespace ringfeed::formats
