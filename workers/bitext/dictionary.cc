#include "workers/bitext/dictionary.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "ringfeed/shm/file.h"

namespace ringfeed::formats {
namespace {

constexpr std::string_view kOverwrite = "#fairseq:overwrite";
constexpr std::string_view kSpaces = " \t\n\v\f\r";
// A vocabulary of some millions is large already; a file beyond this is something else.
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 30;

bool is_integer(std::string_view text) noexcept {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char digit) { return digit >= '0' && digit <= '9'; });
}

// Where the text stops being UTF-8; its size: it is.
std::size_t utf8_end(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned first = byte(at);
    std::size_t more = 0;
    std::uint32_t code = first;
    if (first >= 0xf0 && first < 0xf8) {
      more = 3;
      code = first & 0x07;
    } else if (first >= 0xe0 && first < 0xf0) {
      more = 2;
      code = first & 0x0f;
    } else if (first >= 0xc0 && first < 0xe0) {
      more = 1;
      code = first & 0x1f;
    } else if (first >= 0x80) {
      return at;
    }
    if (more > text.size() - at - 1) return at;
    for (std::size_t i = 1; i <= more; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return at;
      code = code << 6 | (byte(at + i) & 0x3f);
    }
    // Longer than needed, a half of a pair of UTF-16, or beyond what there is.
    constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return at;
    at += more + 1;
  }
  return at;
}

// A line as a message can show it.
std::string shown(std::string_view line) {
  constexpr std::size_t kShown = 60;
  std::string text;
  for (const char c : line.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return "'" + text + (line.size() > kShown ? "...'" : "'");
}

}  // namespace

Dictionary::Dictionary() {
  for (const char* symbol : {"<s>", "<pad>", "</s>", "<unk>"}) append(symbol);
}

void Dictionary::append(std::string_view symbol) {
  ids_.insert_or_assign(std::string(symbol), size());
  symbols_.emplace_back(symbol);
}

Result<Dictionary> Dictionary::read(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 &&
      (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) > kFileBytesMax)) {
    return Error(ErrorCode::kDamaged,
                 fmt::format("{}: it {}, so it is not a dictionary; name a file with a line "
                             "'SYMBOL COUNT' for each symbol",
                             path,
                             S_ISREG(info.st_mode) ? fmt::format("has {} bytes", info.st_size)
                                                   : std::string("is not a regular file")));
  }
  const Result<std::string> text = shm::read_regular_file(path);
  if (!text) return text.error();
  return parse(*text, path);
}

Result<Dictionary> Dictionary::parse(std::string_view text, const std::string& path) {
  Dictionary dictionary;
  std::uint64_t line_number = 0;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++line_number;
    const auto refuse = [&](std::string what) {
      return Error(ErrorCode::kDamaged,
                   fmt::format("{}: line {} (offset {}): {}", path, line_number, begin, what));
    };
    if (const std::size_t good = utf8_end(line); good != line.size()) {
      return refuse(fmt::format("its byte {}, {:#04x}, is not UTF-8; convert the file to UTF-8",
                                good, static_cast<unsigned char>(line[good])));
    }
    const std::size_t last = line.find_last_not_of(kSpaces);
    if (last == std::string_view::npos) {
      return refuse("it is blank, but every line must be 'SYMBOL COUNT'; remove it");
    }
    std::string_view symbol = line.substr(0, last + 1);
    const auto take_field = [&]() -> std::optional<std::string_view> {
      const std::size_t space = symbol.rfind(' ');
      if (space == std::string_view::npos) return std::nullopt;
      const std::string_view field = symbol.substr(space + 1);
      symbol = symbol.substr(0, space);
      return field;
    };
    std::optional<std::string_view> count = take_field();
    const bool overwrite = count == kOverwrite;
    if (overwrite) count = take_field();
    if (!count || !is_integer(*count)) {
      return refuse(fmt::format(
          "{} does not end in a space and an integer; write it as 'SYMBOL COUNT', e.g. with 1",
          shown(line)));
    }
    if (const auto before = dictionary.find(symbol); before && !overwrite) {
      return refuse(
          fmt::format("{} already has id {}{}; remove the line, or write '{}' after its count to "
                      "give it a new id",
                      shown(symbol), *before,
                      *before < 4 ? ", which it has without being in the file" : "", kOverwrite));
    }
    dictionary.append(symbol);
    begin = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
  }
  return dictionary;
}

std::uint32_t Dictionary::add_symbol(std::string_view symbol) {
  if (const auto id = find(symbol)) return *id;
  append(symbol);
  return size() - 1;
}

std::optional<std::uint32_t> Dictionary::find(std::string_view symbol) const noexcept {
  const auto found = ids_.find(symbol);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::string_view Dictionary::symbol(std::uint32_t id) const noexcept {
  RF_CHECK(id < size(), id, size());
  return symbols_[id];
}

std::string Dictionary::text(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (!text.empty()) text += ' ';
    if (id >= 0 && id < size()) {
      text += symbol(static_cast<std::uint32_t>(id));
    } else {
      text += fmt::format("#{}", id);
    }
  }
  return text;
}

}  // namespace ringfeed::formats
