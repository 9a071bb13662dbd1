#include "supervisor/os/hex.h"

#include <fmt/format.h>

#include <charconv>

namespace ringfeed::control {

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

}  // namespace ringfeed::control
