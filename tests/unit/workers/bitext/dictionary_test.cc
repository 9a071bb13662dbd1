// The specification of workers/bitext/dictionary.h.
#include "workers/bitext/dictionary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/support/makers/token_maker.h"

namespace ringfeed::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TokenDir;

Dictionary parsed(std::string_view text) {
  Result<Dictionary> dictionary = Dictionary::parse(text, "dict.txt");
  EXPECT_TRUE(dictionary) << dictionary.error().message();
  return dictionary ? std::move(*dictionary) : Dictionary();
}

std::vector<std::string> symbols(const Dictionary& dictionary) {
  std::vector<std::string> all;
  for (std::uint32_t id = 4; id < dictionary.size(); ++id) {
    all.emplace_back(dictionary.symbol(id));
  }
  return all;
}

std::string refusal(std::string_view text) {
  const Result<Dictionary> dictionary = Dictionary::parse(text, "dict.txt");
  if (dictionary) return "it was taken";
  EXPECT_EQ(dictionary.error().code(), ErrorCode::kDamaged);
  return dictionary.error().message();
}

TEST(Dictionary, BeginsWithTheFourSymbolsOfNoFile) {
  const Dictionary empty = parsed("");
  EXPECT_EQ(empty, Dictionary());
  EXPECT_EQ(empty.size(), 4U);
  EXPECT_EQ(empty.find("<s>"), Dictionary::kBos);
  EXPECT_EQ(empty.find("<pad>"), Dictionary::kPad);
  EXPECT_EQ(empty.find("</s>"), Dictionary::kEos);
  EXPECT_EQ(empty.find("<unk>"), Dictionary::kUnk);
  EXPECT_EQ(empty.symbol(2), "</s>");
}

TEST(Dictionary, NumbersTheLinesFromFourOn) {
  const Dictionary dictionary = parsed("the 9\nof 8\n\xe2\x96\x81x -1\n");
  EXPECT_THAT(symbols(dictionary), ElementsAre("the", "of", "\xe2\x96\x81x"));
  EXPECT_EQ(dictionary.find("the"), 4U);
  EXPECT_EQ(dictionary.find("\xe2\x96\x81x"), 6U);
  EXPECT_EQ(dictionary.find("missing"), std::nullopt);
  EXPECT_EQ(dictionary.size(), 7U);
}

