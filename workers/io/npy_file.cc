#include "workers/io/npy_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

namespace ringfeed::formats {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kNpyMagic = "\x93NUMPY"sv;

Error damaged(std::string text) { return {ErrorCode::kDamaged, std::move(text)}; }

// The dictionary of a head, which is a Python literal: strings, numbers, booleans and tuples.
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  [[nodiscard]] bool take(char c) noexcept {
    skip_blanks();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  [[nodiscard]] bool take(std::string_view word) noexcept {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  [[nodiscard]] std::optional<std::string_view> string() noexcept {
    const char quote = take('\'') ? '\'' : take('"') ? '"' : '\0';
    if (quote == '\0') return std::nullopt;
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }
  [[nodiscard]] std::string_view rest() const noexcept { return rest_; }
  [[nodiscard]] std::optional<std::uint64_t> number() noexcept {
    skip_blanks();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    (void)take('L');  // of Python 2
    return value;
  }

 private:
  void skip_blanks() noexcept {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
  }
  std::string_view rest_;
};

std::optional<std::vector<std::uint64_t>> shape_of(Literal& literal) {
  std::vector<std::uint64_t> shape;
  if (!literal.take('(')) return std::nullopt;
  while (!literal.take(')')) {
    const std::optional<std::uint64_t> size = literal.number();
    if (!size) return std::nullopt;
    shape.push_back(*size);
    if (!literal.take(',')) {
      if (!literal.take(')')) return std::nullopt;
      break;
    }
  }
  return shape;
}

constexpr int kRecordDepthMax = 8;

// A list of members as NumPy writes it, with all names behind `before`. A member that has a title
// has both as its name.
bool take_members(Literal& literal, const std::string& before, int depth,
                  std::vector<NpyMember>& members) {
  if (depth == kRecordDepthMax || !literal.take('[')) return false;
  while (!literal.take(']')) {
    if (!literal.take('(')) return false;
    const bool titled = literal.take('(');
    std::optional<std::string_view> name = literal.string();
    if (titled && name) {
      if (!literal.take(',')) return false;
      name = literal.string();
      if (!literal.take(')')) return false;
    }
    if (!name || !literal.take(',')) return false;
    const std::string whole = name->empty() ? std::string() : before + std::string(*name);
    const std::size_t first = members.size();
    if (const std::optional<std::string_view> descr = literal.string()) {
      members.push_back({whole, std::string(*descr), {}});
    } else if (!take_members(literal, whole + ".", depth + 1, members)) {
      return false;
    }
    if (literal.take(',')) {
      std::optional<std::vector<std::uint64_t>> shape = shape_of(literal);
      if (!shape) return false;
      // An array of records is none that a sample could have.
      if (members.size() != first + 1 || !members.back().shape.empty()) return false;
      members.back().shape = std::move(*shape);
    }
    if (!literal.take(')')) return false;
    if (!literal.take(',')) {
      if (!literal.take(']')) return false;
      break;
    }
  }
  return !members.empty();
}

Result<NpyHead> head_of(std::string_view text) {
  NpyHead head;
  Literal literal(text);
  bool descr = false;
  bool order = false;
  bool shape = false;
  if (!literal.take('{')) return damaged("its head is no dictionary");
  while (!literal.take('}')) {
    const std::optional<std::string_view> key = literal.string();
    if (!key || !literal.take(':')) return damaged("its head is no dictionary");
    if (*key == "descr") {
      const std::string_view from = literal.rest();
      if (const std::optional<std::string_view> value = literal.string()) {
        head.descr = *value;
      } else {
        if (!take_members(literal, "", 0, head.members)) {
          return damaged("its elements are no records that can be read (a structured dtype)");
        }
        head.descr = from.substr(0, from.size() - literal.rest().size());
      }
      descr = true;
    } else if (*key == "fortran_order") {
      head.fortran_order = literal.take("True"sv);
      if (!head.fortran_order && !literal.take("False"sv)) {
        return damaged("fortran_order is neither True nor False");
      }
      order = true;
    } else if (*key == "shape") {
      std::optional<std::vector<std::uint64_t>> value = shape_of(literal);
      if (!value) return damaged("its shape is no tuple of numbers");
      head.shape = std::move(*value);
      shape = true;
    } else {
      return damaged(fmt::format("its head has the unknown key '{}'", *key));
    }
    if (!literal.take(',')) {
      if (!literal.take('}')) return damaged("its head is no dictionary");
      break;
    }
  }
  if (!descr || !order || !shape) return damaged("its head lacks descr, fortran_order or shape");
  return head;
}

// Bytes before the dictionary, and of it; nothing: too few bytes to say.
struct Lengths {
  std::uint64_t before;
  std::uint64_t text;
};
Result<std::optional<Lengths>> lengths_of(std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic.substr(0, bytes.size()))) return damaged("it is no .npy file");
  if (bytes.size() < 12) return std::optional<Lengths>();
  const auto byte = [&](std::size_t at) {
    return std::uint64_t{static_cast<unsigned char>(bytes[at])};
  };
  const std::uint64_t version = byte(6);
  if (version < 1 || version > 3) return damaged(fmt::format("version {} is unknown", version));
  Lengths lengths{.before = 10, .text = byte(8) | byte(9) << 8};
  if (version > 1) {
    lengths.before = 12;
    lengths.text |= byte(10) << 16 | byte(11) << 24;
  }
  if (lengths.text > kNpyHeadBytesMax) {
    return damaged(
        fmt::format("its head has {} bytes, at most {} are read", lengths.text, kNpyHeadBytesMax));
  }
  return std::optional(lengths);
}

}  // namespace

Result<std::uint64_t> NpyHead::size() const {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (std::ranges::find(shape, std::uint64_t{0}) != shape.end()) return std::uint64_t{0};
  std::uint64_t count = 1;
  for (const std::uint64_t length : shape) {
    if (length > kMax / count) return damaged("its shape has more than 2^63 elements");
    count *= length;
  }
  return count;
}

Result<NpyHead> read_npy_head(std::string_view bytes) {
  const Result<std::optional<Lengths>> lengths = lengths_of(bytes);
  if (!lengths) return lengths.error();
  if (!*lengths || (*lengths)->before + (*lengths)->text > bytes.size()) {
    return damaged("it ends in the middle of its head");
  }
  Result<NpyHead> head = head_of(bytes.substr((*lengths)->before, (*lengths)->text));
  if (head) head->data_at = (*lengths)->before + (*lengths)->text;
  return head;
}

Result<NpyHead> read_npy_head(int fd) {
  std::string bytes(4096, '\0');
  for (std::uint64_t have = 0;;) {
    const ssize_t got =
        ::pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::kIo, std::strerror(errno)};
    have += static_cast<std::uint64_t>(got);
    if (got != 0 && have < bytes.size()) continue;
    const std::string_view read = std::string_view(bytes).substr(0, have);
    const Result<std::optional<Lengths>> lengths = lengths_of(read);
    if (!lengths) return lengths.error();
    const bool whole = *lengths && (*lengths)->before + (*lengths)->text <= have;
    if (whole || got == 0) return read_npy_head(read);
    bytes.resize((*lengths)->before + (*lengths)->text);
  }
}

}  // namespace ringfeed::formats
