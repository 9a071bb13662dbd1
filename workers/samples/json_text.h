// The text of a string of JSON, without its escapes.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace ringfeed {

// Bytes that these write behind a text at most, and more.
inline constexpr std::size_t kJsonSlack = 256;

struct Unescaper {
  std::string_view name;
  // Writes the text and gives its end; nullptr: an escape is none, or half of a surrogate pair.
  // The text is what stands between two quotes of valid UTF-8 without control characters. 64 bytes
  // behind it must be readable, and 64 behind `to` plus its size writable.
  std::byte* (*unescape)(std::string_view text, std::byte* to);
};

// The same for texts with half of a pair, which becomes the three bytes that UTF-8 would have for
// it.
[[nodiscard]] std::byte* unescape_halves(std::string_view text, std::byte* to) noexcept;

// Those that this machine can run, the fastest first.
[[nodiscard]] std::span<const Unescaper> unescapers() noexcept;

}  // namespace ringfeed
