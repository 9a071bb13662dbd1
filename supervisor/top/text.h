// Text in a terminal's columns: how wide it is, cut and wrapped; numbers, bars and curves.
//
// A character may take two columns, or none. How many is what the C library says for the locale of
// this process, which is also what the terminal's library goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::top {

// What a piece of text means; the screen gives it a colour, or none.
enum class Tone {
  kPlain,
  kDim,
  kBold,
  kTitle,  // of a table
  kGood,
  kBad,
  kBusy,
  kStarved,
  kBlocked,
  kFill,    // of a queue
  kLimits,  // what limits the feed
  kKey,     // that can be pressed
};

struct Piece {
  std::string text;
  Tone tone = Tone::kPlain;
};

// A line of the screen.
struct Line {
  std::vector<Piece> pieces = {};
  bool chosen = false;  // shown in reverse, to its end

  Line() = default;
  explicit Line(std::string text, Tone tone = Tone::kPlain) { add(std::move(text), tone); }
  Line& add(std::string text, Tone tone = Tone::kPlain);
  Line& add(const Line& other);
  [[nodiscard]] std::size_t width() const;
  [[nodiscard]] std::string text() const;
  // Spaces up to `columns`.
  Line& fill(std::size_t columns);
  // What is beyond `columns` is left out, and replaced by an ellipsis.
  Line& cut(std::size_t columns, bool utf8);
};
using Lines = std::vector<Line>;

// Foreign words as they may reach the terminal (shm::escaped). Without `utf8`, and for characters
// whose width nobody knows, a question mark in place of each that is not ASCII.
[[nodiscard]] std::string clean(std::string_view text, bool utf8);
// Columns of clean text.
[[nodiscard]] std::size_t width_of(std::string_view text);
// Clean text in at most so many columns, with an ellipsis where it was cut.
[[nodiscard]] std::string cut(std::string_view text, std::size_t columns, bool utf8);
// The same in exactly so many.
[[nodiscard]] std::string left(std::string_view text, std::size_t columns, bool utf8);
[[nodiscard]] std::string right(std::string_view text, std::size_t columns, bool utf8);
// Lines of at most so many columns, broken at spaces where there are any.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view text, std::size_t columns);

// "1,234,567"
[[nodiscard]] std::string whole(std::uint64_t value);
// In at most seven characters: "0.42", "17.3", "1,234", "56.7 k", "8.9 M".
[[nodiscard]] std::string brief(double value);
// "12 s", "12 min", "2 h 13 min", "3 d 4 h"
[[nodiscard]] std::string duration(std::uint64_t ms);

// A bar of so many columns in which each share (0 to 1) has its part; what is left is dim.
struct Share {
  double part;
  Tone tone;
};
[[nodiscard]] Line bar(std::span<const Share> shares, std::size_t columns, bool utf8);
// How a tone looks in a bar, for people who see no colours.
[[nodiscard]] std::string bar_sign(Tone tone, bool utf8);

// Values from 0 to `most` as a curve of so many rows, the newest at the right, a column each; what
// is not known (negative) stays empty.
[[nodiscard]] std::vector<std::string> curve(std::span<const double> values, double most,
                                             std::size_t columns, std::size_t rows, bool utf8);

}  // namespace ringfeed::top
