// The text of a string of JSON, without its escapes.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace simdjson::internal {
class dom_parser_implementation;
}

namespace ringfeed {

// simdjson's own, for escapes that are rare.
using SimdjsonParser = simdjson::internal::dom_parser_implementation;

struct Unescaper {
  std::string_view name;
  // Writes the text and gives its end; nullptr: an escape is none. The text is what stands between
  // two quotes of valid UTF-8 without control characters. 64 bytes behind it must be readable, and
  // 64 behind `to` plus its size writable.
  std::byte* (*unescape)(const SimdjsonParser& parser, std::string_view text, std::byte* to);
};

// Those that this machine can run, the fastest first.
[[nodiscard]] std::span<const Unescaper> unescapers() noexcept;

}  // namespace ringfeed
