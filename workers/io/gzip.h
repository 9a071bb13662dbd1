// GzipInflater: a whole gzip file or tar member in, its bytes or the reason why not out.
//
// Several gzip members one after the other are one stream, their contents joined. Header, CRC-32
// and length of every member are verified, and the checksum of the header where there is one. Zeros
// between members and behind the last one are padding. What else follows the last member is passed
// over and counted (trailing_bytes).
// Once its buffer has grown to the largest chunk, nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct libdeflate_decompressor;

namespace ringfeed::formats {

enum class GzipStatus : std::uint8_t {
  kOk,
  kNotGzip,      // does not begin with a gzip header (an empty input included)
  kTruncated,    // ends before its last member does
  kBadHeader,    // a gzip header with another method, with reserved flags or another checksum
  kBadData,      // no valid deflate stream
  kBadChecksum,  // inflates, but to other bytes than were packed: CRC-32
  kBadLength,    // inflates, but to another length than the trailer says
  kTooLarge,     // more bytes than the output or the limit has room for
  kNoMemory,
};
// A word for counters and logs: "ok", "not_gzip", "truncated", ...
[[nodiscard]] const char* gzip_status_name(GzipStatus status) noexcept;

struct GzipOutcome {
  GzipStatus status = GzipStatus::kNotGzip;
  std::size_t inflated_bytes =
      0;                         // whole if kOk, else what the members before the refused one gave
  std::size_t member_count = 0;  // whole members
  std::size_t input_offset =
      0;  // where the member begins that was refused; if kOk, the end of the last one
  std::size_t trailing_bytes = 0;  // if kOk: input after the last member and its padding
  [[nodiscard]] bool ok() const noexcept { return status == GzipStatus::kOk; }
};

// Refusal with its numbers and what to do, for the log; `limit_bytes` is what kTooLarge speaks of.
[[nodiscard]] std::string gzip_outcome_text(const GzipOutcome& outcome, std::size_t limit_bytes);

inline constexpr std::size_t kInflatedBytesMax = std::size_t{256} << 20;

// Whether these bytes begin like a gzip file (magic 1f 8b).
[[nodiscard]] bool is_gzip(std::span<const std::byte> bytes) noexcept;

// The header of the member at the front of `bytes`. kTruncated: it does not end there.
struct GzipHeader {
  GzipStatus status = GzipStatus::kNotGzip;
  std::size_t bytes = 0;  // if kOk
};
[[nodiscard]] GzipHeader read_gzip_header(std::span<const std::byte> bytes) noexcept;

// The uncompressed length, modulo 2^32, that the last four bytes of a gzip file of one member say:
// a chunk's frames are known without inflating it. A claim, to be verified when the chunk is read;
// damage and trailing bytes make it lie.
[[nodiscard]] std::uint32_t gzip_uncompressed_bytes(std::span<const std::byte, 4> trailer) noexcept;

// Serves one thread.
class GzipInflater {
 public:
  explicit GzipInflater(std::size_t inflated_bytes_max = kInflatedBytesMax) noexcept;
  ~GzipInflater();
  GzipInflater(const GzipInflater&) = delete;
  GzipInflater& operator=(const GzipInflater&) = delete;

  // Inflates all of `input` into the front of `output`. What `output` holds after a refusal is
  // undefined. The deflate decoder writes nowhere else.
  [[nodiscard]] GzipOutcome inflate_into(std::span<const std::byte> input,
                                         std::span<std::byte> output) noexcept;

  // Inflates into a buffer of its own, which starts from the length in the trailer and doubles when
  // that lied, up to the limit. `*inflated` stays valid until the next call.
  [[nodiscard]] GzipOutcome inflate(std::span<const std::byte> input,
                                    std::span<const std::byte>* inflated) noexcept;

  // For files named .gz: the same, but bytes that are no gzip file at all are handed back as they
  // are (kOk, no members, `*bytes` is `input`); so tools that store plain records under that name
  // are served.
  [[nodiscard]] GzipOutcome inflate_or_verbatim(std::span<const std::byte> input,
                                                std::span<const std::byte>* bytes) noexcept;

  [[nodiscard]] std::size_t inflated_bytes_max() const noexcept { return inflated_bytes_max_; }
  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return buffer_bytes_; }

 private:
  struct FreeDecompressor {
    void operator()(libdeflate_decompressor* decompressor) const noexcept;
  };
  struct FreeBuffer {
    void operator()(std::byte* buffer) const noexcept;
  };
  bool grow(std::size_t bytes) noexcept;

  std::unique_ptr<libdeflate_decompressor, FreeDecompressor> decompressor_;
  std::unique_ptr<std::byte, FreeBuffer> buffer_;
  std::size_t buffer_bytes_ = 0;
  std::size_t inflated_bytes_max_;
};

}  // namespace ringfeed::formats
