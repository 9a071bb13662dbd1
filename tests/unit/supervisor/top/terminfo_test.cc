#include "supervisor/top/terminfo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringfeed::top {
namespace {

TEST(Terminfo, ATypeSaysWhichDescriptionIsRight) {
  if (built_in_entry("xterm-256color").empty()) GTEST_SKIP() << "built without infocmp";
  EXPECT_EQ(description_of("xterm-kitty").type, "xterm-256color");
  EXPECT_EQ(description_of("alacritty").type, "xterm-256color");
  EXPECT_EQ(description_of("screen.xterm-new").type, "screen-256color");
  EXPECT_EQ(description_of("tmux").type, "tmux-256color");
  EXPECT_EQ(description_of("linux-16color").type, "linux");
  for (const char* type : {"xterm", "screen", "tmux", "linux"}) {
    EXPECT_THAT(description_of(type).entry, testing::MatchesRegex("b64:[-A-Za-z0-9_+/=]+"));
  }
}

TEST(Terminfo, OthersHaveNone) {
  for (const char* type : {"", "-", "dumb", "vt100", "xterms", "no-such-terminal", "x"}) {
    EXPECT_EQ(description_of(type).type, "") << type;
  }
}

}  // namespace
}  // namespace ringfeed::top
