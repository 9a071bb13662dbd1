#include "supervisor/top/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <string>
#include <vector>

#include "supervisor/top/table.h"

namespace ringfeed::top {
namespace {

using ::testing::ElementsAre;

class Text : public ::testing::Test {
 protected:
  Text() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  ~Text() override { std::setlocale(LC_CTYPE, "C"); }
};

TEST_F(Text, IsCutByItsWidth) {
  EXPECT_EQ(width_of("訓練"), 4u);
  EXPECT_EQ(width_of("e\u0301"), 1u);  // an accent takes no column
  EXPECT_EQ(cut("abcdef", 4, true), "abc…");
  EXPECT_EQ(cut("abcdef", 4, false), "abc~");
  EXPECT_EQ(cut("訓練者", 4, true), "訓…");
  EXPECT_EQ(cut("訓練者", 6, true), "訓練者");
  EXPECT_EQ(cut("abc", 0, true), "");
  EXPECT_EQ(left("訓練", 5, true), "訓練 ");
  EXPECT_EQ(right("ab", 4, true), "  ab");
}

TEST_F(Text, IsCleaned) {
  EXPECT_EQ(clean("a\x1b[1mb", true), "a\\x1b[1mb");
  EXPECT_EQ(clean("\xff", true), "\\xff");
  EXPECT_EQ(clean("größe", false), "gr??e");
}

TEST_F(Text, IsWrappedAtSpaces) {
  EXPECT_THAT(wrapped("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(wrapped("", 3), ElementsAre(""));
  EXPECT_THAT(wrapped("訓練者", 1), ElementsAre("訓", "練", "者"));
}

TEST(Numbers, AreBrief) {
  EXPECT_EQ(whole(0), "0");
  EXPECT_EQ(whole(1'234'567), "1,234,567");
  EXPECT_EQ(brief(0), "0.00");
  EXPECT_EQ(brief(9.999), "10.0");
  EXPECT_EQ(brief(99.96), "100");
  EXPECT_EQ(brief(1'234), "1,234");
  EXPECT_EQ(brief(56'700), "56.7 k");
  EXPECT_EQ(brief(999'960), "1.0 M");
  EXPECT_EQ(brief(8.9e6), "8.9 M");
  EXPECT_EQ(brief(1e300), "> 999 T");
  EXPECT_EQ(brief(-1), "-");
  EXPECT_EQ(duration(12'000), "12 s");
  EXPECT_EQ(duration(7'980'000), "2 h 13 min");
}

TEST(Bars, AddUp) {
  const std::vector<Share> thirds{
      {1 / 3.0, Tone::kBusy}, {1 / 3.0, Tone::kStarved}, {1 / 3.0, Tone::kBlocked}};
  EXPECT_EQ(bar(thirds, 6, false).text(), "##..==");
  for (std::size_t columns = 0; columns < 40; ++columns) {
    EXPECT_EQ(bar(thirds, columns, false).text().size(), columns);
  }
  const std::vector<Share> mad{{7, Tone::kBusy}, {-3, Tone::kStarved}, {0.0 / 0.0, Tone::kFill}};
  EXPECT_EQ(bar(mad, 4, false).text(), "####");
  const std::vector<Share> little{{0.03, Tone::kBusy}};
  EXPECT_EQ(bar(little, 4, false).text(), "#---");
}

TEST(Curves, AreScaled) {
  const std::vector<double> values{-1, 0, 4, 8};
  EXPECT_THAT(curve(values, 8, 6, 1, true), ElementsAre("   ▁▄█"));
  EXPECT_THAT(curve(values, 8, 4, 2, true), ElementsAre("   █", " ▁██"));
  EXPECT_THAT(curve(values, 0, 2, 1, true), ElementsAre("▁▁"));
  EXPECT_THAT(curve({}, 1, 3, 1, false), ElementsAre("   "));
}

TEST_F(Text, InATableLeavesOutWhatHasNoRoom) {
  const std::vector<Column> columns{
      {Line("name"), 4, 8, 0}, {Line("n"), 3, 3, 1, true}, {Line("last"), 6, 6, 2}};
  const std::vector<Row> rows{{{Cell("abcdefghij"), Cell("7"), Cell("x")}}};
  EXPECT_EQ(table(columns, rows, 30, true)[1].text(), "abcdefg…   7 x     ");
  EXPECT_EQ(table(columns, rows, 10, true)[1].text(), "abcde…   7");
  EXPECT_EQ(table(columns, rows, 5, true)[1].text(), "abcd…");
  EXPECT_EQ(table(columns, rows, 2, true)[1].text().substr(0, 1), "a");
}

}  // namespace
}  // namespace ringfeed::top
