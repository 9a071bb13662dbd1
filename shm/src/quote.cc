#include "ringfeed/shm/quote.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ringfeed {
namespace {

// A character of UTF-8: its code and how many bytes it takes; 0 bytes: there is none.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

Character first_character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (at(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

bool is_shown(std::uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  if (code == 0x200e || code == 0x200f || code == 0x061c) return false;  // marks of direction
  if (code >= 0x2028 && code <= 0x202e) return false;  // line and paragraph ends; directions
  if (code >= 0x2066 && code <= 0x2069) return false;  // isolated directions
  return code != 0xfeff;                               // has no width
}

void add_byte(std::string& out, unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
  }
}

std::string escape(std::string_view text, bool lines, bool marks) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const std::size_t bytes = std::max<std::size_t>(character.bytes, 1);
    if (lines && text[0] == '\n') {
      out += '\n';
    } else if (marks && (text[0] == '"' || text[0] == '\\')) {
      out += '\\';
      out += text[0];
    } else if (character.bytes != 0 && is_shown(character.code)) {
      out += text.substr(0, bytes);
    } else {
      for (std::size_t i = 0; i < bytes; ++i) add_byte(out, static_cast<unsigned char>(text[i]));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace

std::string escaped(std::string_view text) { return escape(text, false, false); }

std::string escaped_lines(std::string_view text) { return escape(text, true, false); }

std::string in_quotes(std::string_view text) { return '"' + escape(text, false, true) + '"'; }

std::string log_value(std::string_view text) {
  const std::string within = in_quotes(text);
  // A name of digits is quoted, so that it is no number to whoever reads the line.
  const bool word = !text.empty() && within.size() == text.size() + 2 &&
                    text.find_first_of(" =") == std::string_view::npos &&
                    text.find_first_not_of("0123456789.-") != std::string_view::npos;
  return word ? std::string(text) : within;
}

}  // namespace ringfeed
