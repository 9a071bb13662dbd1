// A file from its beginning to its end, in pieces: plain, gzip (of any number of members) or
// Zstandard (of any number of frames), told apart by the first bytes and not by the name.
//
// Memory is bounded whatever the file says: two buffers, and the window of a Zstandard frame, at
// most kWindowBytesMax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

enum class Packing : std::uint8_t { kPlain, kGzip, kZstd };
[[nodiscard]] Packing packing_of(std::span<const std::byte> first_bytes) noexcept;
// The same of an open file.
[[nodiscard]] Result<Packing> packing_of(int fd);

class ByteStream {
 public:
  static constexpr std::size_t kWindowBytesMax = std::size_t{128} << 20;

  // Reads a file that is already open, which the stream takes. A plain one may be read from an
  // offset on; `end`: as far as this offset in the file.
  ByteStream(shm::Fd fd, Packing packing, std::uint64_t begin = 0, std::uint64_t end = kToEnd);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  static constexpr std::uint64_t kToEnd = ~std::uint64_t{0};

  // The next bytes, as many as are there at once; 0: the end. kIo: the system's reason; kDamaged:
  // what is wrong with the packed data and where; everything before it has been given.
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> out);
  // Of the bytes that read() gives, the number of the next one: in a plain file its offset.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  class Gzip;
  class Zstd;

  [[nodiscard]] Status refill();
  [[nodiscard]] Result<std::size_t> read_plain(std::span<std::byte> out);

  shm::Fd fd_;
  std::uint64_t at_;   // in the file, of what is read from it next
  std::uint64_t end_;  // in the file
  std::uint64_t offset_;
  std::vector<std::byte> input_;
  std::size_t input_begin_ = 0;  // of what has not been unpacked
  std::size_t input_end_ = 0;
  bool input_over_ = false;
  std::unique_ptr<Gzip> gzip_;
  std::unique_ptr<Zstd> zstd_;
};

}  // namespace ringfeed::formats
