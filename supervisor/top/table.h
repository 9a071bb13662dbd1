// A table that fits: columns are left out, those of the highest rank first, until the others have
// room; what is left over goes to those that could do with more.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "supervisor/top/text.h"

namespace ringfeed::top {

struct Column {
  Line title;
  std::size_t least = 1;  // columns of the screen that it needs, and that it could do with
  std::size_t most = 1;
  int rank = 0;
  bool right = false;  // its cells end at its end
};

// A line of text; or a bar, as wide as its column.
struct Cell {
  Line line = {};
  std::optional<std::vector<Share>> bar = {};

  Cell() = default;
  Cell(Line text) : line(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Cell(std::string text, Tone tone = Tone::kPlain) : line(std::move(text), tone) {}  // NOLINT
  Cell(std::vector<Share> shares) : bar(std::move(shares)) {}                        // NOLINT
};

struct Row {
  std::vector<Cell> cells;  // one for each column
  bool chosen = false;
};

// The titles, then a line for each row.
[[nodiscard]] Lines table(const std::vector<Column>& columns, const std::vector<Row>& rows,
                          std::size_t width, bool utf8);

}  // namespace ringfeed::top
