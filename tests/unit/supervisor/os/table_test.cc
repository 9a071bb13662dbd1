// Columns of a terminal, whatever is in them.
#include "supervisor/os/table.h"

#include <gmock/gmock.h>

#include "supervisor/os/text.h"

namespace ringfeed {
namespace {

TEST(Table, ColumnsFitWhatIsInThem) {
  Table table({{"NAME"}, {"RATE", Align::kRight}, {"FILE"}});
  table.add({"größe", "1.5", "a"});
  table.add({"大", "12345.0", ""});
  EXPECT_EQ(table.text(),
            "NAME      RATE  FILE\n"
            "größe      1.5  a\n"
            "大     12345.0\n");
}

TEST(Table, CellsAreQuoted) {
  Table table({{"A"}, {"B"}});
  table.add({"x\x1b[2J\n", "y"});
  EXPECT_EQ(table.text(), "A           B\nx\\x1b[2J\\n  y\n");
}

TEST(ShownWidth, CountsColumns) {
  EXPECT_EQ(shown_width(""), 0U);
  EXPECT_EQ(shown_width("abc"), 3U);
  EXPECT_EQ(shown_width("größe"), 5U);
  EXPECT_EQ(shown_width("大きい"), 6U);
  EXPECT_EQ(shown_width("e\u0301"), 1U);
  EXPECT_EQ(shown_width("a\xff"), 2U);
}

}  // namespace
}  // namespace ringfeed
