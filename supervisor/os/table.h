// Rows of cells as lines of a terminal, in columns that fit what is in them.
#pragma once

#include <string>
#include <vector>

namespace ringfeed {

enum class Align { kLeft, kRight };

class Table {
 public:
  // The heads of its columns, and how they stand.
  struct Column {
    std::string head;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns);

  // As many cells as there are columns; they may have come from anywhere.
  void add(const std::vector<std::string>& cells);
  // Columns are two spaces apart; no line ends with a space.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Align> aligned_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ringfeed
