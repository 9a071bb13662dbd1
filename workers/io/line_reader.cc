#include "workers/io/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringfeed::formats {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteStream> stream, std::uint64_t begin, std::uint64_t end,
                       std::size_t line_bytes_max)
    : stream_(std::move(stream)),
      begin_(begin),
      end_(end),
      line_bytes_max_(line_bytes_max),
      buffer_(kBufferBytes + kPadding),
      at_(stream_->offset()),
      skips_(at_ != 0) {}

// More bytes behind those that are there; false: there are none.
Result<bool> LineReader::fill() {
  if (over_) return false;
  ++refills_;
  if (from_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + from_, have_ - from_);
    have_ -= std::exchange(from_, 0);
  }
  if (have_ + kPadding == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const std::span<char> room(buffer_.data() + have_, buffer_.size() - kPadding - have_);
  const Result<std::size_t> got = stream_->read(std::as_writable_bytes(room));
  if (!got) return got.error();
  have_ += *got;
  over_ = *got == 0;
  return !over_;
}

Result<std::optional<Line>> LineReader::next_of_stream() {
  Line line{.offset = at_};
  std::size_t seen = 0;  // bytes of the line without an end
  for (;;) {
    const auto* const begin = buffer_.data() + from_;
    const auto* const end = static_cast<const char*>(
        have_ - from_ == seen ? nullptr : std::memchr(begin + seen, '\n', have_ - from_ - seen));
    if (end != nullptr || over_) {
      const std::size_t length =
          end == nullptr ? have_ - from_ : static_cast<std::size_t>(end - begin);
      if (end == nullptr && length == 0 && !line.too_long) return std::optional<Line>();
      line.text = {begin, length};
      const std::size_t taken = length + (end == nullptr ? 0 : 1);
      from_ += taken;
      at_ += taken;
      line.next = at_;
      if (line.text.ends_with('\r')) line.text.remove_suffix(1);
      if (line.text.size() > line_bytes_max_) line.too_long = true;
      return std::optional(line);
    }
    seen = have_ - from_;
    if (seen > line_bytes_max_) {
      // Its bytes are let go as they come.
      line.too_long = true;
      from_ = have_;
      at_ += std::exchange(seen, 0);
    }
    const Result<bool> more = fill();
    if (!more) return more.error();
  }
}

Result<std::optional<Line>> LineReader::next() {
  for (;;) {
    if (at_ >= end_ && !skips_) return std::optional<Line>();
    Result<std::optional<Line>> line = next_of_stream();
    if (!line || !*line) return line;
    // What the stream begins with ends a line that began before; it is that line's own.
    const bool skipped = std::exchange(skips_, false);
    if (skipped || (*line)->offset < begin_) continue;
    if ((*line)->offset >= end_) return std::optional<Line>();
    return line;
  }
}

std::string_view LineReader::lines_from(const Line& line) const noexcept {
  const char* const begin = line.text.data();
  const char* const next = buffer_.data() + from_;
  const std::uint64_t left = end_ > at_ ? end_ - at_ : 0;
  const std::string_view behind(next, std::min<std::uint64_t>(have_ - from_, left));
  const std::size_t whole = behind.rfind('\n') + 1;  // 0: there is no other
  return {begin, static_cast<std::size_t>(next - begin) + whole};
}

}  // namespace ringfeed::formats
