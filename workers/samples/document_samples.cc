// A document of JSON as samples: an array, each element of which is one, or one object. The cursor
// of an item is where the bytes behind it begin, in the file as it is unpacked.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "workers/samples/json_sample.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

constexpr std::size_t kReadBytes = std::size_t{256} << 10;
// Behind what JsonSamples reads.
constexpr std::size_t kPadding = 64;

bool is_space(char letter) {
  return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r';
}

// Finds where a value ends, without looking at what it is.
class ValueEnd {
 public:
  // Whether the value has ended before this letter, or with it.
  enum class Found : std::uint8_t { kNo, kBefore, kHere };
  // Is something open that has to be closed?
  [[nodiscard]] bool is_open() const { return depth_ != 0 || in_text_; }
  Found look(char letter) {
    if (in_text_) {
      if (escaped_) {
        escaped_ = false;
      } else if (letter == '\\') {
        escaped_ = true;
      } else if (letter == '"') {
        in_text_ = false;
        if (depth_ == 0) return Found::kHere;
      }
      return Found::kNo;
    }
    switch (letter) {
      case '"':
        in_text_ = true;
        return Found::kNo;
      case '{':
      case '[':
        ++depth_;
        return Found::kNo;
      case '}':
      case ']':
        if (depth_ == 0) return Found::kBefore;
        return --depth_ == 0 ? Found::kHere : Found::kNo;
      default:
        return depth_ == 0 && (letter == ',' || is_space(letter)) ? Found::kBefore : Found::kNo;
    }
  }

 private:
  std::uint64_t depth_ = 0;
  bool in_text_ = false;
  bool escaped_ = false;
};

class DocumentSamples final : public SampleFile {
 public:
  DocumentSamples(const SampleSourceConfig& config, SamplePart part)
      : value_bytes_max_(config.line_bytes_max()),
        goes_on_at_(part.cursor),
        stream_(std::move(part.fd), part.packing, 0, config.window_bytes_max()),
        json_(wanted_fields(config), config.strict()) {}

  Result<bool> next(Item& item) override {
    if (phase_ == Phase::kBegin) {
      if (Status begun = begin(); !begun) return begun.error();
    }
    for (;;) {
      const Result<bool> found = find_value();
      if (!found || !*found) return found;
      const std::uint64_t place = at_;
      if (Status taken = take_value(); !taken) return taken.error();
      // What was read before a restart.
      if (at_ <= goes_on_at_) continue;
      item.place = place;
      item.cursor = at_;
      item.bytes = at_ - place;
      set(item);
      return true;
    }
  }

  std::uint64_t checked() const override { return stream_.checked(); }
  std::uint64_t trailing_bytes() const override { return stream_.trailing_bytes(); }

 private:
  enum class Phase : std::uint8_t { kBegin, kElements, kOne, kOver };

  void set(Item& item) {
    item.fault = SampleFault::kNone;
    item.text.clear();
    item.fields = {};
    item.nothing = false;
    item.head = item.data = {};
    if (too_large_) {
      item.fault = SampleFault::kTooLarge;
      item.text =
          fmt::format("an element of more than {} bytes: raise line_bytes_max", value_bytes_max_);
      return;
    }
    const std::size_t length = value_.size();
    value_.resize(length + kPadding);
    JsonSamples::Outcome read = json_.read(std::string_view(value_.data(), length));
    item.fault = read.fault;
    item.text = std::move(read.text);
    item.fields = read.fields;
  }

  // The next letter, which stays there; nothing: the end.
  Result<std::optional<char>> letter() {
    if (from_ == have_) {
      buffer_.resize(kReadBytes);
      const Result<std::size_t> got = stream_.read(std::as_writable_bytes(std::span(buffer_)));
      if (!got) return got.error();
      from_ = 0;
      have_ = *got;
      if (have_ == 0) return std::optional<char>();
    }
    return std::optional<char>(buffer_[from_]);
  }
  void drop() {
    ++from_;
    ++at_;
  }
  Result<std::optional<char>> letter_behind_space() {
    for (;;) {
      Result<std::optional<char>> found = letter();
      if (!found || !*found || !is_space(**found)) return found;
      drop();
    }
  }
  Error damaged(std::string_view what) const {
    return {ErrorCode::kDamaged, fmt::format("byte {} of the document: {}", at_, what)};
  }

  Status begin() {
    for (const char mark : kByteOrderMark) {
      const Result<std::optional<char>> found = letter();
      if (!found) return found.error();
      if (!*found || **found != mark) break;
      drop();
    }
    const Result<std::optional<char>> found = letter_behind_space();
    if (!found) return found.error();
    if (!*found) {
      phase_ = Phase::kOver;
    } else if (**found == '[') {
      phase_ = Phase::kElements;
      drop();
    } else {
      phase_ = Phase::kOne;
    }
    return {};
  }

  // False: the document is over.
  Result<bool> find_value() {
    if (any_ && phase_ != Phase::kOver) {
      if (Status separated = behind_value(); !separated) return separated.error();
    }
    if (phase_ == Phase::kOver) return false;
    const Result<std::optional<char>> found = letter_behind_space();
    if (!found) return found.error();
    if (!*found) return damaged("it ends in the middle: it was cut off, or is still being written");
    if (phase_ == Phase::kElements && **found == ']' && !any_) {
      drop();
      if (Status over = end(); !over) return over.error();
      return false;
    }
    return true;
  }

  // Behind the last value there is nothing.
  Status end() {
    phase_ = Phase::kOver;
    const Result<std::optional<char>> found = letter_behind_space();
    if (!found) return found.error();
    if (*found) return damaged("something follows the end of the document");
    return {};
  }

  Status take_value() {
    ValueEnd ends;
    any_ = true;
    value_.clear();
    too_large_ = false;
    for (;;) {
      const Result<std::optional<char>> found = letter();
      if (!found) return found.error();
      if (!*found) {
        // A number or a word of its own may end with the document.
        if (phase_ == Phase::kOne && !ends.is_open()) return {};
        return damaged("it ends in the middle: it was cut off, or is still being written");
      }
      const ValueEnd::Found end = ends.look(**found);
      if (end == ValueEnd::Found::kBefore) {
        if (value_.empty() && !too_large_) return damaged("no value where one has to be");
        return {};
      }
      if (value_.size() == value_bytes_max_) {
        too_large_ = true;
        value_.clear();
      }
      if (!too_large_) value_.push_back(**found);
      drop();
      if (end == ValueEnd::Found::kHere) return {};
    }
  }

  Status behind_value() {
    if (phase_ == Phase::kOne) return end();
    const Result<std::optional<char>> found = letter_behind_space();
    if (!found) return found.error();
    if (*found && **found == ',') {
      drop();
      return {};
    }
    if (*found && **found == ']') {
      drop();
      return end();
    }
    return damaged(*found ? "no comma between two elements"
                          : "it ends in the middle: it was cut off, or is still being written");
  }

  std::uint64_t value_bytes_max_;
  std::uint64_t goes_on_at_;
  formats::ByteStream stream_;
  JsonSamples json_;
  std::vector<char> buffer_;
  std::size_t from_ = 0;
  std::size_t have_ = 0;
  std::uint64_t at_ = 0;  // of buffer_[from_], in the document
  Phase phase_ = Phase::kBegin;
  bool any_ = false;  // value has been read
  std::vector<char> value_;
  bool too_large_ = false;
};

}  // namespace

std::unique_ptr<SampleFile> open_document(const SampleSourceConfig& config, SamplePart part) {
  return std::make_unique<DocumentSamples>(config, std::move(part));
}

}  // namespace ringfeed
