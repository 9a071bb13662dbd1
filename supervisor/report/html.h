// Pieces of the report's page. What comes from elsewhere goes through html().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/report/curves.h"

namespace ringfeed::report {

// Text as it stands in a page or in an attribute: nothing in it is markup, and no character turns
// or hides others (ringfeed/shm/quote.h).
[[nodiscard]] std::string html(std::string_view text);
// The same with its line ends, for <pre>.
[[nodiscard]] std::string html_lines(std::string_view text);

[[nodiscard]] std::string shown_count(std::uint64_t number);  // "1,234,567"
[[nodiscard]] std::string shown_seconds(double seconds);      // "12 ms", "0.4 s", "2 min 13 s"
[[nodiscard]] std::string shown_share(double share);          // "71 %"
[[nodiscard]] std::string shown_rate(double rate);            // "0.21", "12.5", "1,340"
// "1 batch", "3 batches".
[[nodiscard]] std::string shown_number(std::uint64_t number, std::string_view one,
                                       std::string_view many);
// Seconds since 1970 as UTC: "2026-11-27 08:24:18".
[[nodiscard]] std::string shown_date(std::int64_t seconds);

struct Column {
  std::string title;
  bool number = false;
};
// A table that scrolls by itself where it is wider than the page. A row is its cells, markup; a
// row's attributes are for programs: "data-batches=\"12\"".
struct Row {
  std::vector<std::string> cells;
  std::string attributes = {};
};
[[nodiscard]] std::string table(std::string_view caption, std::span<const Column> columns,
                                std::span<const Row> rows);

// A bar of shares, which need not come to 1, each with a class of the style sheet.
struct Share {
  std::string_view kind;
  double share = 0;
};
[[nodiscard]] std::string bar(std::string_view label, std::span<const Share> shares);

struct Line {
  std::string name;        // "": there is only one
  std::size_t number = 0;  // in the curves
};
struct Chart {
  std::string title;
  std::vector<Line> lines;
  std::string (*shown)(double) = nullptr;
  double most = 0;  // of the scale; 0: of what is there
  double span_s = 0;
  std::vector<double> marks_s = {};  // when something died
  bool mean = true;                  // said in words; not of what counts more at some times
};
// A figure; "" if nothing of it is known.
[[nodiscard]] std::string figure(const Curves& curves, const Chart& chart);

}  // namespace ringfeed::report
