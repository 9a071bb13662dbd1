#include "workers/io/unpacker.h"

#include <bzlib.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <lzma.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "workers/io/gzip.h"
#include "workers/io/late_library.h"

namespace ringfeed::formats {
namespace {

// Bytes that a library is handed at once: it counts in 32 bits.
constexpr std::size_t kPieceBytesMax = std::size_t{1} << 30;

Error packed_damaged(std::string text) { return {ErrorCode::kDamaged, std::move(text)}; }

Error beyond_limit(std::string_view what, std::uint64_t window_bytes_max) {
  return {
      ErrorCode::kUnsupported,
      fmt::format("{} takes more than {} bytes: raise window_bytes_max", what, window_bytes_max)};
}

class GzipUnpacker final : public Unpacker {
 public:
  Status begin() override {
    ::isal_inflate_init(&state_);
    state_.crc_flag = ISAL_GZIP_NO_HDR;
    header_.clear();
    trailer_.clear();
    phase_ = Phase::kHeader;
    bytes_ = 0;
    return {};
  }

  Status run(std::span<const std::byte> in, std::span<std::byte> out, Step& step) override {
    switch (phase_) {
      case Phase::kHeader:
        return header(in, step);
      case Phase::kData:
        return data(in, out, step);
      case Phase::kTrailer:
        break;
    }
    step.used = std::min(in.size(), kTrailerBytes - trailer_.size());
    trailer_.insert(trailer_.end(), in.begin(),
                    in.begin() + static_cast<std::ptrdiff_t>(step.used));
    if (trailer_.size() < kTrailerBytes) return {};
    std::uint32_t said[2];
    std::memcpy(said, trailer_.data(), sizeof said);
    if (said[0] != state_.crc) {
      return packed_damaged("what its gzip member unpacks to has another CRC-32 than was packed");
    }
    if (said[1] != static_cast<std::uint32_t>(bytes_)) {
      return packed_damaged(fmt::format("its gzip member says that it has {} bytes, and has {}",
                                        said[1], static_cast<std::uint32_t>(bytes_)));
    }
    step.ended = true;
    return {};
  }

 private:
  static constexpr std::size_t kTrailerBytes = 8;
  // A name or comment may be of any length; nobody writes one like this.
  static constexpr std::size_t kHeaderBytesMax = std::size_t{1} << 20;

  Status header(std::span<const std::byte> in, Step& step) {
    const std::size_t before = header_.size();
    header_.insert(header_.end(), in.begin(), in.end());
    const GzipHeader read = read_gzip_header(header_);
    if (read.status == GzipStatus::kTruncated && header_.size() < kHeaderBytesMax) {
      step.used = in.size();
      return {};
    }
    if (read.status != GzipStatus::kOk) {
      return packed_damaged("the header of its gzip member is damaged, or of an unknown kind");
    }
    step.used = read.bytes - before;
    phase_ = Phase::kData;
    return {};
  }

  Status data(std::span<const std::byte> in, std::span<std::byte> out, Step& step) {
    const auto have = static_cast<std::uint32_t>(std::min(in.size(), kPieceBytesMax));
    const auto room = static_cast<std::uint32_t>(std::min(out.size(), kPieceBytesMax));
    state_.next_in = const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(in.data()));
    state_.avail_in = have;
    state_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    state_.avail_out = room;
    const int status = ::isal_inflate(&state_);
    step.used = have - state_.avail_in;
    step.given = room - state_.avail_out;
    bytes_ += step.given;
    if (status < 0) return packed_damaged(fmt::format("its gzip data is not valid ({})", status));
    if (state_.block_state != ISAL_BLOCK_FINISH) return {};
    // It reads ahead: what lies behind the last bits is in its buffer.
    std::uint64_t ahead = state_.read_in >> (state_.read_in_length % 8);
    for (std::int32_t left = state_.read_in_length / 8; left > 0; --left, ahead >>= 8) {
      trailer_.push_back(static_cast<std::byte>(ahead & 0xFF));
    }
    RF_CHECK(trailer_.size() < kTrailerBytes, trailer_.size());
    phase_ = Phase::kTrailer;
    return {};
  }

