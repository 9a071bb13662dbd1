#include "supervisor/config/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ringfeed::config {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// "line:column text" of every problem.
std::vector<std::string> tree_problems(const Tree& tree) {
  std::vector<std::string> all;
  for (const TreeProblem& problem : tree.problems) {
    all.push_back(std::to_string(problem.position.line) + ":" +
                  std::to_string(problem.position.column) + " " + problem.text);
  }
  return all;
}

// A tree as text, for comparing whole trees: strings in quotes, all else bare.
std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kString:
      return "\"" + node.text + "\"";
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kObject: {
      std::string text = "{";
      for (const Entry& entry : node.entries) text += entry.name + ":" + shown(entry.value) + ";";
      return text + "}";
    }
    case Node::Kind::kList: {
      std::string text = "[";
      for (const Node& item : node.items) text += shown(item) + ";";
      return text + "]";
    }
    case Node::Kind::kNumber:
    case Node::Kind::kWord:
      break;
  }
  return node.text;
}

// Reads a text that must be right.
std::string text_tree(std::string_view text) {
  const Tree tree = parse_text_format(text);
  EXPECT_THAT(tree_problems(tree), IsEmpty()) << text;
  EXPECT_TRUE(tree.complete) << text;
  return shown(tree.root);
}
std::string json_tree(std::string_view text) {
  const Tree tree = parse_json(text);
  EXPECT_THAT(tree_problems(tree), IsEmpty()) << text;
  EXPECT_TRUE(tree.complete) << text;
  return shown(tree.root);
}

TEST(TextFormat, ReadsEveryFormOfAField) {
  EXPECT_EQ(text_tree("a: 1 b: -2.5e-3f c: BLOCK d: true e: - inf"),
            "{a:1;b:-2.5e-3f;c:BLOCK;d:true;e:-inf;}");
  EXPECT_EQ(text_tree("a { b: 1 } a: { b: 2 } a < b: 3 >"), "{a:{b:1;};a:{b:2;};a:{b:3;};}");
  EXPECT_EQ(text_tree("a: [1, 2] b: [] c: [{ d: 1 }, < d: 2 >]"),
            "{a:[1;2;];b:[];c:[{d:1;};{d:2;};];}");
  EXPECT_EQ(text_tree("a: 1, b: 2; c: 3"), "{a:1;b:2;c:3;}");
  EXPECT_EQ(text_tree("a: 0x1F b: 017"), "{a:0x1F;b:017;}");
  EXPECT_EQ(text_tree(""), "{}");
}

TEST(TextFormat, DecodesStrings) {
  EXPECT_EQ(text_tree(R"(a: "x" 'y' # joined
                            "z")"),
            "{a:\"xyz\";}");
  EXPECT_EQ(text_tree(R"(a: "\n\t\\\"\'\x41\101\u00e9\U0001F600")"),
            "{a:\"\n\t\\\"'AA\xC3\xA9\xF0\x9F\x98\x80\";}");
}

TEST(TextFormat, SkipsCommentsAndAByteOrderMark) {
  EXPECT_EQ(text_tree("\xEF\xBB\xBF# first\na: 1 # b: 2\n# c: 3"), "{a:1;}");
}

TEST(TextFormat, PlacesCountLinesAndBytesFromOne) {
  const Tree tree = parse_text_format("a: 1\n  bb {\n\tc: \"x\" }");
  EXPECT_EQ(tree.root.entries[0].position.line, 1);
  EXPECT_EQ(tree.root.entries[0].position.column, 1);
  EXPECT_EQ(tree.root.entries[0].value.position.column, 4);
  EXPECT_EQ(tree.root.entries[1].position.line, 2);
  EXPECT_EQ(tree.root.entries[1].position.column, 3);
  EXPECT_EQ(tree.root.entries[1].value.entries[0].position.line, 3);
  EXPECT_EQ(tree.root.entries[1].value.entries[0].position.column, 2);
}

TEST(TextFormatDamage, GoesOnAfterAMistakeWhoseExtentIsClear) {
  const Tree tree = parse_text_format(
      "a 1\n"
      "b:\n"
      "c: 2\n"
      "d: \"open\n"
      "e: ?\n"
      "= 4\n"
      "f: 5\n");
  EXPECT_TRUE(tree.complete);
  EXPECT_THAT(
      tree_problems(tree),
      ElementsAre("1:3 expected ':' after 'a', found '1'; write a: VALUE",
                  "2:1 'b' has no value; write b: VALUE", "4:4 this string is never closed; add \"",
                  "5:4 expected a value, found '?'",
                  "6:1 expected the name of a field, found '='"));
  EXPECT_EQ(shown(tree.root), "{a:1;c:2;f:5;}");
}

TEST(TextFormatDamage, ABraceWithoutItsPartnerLeavesTheTreeIncomplete) {
  const Tree open = parse_text_format("a: 1\nb {\n c: 2\n");
  EXPECT_FALSE(open.complete);
  EXPECT_THAT(tree_problems(open), ElementsAre("2:3 this message is never closed; add '}'"));
  const Tree close = parse_text_format("a: 1 }\n");
  EXPECT_FALSE(close.complete);
  EXPECT_THAT(tree_problems(close), ElementsAre(HasSubstr("1:6 '}' closes nothing")));
  const Tree mixed = parse_text_format("a { b: 1 >");
  EXPECT_FALSE(mixed.complete);
  const Tree list = parse_text_format("a: [1, 2\nb: 3");
  EXPECT_FALSE(list.complete);
  EXPECT_THAT(tree_problems(list), ElementsAre(HasSubstr("1:4 this list is never closed")));
}

