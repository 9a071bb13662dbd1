#include "supervisor/report/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace ringfeed::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string rate(double value) { return shown_rate(value); }

TEST(Html, HasNothingOfTheTextAsMarkup) {
  EXPECT_EQ(html("<script>&\"'"), "&lt;script&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html("&lt;"), "&amp;lt;");
  EXPECT_EQ(html("größe 訓練"), "größe 訓練");
  EXPECT_EQ(html("a\nb\x1b[1m\xff"), "a\\nb\\x1b[1m\\xff");
  EXPECT_EQ(html("\u202egnp.exe"), "\\xe2\\x80\\xaegnp.exe") << "nothing turns it around";
  EXPECT_EQ(html(std::string_view("\0<", 2)), "\\x00&lt;");
  EXPECT_EQ(html_lines("<a>\n\t"), "&lt;a&gt;\n\\t");
}

TEST(Html, TablesKeepTheirMarkupAndEscapeTheirTitles) {
  const std::array<Column, 2> columns{{{"<Name>"}, {"Number", true}}};
  const std::array<Row, 1> rows{{{{html("<b>"), "12"}, "data-x=\"1\""}}};
  const std::string text = table("A \"caption\"", columns, rows);
  EXPECT_THAT(text, HasSubstr("aria-label=\"A &quot;caption&quot;\""));
  EXPECT_THAT(text, HasSubstr("<th scope=\"col\">&lt;Name&gt;</th>"));
  EXPECT_THAT(text, HasSubstr("<tr data-x=\"1\"><th scope=\"row\">&lt;b&gt;</th>"
                              "<td class=\"number\">12</td></tr>"));
}

TEST(Html, LongTablesAreLookedAtThroughAWindow) {
  const std::array<Column, 1> columns{{{"Name"}}};
  const std::vector<Row> rows(26, Row{{"one"}});
  EXPECT_THAT(table("Few", columns, std::span(rows).first(25)), HasSubstr("class=\"scroll\""));
  EXPECT_THAT(table("Many", columns, rows), HasSubstr("class=\"scroll tall\""));
}

TEST(Html, BarsAreNoLongerThanTheyMayBe) {
  const std::array<Share, 3> shares{{{"busy", 0.5}, {"starved", 0}, {"blocked", 7}}};
  const std::string text = bar("half", shares);
  EXPECT_THAT(text, HasSubstr("class=\"busy\" style=\"width:50.00%\""));
  EXPECT_THAT(text, HasSubstr("class=\"blocked\" style=\"width:100.00%\""));
  EXPECT_THAT(text, Not(HasSubstr("starved")));
}

TEST(Shown, Counts) {
  EXPECT_EQ(shown_count(0), "0");
  EXPECT_EQ(shown_count(999), "999");
  EXPECT_EQ(shown_count(1'000), "1,000");
  EXPECT_EQ(shown_count(18'446'744'073'709'551'615u), "18,446,744,073,709,551,615");
  EXPECT_EQ(shown_number(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(shown_number(0, "batch", "batches"), "0 batches");
}

TEST(Shown, Times) {
  EXPECT_EQ(shown_seconds(0), "0 s");
  EXPECT_EQ(shown_seconds(-1), "0 s");
  EXPECT_EQ(shown_seconds(0.0004), "under 1 ms");
  EXPECT_EQ(shown_seconds(0.0123), "12 ms");
  EXPECT_EQ(shown_seconds(0.0996), "0.1 s");
  EXPECT_EQ(shown_seconds(9.94), "9.9 s");
  EXPECT_EQ(shown_seconds(9.96), "10 s");
  EXPECT_EQ(shown_seconds(59.6), "1 min 0 s");
  EXPECT_EQ(shown_seconds(133), "2 min 13 s");
  EXPECT_EQ(shown_seconds(11'100), "3 h 5 min");
  EXPECT_EQ(shown_seconds(200'000), "2 days 7 h");
  EXPECT_EQ(shown_date(0), "1970-01-01 00:00:00");
}

TEST(Shown, SharesAreNeitherAllNorNothingWhereTheyAreNot) {
  EXPECT_EQ(shown_share(0), "0\u00a0%");
  EXPECT_EQ(shown_share(0.004), "under 1\u00a0%");
  EXPECT_EQ(shown_share(0.713), "71\u00a0%");
  EXPECT_EQ(shown_share(0.996), "over 99\u00a0%");
  EXPECT_EQ(shown_share(1), "100\u00a0%");
}

TEST(Shown, Rates) {
  EXPECT_EQ(shown_rate(0), "0");
  EXPECT_EQ(shown_rate(0.212), "0.21");
  EXPECT_EQ(shown_rate(0.0004), "under 0.01");
  EXPECT_EQ(shown_rate(9.996), "10.0");
  EXPECT_EQ(shown_rate(12.52), "12.5");
  EXPECT_EQ(shown_rate(99.96), "100");
  EXPECT_EQ(shown_rate(1'340.4), "1,340");
}

class Figures : public ::testing::Test {
 protected:
  Figures() {
    for (int i = 0; i < 10; ++i) {
      const std::array<double, 2> values{i < 5 ? 3.0 : Curves::kUnknown, Curves::kUnknown};
      curves.add(i, 1, values);
    }
  }
  Curves curves{2};
};

TEST_F(Figures, AreNoneOfWhatIsNotKnown) {
  EXPECT_EQ(figure(curves, {"Rows", {{"", 1}}, &rate, 0, 10}), "");
  EXPECT_EQ(figure(curves, {"Rows", {{"", 0}}, &rate, 0, 0}), "") << "of no time";
}

TEST_F(Figures, SayTheirNumbersInWordsToo) {
  const std::string text = figure(curves, {"A & B", {{"<x>", 0}}, &rate, 0, 10, {2.5}});
  EXPECT_THAT(text, HasSubstr("aria-label=\"A &amp; B; &lt;x&gt;: mean 3.00, most 3.00\""));
  EXPECT_THAT(text, HasSubstr("<span>5.00</span><span>2.50</span><span>0</span>"));
  EXPECT_THAT(text, HasSubstr("class=\"death\" x1=\"250.0\""));
}

TEST_F(Figures, SayNoMeanWhereItWouldBeAnother) {
  const std::string text = figure(curves, {"Waits", {{"", 0}}, &rate, 0, 10, {}, false});
  EXPECT_THAT(text, HasSubstr("aria-label=\"Waits; most 3.00\""));
}

TEST_F(Figures, DrawNothingWhereNothingIsKnown) {
  const std::string text = figure(curves, {"Rows", {{"", 0}}, &rate, 3, 10});
  EXPECT_THAT(text, HasSubstr("class=\"curve line0\" d=\"M0.0 0.0L50.0 0.0"));
  EXPECT_THAT(text, HasSubstr("L500.0 0.0\""));
}

}  // namespace
}  // namespace ringfeed::report