  enum class Phase : std::uint8_t { kHeader, kData, kTrailer };
  inflate_state state_{};
  Phase phase_ = Phase::kHeader;
  std::vector<std::byte> header_;
  std::vector<std::byte> trailer_;
  std::uint64_t bytes_ = 0;  // unpacked, of this member
};

class ZstdUnpacker final : public Unpacker {
 public:
  explicit ZstdUnpacker(std::uint64_t window_bytes_max)
      : context_(::ZSTD_createDCtx()), window_bytes_max_(window_bytes_max) {
    if (context_ == nullptr) return;
    ::ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax,
                             static_cast<int>(std::bit_width(window_bytes_max)) - 1);
  }
  ~ZstdUnpacker() override { ::ZSTD_freeDCtx(context_); }

  Status begin() override {
    if (context_ == nullptr) return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
    ::ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
    return {};
  }

  Status run(std::span<const std::byte> in, std::span<std::byte> out, Step& step) override {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const std::size_t status = ::ZSTD_decompressStream(context_, &to, &from);
    step.used = from.pos;
    step.given = to.pos;
    step.ended = status == 0;
    if (::ZSTD_isError(status) == 0) return {};
    switch (::ZSTD_getErrorCode(status)) {
      case ZSTD_error_frameParameter_windowTooLarge:
        return beyond_limit("the window of its Zstandard frame", window_bytes_max_);
      case ZSTD_error_memory_allocation:
        return Error{ErrorCode::kNoMemory, "no memory for the window of its Zstandard frame"};
      case ZSTD_error_dictionary_wrong:
        return Error{ErrorCode::kUnsupported,
                     "its Zstandard frame was packed with a dictionary, which is not in the file: "
                     "unpack it beforehand"};
      default:
        return packed_damaged(
            fmt::format("its Zstandard data is not valid: {}", ::ZSTD_getErrorName(status)));
    }
  }

 private:
  ZSTD_DCtx* context_;
  std::uint64_t window_bytes_max_;
};

// libbz2 is loaded when it is needed: its static library cannot be part of a module, and a wheel
// has nobody who would install it.
struct Bzip2 {
  decltype(&::BZ2_bzDecompressInit) begin = nullptr;
  decltype(&::BZ2_bzDecompress) run = nullptr;
  decltype(&::BZ2_bzDecompressEnd) end = nullptr;

  // kNoMemory: there is no descriptor or memory for it now. kUnsupported: it is not there.
  static Result<const Bzip2*> library() {
    static std::mutex mutex;
    static Bzip2 loaded;
    const std::lock_guard lock(mutex);
    if (loaded.is_there()) return &loaded;
    for (const char* const name : {"libbz2.so.1.0", "libbz2.so.1"}) {
      void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        if (const std::string why = ::dlerror(); is_starved_load(why)) {
          return Error{ErrorCode::kNoMemory, why};
        }
        continue;
      }
      loaded.begin = reinterpret_cast<decltype(begin)>(::dlsym(library, "BZ2_bzDecompressInit"));
      loaded.run = reinterpret_cast<decltype(run)>(::dlsym(library, "BZ2_bzDecompress"));
      loaded.end = reinterpret_cast<decltype(end)>(::dlsym(library, "BZ2_bzDecompressEnd"));
      if (loaded.is_there()) return &loaded;
    }
    return Error{ErrorCode::kUnsupported, "bzip2 needs libbz2: install libbz2-1.0 (bzip2-libs)"};
  }
  [[nodiscard]] bool is_there() const {
    return begin != nullptr && run != nullptr && end != nullptr;
  }
};

class Bzip2Unpacker final : public Unpacker {
 public:
  ~Bzip2Unpacker() override { end(); }

  Status begin() override {
    end();
    stream_ = {};
    const Result<const Bzip2*> library = Bzip2::library();
    if (!library) return library.error();
    library_ = *library;
    if (library_->begin(&stream_, 0, 0) != BZ_OK) {
      return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
    }
    begun_ = true;
    return {};
  }

