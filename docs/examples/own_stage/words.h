// What the stage computes, apart from the stage, so that a test can call it.
#pragma once

#include <cstdint>
#include <string_view>

// Words of the text: pieces that have no white space of ASCII in them.
constexpr std::int64_t count_words(std::string_view text) noexcept {
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}
