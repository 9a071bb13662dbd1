// Specification of ringfeed/shm/quote.h: what foreign words may do to a log and to a terminal.
#include "ringfeed/shm/quote.h"

#include <gtest/gtest.h>

namespace ringfeed {
namespace {

TEST(Quote, WordsAreShownAsTheyAre) {
  EXPECT_EQ(escaped("train.py"), "train.py");
  EXPECT_EQ(escaped("Bücher/日本語 🙂"), "Bücher/日本語 🙂");
  EXPECT_EQ(log_value("games-0017.tar"), "games-0017.tar");
  EXPECT_EQ(log_value("Bücher"), "Bücher");
}

TEST(Quote, NothingEndsALineOrReachesTheTerminal) {
  EXPECT_EQ(escaped("a\nworker_died feed=x"), "a\\nworker_died feed=x");
  EXPECT_EQ(escaped("\x1b[2J\x07\x7f\r\t"), "\\x1b[2J\\x07\\x7f\\r\\t");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J")
      << "the one-byte escape of C1";
  EXPECT_EQ(escaped("\xe2\x80\xa8"), "\\xe2\\x80\\xa8") << "the line separator";
  EXPECT_EQ(escaped("\xe2\x80\xae"
                    "gnp"),
            "\\xe2\\x80\\xaegnp")
      << "from right to left";
  EXPECT_EQ(escaped_lines("a\nb\x1b"), "a\nb\\x1b");
}

TEST(Quote, BytesThatAreNoTextAreSaidOneByOne) {
  EXPECT_EQ(escaped("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(escaped("\xc3"), "\\xc3") << "cut short";
  EXPECT_EQ(escaped("\xc3("), "\\xc3(");
  EXPECT_EQ(escaped("\xc0\xaf"), "\\xc0\\xaf") << "longer than it has to be";
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(escaped("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond the last character";
}

TEST(Quote, AValueIsOneValue) {
  EXPECT_EQ(log_value("a member=0 pid=1"), "\"a member=0 pid=1\"");
  EXPECT_EQ(log_value(""), "\"\"");
  EXPECT_EQ(log_value("a=b"), "\"a=b\"");
  EXPECT_EQ(log_value("a\"b"), "\"a\\\"b\"");
  EXPECT_EQ(log_value("a\\"), "\"a\\\\\"");
  EXPECT_EQ(log_value("a\n"), "\"a\\n\"");
  EXPECT_EQ(in_quotes("plain"), "\"plain\"");
}

TEST(Quote, EveryByteAloneIsHarmlessAndIsKnownAgain) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    for (const char c : escaped(one)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << byte;
    EXPECT_EQ(escaped(escaped(one)), escaped(one)) << byte;
  }
}

}  // namespace
}  // namespace ringfeed
