#include "supervisor/os/text.h"

#include <gtest/gtest.h>

namespace ringfeed {
namespace {

TEST(Text, BytesHaveTheUnitThatReadsBest) {
  EXPECT_EQ(shown_bytes(0), "0 B");
  EXPECT_EQ(shown_bytes(1023), "1023 B");
  EXPECT_EQ(shown_bytes(1024), "1.0 KiB");
  EXPECT_EQ(shown_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(shown_bytes(9771050598), "9.1 GiB");
  EXPECT_EQ(shown_bytes(~0ULL), "16777216.0 TiB");
}

TEST(Text, HexadecimalDigitsAreTheBytesThatTheyCameFrom) {
  EXPECT_EQ(to_hex(std::string_view("\0\x7f\xff", 3)), "007fff");
  EXPECT_EQ(from_hex("007fff"), std::string("\0\x7f\xff", 3));
  EXPECT_EQ(from_hex("no"), "");
}

}  // namespace
}  // namespace ringfeed
