// The lines of a file, packed or not, one after the other.
//
// A line ends with "\n" or "\r\n", which do not belong to it; the last one may lack it. Of a plain
// file a part can be read: the lines that begin in it, so that parts that meet have every line
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "workers/io/byte_stream.h"

namespace ringfeed::formats {

struct Line {
  std::string_view text = {};  // until the next call
  std::uint64_t offset = 0;    // of its first byte, in the file as it is unpacked
  std::uint64_t next = 0;      // of the line behind it
  bool too_long = false;       // longer than the reader's limit; the text is not whole
};

class LineReader {
 public:
  // So many bytes behind each line may be read, whatever they are: parsers of JSON look ahead.
  static constexpr std::size_t kPadding = 64;

  // Takes the stream. `begin`: lines that begin before it are passed over; where it is not 0 and
  // the stream begins in the middle of a file, the stream must begin one byte earlier, by which it
  // is seen whether a line begins at `begin`. `end`: lines that begin there or behind it are not
  // given.
  LineReader(std::unique_ptr<ByteStream> stream, std::uint64_t begin, std::uint64_t end,
             std::size_t line_bytes_max);

  // The next line; nothing: the end. kIo, kDamaged: as ByteStream; the line that it cuts is not
  // given.
  [[nodiscard]] Result<std::optional<Line>> next();
  // The line that next() gave last, whole, and those behind it that are in memory already and that
  // begin before `end`; each with its "\n", but perhaps the last of the file. They stay where they
  // are as long as refills() is the same.
  [[nodiscard]] std::string_view lines_from(const Line& line) const noexcept;
  [[nodiscard]] std::uint64_t refills() const noexcept { return refills_; }
  [[nodiscard]] const ByteStream& stream() const noexcept { return *stream_; }

 private:
  [[nodiscard]] Result<bool> fill();
  [[nodiscard]] Result<std::optional<Line>> next_of_stream();

  std::unique_ptr<ByteStream> stream_;
  std::uint64_t begin_;
  std::uint64_t end_;
  std::size_t line_bytes_max_;
  std::vector<char> buffer_;
  std::size_t from_ = 0;  // of what has not been given
  std::size_t have_ = 0;  // bytes in the buffer
  std::uint64_t at_;      // of buffer_[from_], in the file as it is unpacked
  std::uint64_t refills_ = 0;
  bool over_ = false;
  bool skips_;  // the first piece is the end of a line that began before
};

}  // namespace ringfeed::formats
