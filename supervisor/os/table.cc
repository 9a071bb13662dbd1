#include "supervisor/os/table.h"

#include <algorithm>
#include <utility>

#include "ringfeed/shm/quote.h"
#include "supervisor/os/text.h"

namespace ringfeed {

Table::Table(std::vector<Column> columns) {
  rows_.emplace_back();
  for (Column& column : columns) {
    aligned_.push_back(column.align);
    rows_.front().push_back(std::move(column.head));
  }
}

void Table::add(const std::vector<std::string>& cells) {
  std::vector<std::string>& row = rows_.emplace_back();
  for (const std::string& cell : cells) row.push_back(escaped(cell));
  row.resize(aligned_.size());
}

std::string Table::text() const {
  std::vector<std::size_t> widths(aligned_.size());
  for (const std::vector<std::string>& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], shown_width(row[i]));
    }
  }
  std::string out;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string room(widths[i] - shown_width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += aligned_[i] == Align::kRight ? room + row[i] : row[i] + room;
    }
    line.resize(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace ringfeed