TEST(Dictionary, EveryEndOfALineEndsIt) {
  EXPECT_THAT(symbols(parsed("a 1\nb 2\rc 3\r\nd 4")), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(symbols(parsed("a 1\r\n")), ElementsAre("a"));
  EXPECT_THAT(symbols(parsed("a 1\r")), ElementsAre("a"));
}

TEST(Dictionary, TheLastSpaceSeparates) {
  EXPECT_THAT(symbols(parsed("a b c 1\n  2\n 3\nx  4 \t\n# 5\n")),
              ElementsAre("a b c", " ", "", "x ", "#"));
}

TEST(Dictionary, OverwriteGivesANewId) {
  const Dictionary dictionary = parsed("a 1\nb 1\na 1 #fairseq:overwrite\nc 1\n");
  EXPECT_EQ(dictionary.size(), 8U);
  EXPECT_EQ(dictionary.find("a"), 6U);
  EXPECT_EQ(dictionary.find("c"), 7U);
  EXPECT_EQ(dictionary.symbol(4), "a") << "the old id is a hole, but still decodes";
  EXPECT_THAT(symbols(parsed("a 1 #fairseq:overwrite\n")), ElementsAre("a"));
  EXPECT_EQ(parsed("<unk> 1 #fairseq:overwrite\n").find("<unk>"), 4U);
}

TEST(Dictionary, SymbolsAreAddedBehindOrKeepTheirId) {
  Dictionary dictionary = parsed("a 1\n__x__ 1\n");
  EXPECT_EQ(dictionary.add_symbol("__y__"), 6U);
  EXPECT_EQ(dictionary.add_symbol("__x__"), 5U);
  EXPECT_EQ(dictionary.add_symbol("__y__"), 6U);
  EXPECT_EQ(dictionary.add_symbol("<mask>"), 7U);
  EXPECT_EQ(dictionary.size(), 8U);
}

TEST(Dictionary, IsEqualWhenEverySymbolHasTheSameId) {
  EXPECT_EQ(parsed("a 1\nb 1\n"), parsed("a 7\r\nb 9"));
  EXPECT_FALSE(parsed("a 1\nb 1\n") == parsed("b 1\na 1\n"));
  EXPECT_FALSE(parsed("a 1\n") == parsed("a 1\nb 1\n"));
}

TEST(Dictionary, DecodesIds) {
  const std::array<std::int64_t, 6> ids = {4, 5, 2, 70000, -1, 3};
  EXPECT_EQ(parsed("a 1\nb 1\n").text(ids), "a b </s> #70000 #-1 <unk>");
}

TEST(DictionaryRefusal, NamesFileLineAndRemedy) {
  EXPECT_THAT(refusal("a 1\n\nb 1\n"), AllOf(HasSubstr("dict.txt: line 2 (offset 4)"),
                                             HasSubstr("blank"), HasSubstr("remove")));
  EXPECT_THAT(refusal("a 1\r\n \t \r\n"), HasSubstr("line 2 (offset 5)"));
  EXPECT_THAT(refusal("a 1\nb\n"), AllOf(HasSubstr("line 2"), HasSubstr("'b' does not end")));
  for (const char* line : {"a 1.5", "a x", "a 1 #fairseq", "a  #fairseq:overwrite", "a\t1", "a -",
                           "#fairseq:overwrite", "a #fairseq:overwrite", "1"}) {
    EXPECT_THAT(refusal(line), HasSubstr("SYMBOL COUNT")) << line;
  }
  EXPECT_THAT(refusal("a 1\nb 1\na 2\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("has id 4"), HasSubstr("#fairseq:overwrite")));
  EXPECT_THAT(refusal("</s> 1\n"), AllOf(HasSubstr("id 2"), HasSubstr("without being in")));
}

TEST(DictionaryRefusal, OfWhatIsNoUtf8) {
  for (const std::string_view bad : {"\xff", "\x80", "\xc3", "\xc0\xaf", "\xe2\x96", "\xed\xa0\x80",
                                     "\xf4\x90\x80\x80", "\xf0\x9f\x98"}) {
    EXPECT_THAT(refusal(fmt::format("a 1\nb{} 1\n", bad)),
                AllOf(HasSubstr("line 2 (offset 4): its byte 1"), HasSubstr("UTF-8")));
  }
  EXPECT_THAT(symbols(parsed("\xc3\xa9 1\n\xe2\x82\xac 1\n\xf0\x9f\x98\x80 1\n")),
              ElementsAre("\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"));
}

TEST(DictionaryRefusal, OfFilesThatAreNone) {
  const TokenDir directory;
  const auto missing = Dictionary::read(directory.path("dict.txt"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr(directory.path("dict.txt")));
  const auto folder = Dictionary::read(directory.path());
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message(), HasSubstr("not a regular file"));
  const auto read = Dictionary::read(directory.write("dict.txt", "a 1\n"));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->find("a"), 4U);
}

// Whatever is in a file: it is refused with a line, or every line has become a symbol.
TEST(DictionaryDamage, IsRefusedOrRead) {
  std::string good;
  for (int i = 0; i < 40; ++i) good += fmt::format("\xe2\x96\x81w{} {}\n", i, 100 - i);
  good += "a b 1\r\nw 1\rw 2 #fairseq:overwrite\n";
  std::mt19937_64 random(23);
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  int taken = 0;
  constexpr int kMutations = 20000;
  for (int turn = 0; turn < kMutations; ++turn) {
    std::string text = good;
    for (std::uint64_t change = 0; change <= below(2); ++change) {
      const std::size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          text.resize(at + 1);
          break;
        case 2:
          text.insert(at, 1, "\r\n 9#"[below(5)]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(50)));
          break;
        default:
          text.erase(at, below(20));
          if (text.empty()) text = " ";
          break;
      }
    }
    const Result<Dictionary> dictionary = Dictionary::parse(text, "dict.txt");
    std::size_t lines = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool ends =
          text[i] == '\n' || (text[i] == '\r' && (i + 1 == text.size() || text[i + 1] != '\n'));
      if (ends || i + 1 == text.size()) ++lines;
    }
    if (!dictionary) {
      ASSERT_THAT(dictionary.error().message(), HasSubstr("dict.txt: line "));
      continue;
    }
    ++taken;
    ASSERT_EQ(dictionary->size(), 4 + lines) << turn;
    for (std::uint32_t id = 0; id < dictionary->size(); ++id) {
      const auto found = dictionary->find(dictionary->symbol(id));
      ASSERT_TRUE(found.has_value());
      ASSERT_GE(*found, id);
    }
  }
  EXPECT_GT(taken, kMutations / 10);
  EXPECT_LT(taken, kMutations * 9 / 10);
}

}  // namespace
}  // namespace ringfeed::formats
