#include "supervisor/os/text.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace ringfeed {
namespace {

std::string said_by_bash(const std::string& word) {
  const std::string inner = "printf %s " + word;
  std::string quoted = "'";
  for (const char c : inner) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* const pipe = ::popen(("bash -c " + quoted + "'").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 256> bytes{};
  for (std::size_t got = 0; (got = std::fread(bytes.data(), 1, bytes.size(), pipe)) != 0;) {
    said.append(bytes.data(), got);
  }
  ::pclose(pipe);
  return said;
}

TEST(Text, BytesHaveTheUnitThatReadsBest) {
  EXPECT_EQ(shown_bytes(0), "0 B");
  EXPECT_EQ(shown_bytes(1023), "1023 B");
  EXPECT_EQ(shown_bytes(1024), "1.0 KiB");
  EXPECT_EQ(shown_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(shown_bytes(9771050598), "9.1 GiB");
  EXPECT_EQ(shown_bytes(~0ULL), "16777216.0 TiB");
}

TEST(Text, ExactBytesAreNotRounded) {
  EXPECT_EQ(exact_bytes(0), "0 B");
  EXPECT_EQ(exact_bytes(65536), "64 KiB");
  EXPECT_EQ(exact_bytes(1000), "1000 B");
  EXPECT_EQ(exact_bytes(3ULL << 29), "1536 MiB");
  EXPECT_EQ(exact_bytes(1ULL << 40), "1 TiB");
  EXPECT_EQ(exact_bytes(~0ULL), "18446744073709551615 B");
}

TEST(Text, IsCutBetweenCharacters) {
  EXPECT_EQ(shown_cut("chunks", 80), "chunks");
  EXPECT_EQ(shown_cut("chunks", 3), "chu");
  EXPECT_EQ(shown_cut("██░", 2), "██");
  EXPECT_EQ(shown_cut("狼狼狼", 5), "狼狼") << "two columns each";
  EXPECT_EQ(shown_cut("e\u0301te\u0301", 2), "e\u0301t") << "an accent takes none";
  EXPECT_EQ(shown_cut("\xff\xfe?", 2), "\xff\xfe") << "not UTF-8";
  EXPECT_EQ(shown_cut("", 0), "");
}

TEST(Text, BytesAreReadWithAUnitOrWithout) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("4096 B"), 4096U);
  EXPECT_EQ(parse_bytes("64KiB"), 65536U);
  EXPECT_EQ(parse_bytes("64 kib"), 65536U);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3ULL << 29);
  EXPECT_EQ(parse_bytes("2 MB"), 2'000'000U);
  EXPECT_EQ(parse_bytes("0.1 GB"), 100'000'000U);
  EXPECT_EQ(parse_bytes("18446744073709551615"), ~0ULL);
  for (const char* text :
       {"", " ", "GiB", "1.5", "1.5 B", "1.5.2 GiB", "1. GiB", ".5 GiB", "-1 KiB", "1 XiB", "1 G",
        "1 GiB more", "16777216 TiB", "0x10", "1e3 KiB", "99999999999999999999 B",
        "9999999999.5 TiB", "0.0001 kB", "1.0001 KiB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(Text, AShellTakesAWordAsItIs) {
  EXPECT_EQ(shell_word("/run/ringfeed"), "/run/ringfeed");
  EXPECT_EQ(shell_word(""), "''");
  for (const char* word :
       {"a b", "it's", "$HOME", "`id`", "a;b", "*", "~", "-x", "a\nb", "\x1b[31m", "\xff\xfe",
        "\xc3\xa9", "\\", "\"", "'\n'", "#", "!", "a\tb", "%s"}) {
    EXPECT_EQ(said_by_bash(shell_word(word)), word) << shell_word(word);
  }
}

TEST(Text, HexadecimalDigitsAreTheBytesThatTheyCameFrom) {
  EXPECT_EQ(to_hex(std::string_view("\0\x7f\xff", 3)), "007fff");
  EXPECT_EQ(from_hex("007fff"), std::string("\0\x7f\xff", 3));
  EXPECT_EQ(from_hex("no"), "");
}

}  // namespace
}  // namespace ringfeed