  Status run(std::span<const std::byte> in, std::span<std::byte> out, Step& step) override {
    const auto have = static_cast<unsigned>(std::min(in.size(), kPieceBytesMax));
    const auto room = static_cast<unsigned>(std::min(out.size(), kPieceBytesMax));
    stream_.next_in = const_cast<char*>(reinterpret_cast<const char*>(in.data()));
    stream_.avail_in = have;
    stream_.next_out = reinterpret_cast<char*>(out.data());
    stream_.avail_out = room;
    const int status = library_->run(&stream_);
    step.used = have - stream_.avail_in;
    step.given = room - stream_.avail_out;
    step.ended = status == BZ_STREAM_END;
    if (status == BZ_OK || status == BZ_STREAM_END) return {};
    if (status == BZ_MEM_ERROR) return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
    return packed_damaged(
        fmt::format("its bzip2 data is not valid, or has another checksum ({})", status));
  }

 private:
  void end() {
    if (std::exchange(begun_, false)) library_->end(&stream_);
  }
  const Bzip2* library_ = nullptr;
  bz_stream stream_{};
  bool begun_ = false;
};

class XzUnpacker final : public Unpacker {
 public:
  explicit XzUnpacker(std::uint64_t memory_bytes_max) : memory_bytes_max_(memory_bytes_max) {}
  ~XzUnpacker() override { ::lzma_end(&stream_); }

  Status begin() override {
    const lzma_ret status =
        ::lzma_stream_decoder(&stream_, memory_bytes_max_, LZMA_TELL_UNSUPPORTED_CHECK);
    if (status != LZMA_OK) return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
    return {};
  }

  Status run(std::span<const std::byte> in, std::span<std::byte> out, Step& step) override {
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
    stream_.avail_in = in.size();
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    stream_.avail_out = out.size();
    const lzma_ret status = ::lzma_code(&stream_, LZMA_RUN);
    step.used = in.size() - stream_.avail_in;
    step.given = out.size() - stream_.avail_out;
    step.ended = status == LZMA_STREAM_END;
    switch (status) {
      case LZMA_OK:
      case LZMA_STREAM_END:
      case LZMA_BUF_ERROR:  // it could do nothing with this input alone
        return {};
      case LZMA_MEMLIMIT_ERROR:
        return beyond_limit("the dictionary of its xz data", memory_bytes_max_);
      case LZMA_MEM_ERROR:
        return Error{ErrorCode::kNoMemory, "no memory to unpack it"};
      case LZMA_OPTIONS_ERROR:
      case LZMA_UNSUPPORTED_CHECK:
        return Error{ErrorCode::kUnsupported,
                     fmt::format("its xz data is of a kind that liblzma {} does not know",
                                 ::lzma_version_string())};
      default:
        return packed_damaged(fmt::format("its xz data is not valid, or has another checksum ({})",
                                          static_cast<int>(status)));
    }
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
  std::uint64_t memory_bytes_max_;
};

}  // namespace

Status ready_to_unpack(Packing packing) {
  if (packing != Packing::kBzip2) return {};
  const Result<const Bzip2*> library = Bzip2::library();
  if (!library && library.error().code() == ErrorCode::kNoMemory) return library.error();
  return {};
}

std::unique_ptr<Unpacker> unpacker_of(Packing packing, std::uint64_t window_bytes_max) {
  switch (packing) {
    case Packing::kGzip:
      return std::make_unique<GzipUnpacker>();
    case Packing::kZstd:
      return std::make_unique<ZstdUnpacker>(window_bytes_max);
    case Packing::kBzip2:
      return std::make_unique<Bzip2Unpacker>();
    case Packing::kXz:
      return std::make_unique<XzUnpacker>(window_bytes_max);
    case Packing::kPlain:
      break;
  }
  RF_CHECK(packing != Packing::kPlain);
  return nullptr;
}

}  // namespace ringfeed::formats
