#include "supervisor/os/text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace ringfeed {

std::string shown_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be rounded to 1024.0 of the smaller unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
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