TEST(TextFormatDamage, NestingIsBounded) {
  for (const char* unit : {"a {", "a: [", "a <"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += unit;
    const Tree tree = parse_text_format(text);
    EXPECT_FALSE(tree.complete) << unit;
    EXPECT_THAT(tree.problems, testing::Not(IsEmpty())) << unit;
  }
}

TEST(TextFormatDamage, AnyBytesAreRefusedOrReadWithoutACrash) {
  // Every prefix, and every single byte replaced, of a text that uses every form.
  const std::string text =
      "a: \"x\\n\" 'y' b { c: [1, -2.5e+3, {d: inf}] } e < f: TRUE; > # end\ng: 0x1F";
  for (std::size_t i = 0; i <= text.size(); ++i) {
    static_cast<void>(parse_text_format(text.substr(0, i)));
    for (const char byte : {'\0', '"', '}', '{', '[', ']', '\\', '\n', '-', '\xFF'}) {
      std::string damaged = text;
      if (i < text.size()) damaged[i] = byte;
      static_cast<void>(parse_text_format(damaged));
      static_cast<void>(parse_json("{" + damaged));
    }
  }
}

TEST(Json, ReadsEveryKindOfValue) {
  EXPECT_EQ(json_tree(R"({"a": 1, "b": -2.5e3, "c": "x", "d": true, "e": null, "f": {"g": [1, "y"]},
                          "h": [], "i": {}})"),
            "{a:1;b:-2.5e3;c:\"x\";d:true;e:null;f:{g:[1;\"y\";];};h:[];i:{};}");
}

TEST(Json, DecodesStrings) {
  EXPECT_EQ(json_tree(R"({"a": "\n\t\\\"\/\u00e9\ud83d\ude00"})"),
            "{a:\"\n\t\\\"/\xC3\xA9\xF0\x9F\x98\x80\";}");
}

TEST(JsonDamage, GoesOnAfterAMistakeWhoseExtentIsClear) {
  const Tree tree = parse_json(
      "{\"a\": 1\n"
      " \"b\": word,\n"
      " // why\n"
      " \"c\": [1, 2,],\n"
      " \"d\": \"\\q\"}");
  EXPECT_TRUE(tree.complete);
  EXPECT_THAT(
      tree_problems(tree),
      ElementsAre("2:2 expected ',' or '}', found '\"'", "2:7 'word' has no quotes; write \"word\"",
                  "3:2 JSON has no comments; remove it, or use the text format",
                  "4:12 JSON has no ',' before ']'; remove it",
                  "5:8 unknown escape in a string; write \\\\ for a backslash"));
}

// Both formats are read by one lexer; which escapes there are is each one's own.
TEST(StringDamage, EachFormatRefusesWhatOnlyTheOtherKnows) {
  for (const char* escape : {"\\a", "\\v", "\\'", "\\?", "\\x41", "\\101", "\\U0001F600"}) {
    const Tree tree = parse_json("{\"a\": \"" + std::string(escape) + "\"}");
    EXPECT_THAT(tree_problems(tree), ElementsAre(HasSubstr("unknown escape"))) << escape;
    EXPECT_TRUE(tree.complete) << escape;
  }
  for (const char* escape : {"\\/", "\\ud83d\\ude00", "\\x", "\\777", "\\8", "\\u12"}) {
    const Tree tree = parse_text_format("a: \"" + std::string(escape) + "\"");
    EXPECT_THAT(tree_problems(tree), Each(HasSubstr("unknown escape"))) << escape;
    EXPECT_THAT(tree.problems, Not(IsEmpty())) << escape;
    EXPECT_TRUE(tree.complete) << escape;
  }
}

TEST(JsonDamage, BrokenStructureIsIncomplete) {
  for (const char* text : {"", "[]", "{", "{\"a\"", "{\"a\":", "{\"a\": 1", "{\"a\": [1",
                           "{\"a\": 1}}", "{\"a\": \"x", "{a: 1}", "{\"a\": }", "{\"a\": 1 ? 2}"}) {
    const Tree tree = parse_json(text);
    EXPECT_FALSE(tree.complete) << text;
    EXPECT_THAT(tree.problems, SizeIs(1)) << text;
  }
}

TEST(JsonDamage, NestingIsBounded) {
  std::string text = "{\"a\":";
  for (int i = 0; i < 100'000; ++i) text += "[";
  EXPECT_FALSE(parse_json(text).complete);
}

TEST(TextValue, IsExactlyOneValue) {
  EXPECT_EQ(shown(parse_text_value("{a: 1}").root), "{a:1;}");
  EXPECT_EQ(shown(parse_text_value(" -3 ").root), "-3");
  EXPECT_THAT(parse_text_value("1 2").problems, SizeIs(1));
  EXPECT_THAT(parse_text_value("").problems, SizeIs(1));
  EXPECT_THAT(parse_text_value("{a: 1").problems, SizeIs(1));
}

}  // namespace
}  // namespace ringfeed::config
