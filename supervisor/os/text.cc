#include "supervisor/os/text.h"

#include <fmt/format.h>
#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "ringfeed/shm/quote.h"

namespace ringfeed {

namespace {

constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
constexpr std::array<std::string_view, 5> kDecimalUnits{"B", "kB", "MB", "GB", "TB"};

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return small;
}

// Bytes of a unit, whatever its letters' case; 0: there is no such unit.
std::uint64_t unit_bytes(std::string_view unit) {
  const std::string small = in_small_letters(unit);
  std::uint64_t binary = 1;
  std::uint64_t decimal = 1;
  for (std::size_t i = 0; i < kUnits.size(); ++i, binary *= 1024, decimal *= 1000) {
    if (small == in_small_letters(kUnits[i])) return binary;
    if (small == in_small_letters(kDecimalUnits[i])) return decimal;
  }
  return 0;
}

}  // namespace

std::string shown_bytes(std::uint64_t bytes) {
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be rounded to 1024.0 of the smaller unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string shown_time(std::uint64_t ms) {
  const std::uint64_t s = ms / 1000;
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

namespace {

// How many of the bytes fit into so many columns, and how many columns these take.
struct Fitting {
  std::size_t bytes = 0;
  std::size_t columns = 0;
};
Fitting fitting(std::string_view utf8, std::size_t columns) {
  // Of libc itself, whatever the user's is; it lives as long as the process.
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = ::uselocale(locale);
  Fitting fits;
  mbstate_t state{};
  while (fits.bytes < utf8.size()) {
    wchar_t character = 0;
    const std::size_t left = utf8.size() - fits.bytes;
    const std::size_t bytes = ::mbrtowc(&character, utf8.data() + fits.bytes, left, &state);
    const bool known = bytes != 0 && bytes <= left;
    const int width = known ? ::wcwidth(character) : 1;
    if (!known) state = {};
    const std::size_t takes = width > 0 ? static_cast<std::size_t>(width) : 0;
    if (fits.columns + takes > columns) break;
    fits.columns += takes;
    fits.bytes += known ? bytes : 1;
  }
  ::uselocale(before);
  return fits;
}

}  // namespace

std::size_t shown_width(std::string_view utf8) { return fitting(utf8, utf8.size() * 2).columns; }

std::string_view shown_cut(std::string_view utf8, std::size_t columns) {
  return utf8.substr(0, fitting(utf8, columns).bytes);
}

std::string exact_bytes(std::uint64_t bytes) {
  std::size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::size_t number = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, number);
  std::string_view unit = number == std::string_view::npos ? "B" : text.substr(number);
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const std::uint64_t each = unit_bytes(unit);
  // Whole numbers exactly; a fraction as near as a double comes to it.
  std::uint64_t whole = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, whole);
  if (each == 0 || error != std::errc{}) return std::nullopt;
  if (end == last) {
    if (whole > std::numeric_limits<std::uint64_t>::max() / each) return std::nullopt;
    return whole * each;
  }
  double value = 0;
  const auto [fraction_end, wrong] = std::from_chars(digits.data(), last, value);
  if (wrong != std::errc{} || fraction_end != last || digits.back() == '.') return std::nullopt;
  value *= static_cast<double>(each);
  constexpr double kExactMax = 9007199254740992;  // 2^53
  // Tenths of a unit are no exact doubles.
  constexpr double kRounding = 1e-3;
  const double bytes = std::round(value);
  if (each == 1 || value > kExactMax || std::abs(value - bytes) > kRounding) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  if (escaped(word) == word) {
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
  }
  std::string quoted = "$'";
  for (const char c : word) {
    if (kPlain.find(c) != kPlain.npos) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + "'";
}

std::string to_hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    unsigned value = 0;
    if (std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16).ec != std::errc{}) {
      return {};
    }
    bytes += static_cast<char>(value);
  }
  return bytes;
}

}  // namespace ringfeed
