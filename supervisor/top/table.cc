#include "supervisor/top/table.h"

#include <algorithm>
#include <numeric>

namespace ringfeed::top {
namespace {

constexpr std::size_t kSpace = 1;  // between two columns

// Of each column; 0: it is left out.
std::vector<std::size_t> widths_of(const std::vector<Column>& columns, std::size_t width) {
  std::vector<std::size_t> widths;
  for (const Column& column : columns) widths.push_back(column.least);
  const auto taken = [&] {
    std::size_t sum = 0;
    for (const std::size_t one : widths) sum += one == 0 ? 0 : one + kSpace;
    return sum;
  };
  while (taken() > width + kSpace) {
    std::size_t worst = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (widths[i] == 0 || columns[i].rank == 0) continue;
      if (worst == columns.size() || columns[i].rank >= columns[worst].rank) worst = i;
    }
    if (worst == columns.size()) break;  // the line is cut
    widths[worst] = 0;
  }
  // One after the other gets a column more, so that all grow alike.
  for (bool grows = true; grows && taken() < width + kSpace;) {
    grows = false;
    for (std::size_t i = 0; i < columns.size() && taken() < width + kSpace; ++i) {
      if (widths[i] == 0 || widths[i] >= columns[i].most) continue;
      ++widths[i];
      grows = true;
    }
  }
  return widths;
}

Line placed(Line line, std::size_t width, bool right, bool utf8) {
  line.cut(width, utf8);
  if (!right) return line.fill(width);
  Line out(std::string(width - std::min(width, line.width()), ' '));
  return out.add(line);
}

}  // namespace

Lines table(const std::vector<Column>& columns, const std::vector<Row>& rows, std::size_t width,
            bool utf8) {
  const std::vector<std::size_t> widths = widths_of(columns, width);
  Lines lines;
  const auto add = [&](auto&& cell_of, bool chosen) {
    Line& line = lines.emplace_back();
    line.chosen = chosen;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (widths[i] == 0) continue;
      if (!line.pieces.empty()) line.add(std::string(kSpace, ' '));
      line.add(placed(cell_of(i), widths[i], columns[i].right, utf8));
    }
    line.cut(width, utf8);
  };
  add([&](std::size_t i) { return columns[i].title; }, false);
  for (const Row& row : rows) {
    add(
        [&](std::size_t i) {
          const Cell& cell = row.cells[i];
          return cell.bar ? bar(*cell.bar, widths[i], utf8) : cell.line;
        },
        row.chosen);
  }
  return lines;
}

}  // namespace ringfeed::top
