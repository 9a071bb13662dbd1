// A file from its beginning to its end, in pieces: plain, or packed by gzip, Zstandard, bzip2 or
// xz, of any number of members (gzip), frames (Zstandard) or streams (the others), called members
// here. How it is packed is told by the first bytes and not by the name.
//
// Every check that the packing has is made: checksums of contents and headers, and lengths. Zeros
// between members and behind the last one are padding. Whatever else follows the last member is not
// read, and trailing_bytes() says how much it is.
//
// Memory is bounded whatever the file says: two buffers, and what unpacking takes, at most the
// limit that the stream is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

enum class Packing : std::uint8_t { kPlain, kGzip, kZstd, kBzip2, kXz };
[[nodiscard]] Packing packing_of(std::span<const std::byte> first_bytes) noexcept;
// The same of an open file.
[[nodiscard]] Result<Packing> packing_of(int fd);

// Unpacks one member after the other; one class for each packing.
class Unpacker;

// Loads what unpacks such files, if that is a library that is not loaded yet. kNoMemory: there is
// no descriptor or memory for it now.
[[nodiscard]] Status ready_to_unpack(Packing packing);

class ByteStream {
 public:
  // The longest window that a Zstandard frame can have.
  static constexpr std::uint64_t kWindowBytesMax = std::uint64_t{2} << 30;

  // Reads a file that is already open, which the stream takes. A plain one may be read from an
  // offset on. `window_bytes_max`: the window of a Zstandard frame, the memory for an xz stream.
  ByteStream(shm::Fd fd, Packing packing, std::uint64_t begin = 0,
             std::uint64_t window_bytes_max = kWindowBytesMax);
  // The same of one that stays with the caller, and stays open: a second descriptor may not be had.
  ByteStream(int fd, Packing packing, std::uint64_t begin = 0,
             std::uint64_t window_bytes_max = kWindowBytesMax);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  static constexpr std::uint64_t kToEnd = ~std::uint64_t{0};

  // The next bytes, as many as are there at once; 0: the end. kIo: the system's reason; kDamaged:
  // what is wrong with the packed data and where; kUnsupported: it needs more memory than the
  // limit, or what is not here. The same again at the next call. Of a member that fails a check
  // what has not been given by then is not given; of one that is cut all that is there.
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> out);
  // Of the bytes that read() gives, the number of the next one: in a plain file its offset.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  // The bytes before this number are right, as far as the packing can tell: they are of members
  // that have been read to their ends. Everything in a plain file.
  [[nodiscard]] std::uint64_t checked() const noexcept { return checked_; }
  // At the end: bytes of the file behind the last member that are neither padding nor a member.
  [[nodiscard]] std::uint64_t trailing_bytes() const noexcept { return trailing_bytes_; }

 private:
  [[nodiscard]] Status refill();
  [[nodiscard]] Result<std::size_t> read_plain(std::span<std::byte> out);
  // Passes over padding. False: no member follows.
  [[nodiscard]] Result<bool> begin_member();

  shm::Fd own_;  // none: it is the caller's
  int fd_;
  std::uint64_t at_;  // in the file, of what is read from it next
  std::uint64_t offset_;
  std::uint64_t checked_;
  std::uint64_t trailing_bytes_ = 0;
  Packing packing_;
  std::vector<std::byte> input_;
  std::size_t input_begin_ = 0;  // of what has not been unpacked
  std::size_t input_end_ = 0;
  bool input_over_ = false;
  bool in_member_ = false;
  bool any_ = false;   // a member has ended
  bool over_ = false;  // no other follows
  std::unique_ptr<Unpacker> unpacker_;
  std::optional<Error> fault_;
};

}  // namespace ringfeed::formats
