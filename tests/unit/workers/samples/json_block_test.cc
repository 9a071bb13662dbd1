// The specification of workers/samples/json_block.h: whatever it takes has the bytes that
// json_sample.h and write_sample() give it.
#include "workers/samples/json_block.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <random>

#include "workers/samples/json_sample.h"
#include "workers/samples/json_text.h"

namespace ringfeed {
namespace {

std::string bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Both readers of the same lines.
class Both {
 public:
  explicit Both(const std::vector<WantedField>& wanted = {}) : block_(wanted), samples_(wanted) {}

  // Lines that the block took; each is compared with what JsonSamples makes of it.
  std::vector<bool> read(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    const std::size_t size = text.size();
    text.resize(size + 64, '"');
    std::vector<bool> took;
    std::size_t at = 0;
    bool begun = false;
    for (const std::string& line : lines) {
      const std::string_view here = std::string_view(text).substr(at, line.size());
      at += line.size() + 1;
      if (here.empty()) {
        took.push_back(false);
        continue;
      }
      if (!begun || !block_.is_in(here)) {
        block_.begin(std::string_view(text).substr(
            static_cast<std::size_t>(here.data() - text.data()),
            size - static_cast<std::size_t>(here.data() - text.data())));
        begun = true;
        EXPECT_TRUE(block_.is_in(here));
      }
      took.push_back(block_.read(here));
      if (took.back()) compare(here);
    }
    return took;
  }

 private:
  void compare(std::string_view line) {
    const std::string ours = bytes_of(block_.head()) + bytes_of(block_.data());
    const JsonSamples::Outcome outcome = samples_.read(line);
    ASSERT_EQ(outcome.fault, SampleFault::kNone) << line << ": " << outcome.text;
    const std::optional<std::uint64_t> bytes = sample_bytes(outcome.fields);
    ASSERT_TRUE(bytes) << line;
    std::vector<std::byte> room(*bytes + 16, std::byte{0xee});
    void* at = room.data();
    std::size_t space = room.size();
    ASSERT_NE(std::align(16, *bytes, at, space), nullptr);
    const std::span<std::byte> record(static_cast<std::byte*>(at), *bytes);
    write_sample(record, outcome.fields);
    ASSERT_EQ(ours, bytes_of(record)) << line;
  }

  JsonBlock block_;
  JsonSamples samples_;
};

const std::vector<std::string> kPlain = {
    R"({"id": 1, "text": "one", "score": 0.5, "label": true})",
    R"({"id": 2, "text": "a \"quoted\" \u00e9\ud83d\ude00 line\n", "score": -1e-7, "label": false})",
    R"( { "id" :3 ,"text":"", "score":1E+2 ,"label" : true } )",
    R"({"id": -9223372036854775808, "other": 9223372036854775807})",
    R"({"id": 0, "gone": null, "last": -0})",
    R"({"row": [1, 2, 3], "reals": [1, 2.5, -3], "deep": [[1, 2], [3, 4.5]], "cube": [[[1], [2]]]})",
    R"({"row": [ 0.1,0.30000000000000004 , 1e-300,-0.0,123456789.123456789]})",
    R"({"x": 17976931348623157e22, "y": 5e-324, "z": 0e99})",
    R"({"x": 0.8444218515250481, "y": 9007199254740993.0, "z": 1.7976931348623157e308})",
    R"({})",
    "{\"tab\":\t1,\r\"cr\": 2}",
};
// For JsonSamples: what it says of them is its own.
const std::vector<std::string> kOther = {
    R"({"u": 18446744073709551615})",
    R"({"list": ["x"], "object": {"k": 1}})",
    R"({"empty": []})",
    R"({"ragged": [[1], [2, 3]]})",
    R"({"mixed": [1, [2]]})",
    R"({"mixed": [[1], 2]})",
    R"({"truths": [true, false]})",
    R"({"a\u0062": 1})",
    R"({"": 1})",
    R"({"same": 1, "same": 2})",
    R"({"same": 1, "same": null})",
    R"({"a": -Infinity})",
    R"({"a": "\udc00"})",
    R"({"a": "\ud800\u0041"})",
    R"({"a": 01})",
    R"({"a": 1.})",
    R"({"a": .5})",
    R"({"a": +1})",
    R"({"a": 1e})",
    R"({"a": --1})",
    R"({"a": -})",
    R"({"a": 1x})",
    R"({"a": 1 2})",
    R"({"a": tru})",
    R"({"a": truex})",
    R"({"a": NaN})",
    R"({"a": 1e400})",
    R"({"a": 1,})",
    R"({"a" 1})",
    R"({"a": "x"y})",
    R"({"a": "\ud800"})",
    R"({"a": "\x"})",
    R"({"a": 1}})",
    R"({"a": 1} {"b": 2})",
    R"({"a": [1,]})",
    R"({"a": [1})",
    R"([1])",
    R"("x")",
    R"(1)",
    "  ",
    "{\"a\":\f1}",
    "\xef\xbb\xbf{\"a\": 1}",
    R"({"a": 1)",
    R"(,"b": 2})",
};

TEST(JsonBlock, HasTheBytesOfTheOtherReader) {
  Both both;
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(both.read(kPlain), ::testing::Each(true));
  }
}

TEST(JsonBlock, LeavesTheRestToTheOtherReader) {
  for (const std::string& other : kOther) {
    Both both;
    const std::vector<bool> took = both.read({kPlain[0], other, kPlain[1], kPlain[2]});
    EXPECT_THAT(took, ::testing::ElementsAre(true, false, true, true)) << other;
  }
}

// A quote that is missing, or bytes that are no text: nobody knows where lines end in such a block.
TEST(JsonBlock, GoesOnBehindABlockThatIsNoJson) {
  for (const std::string& bad : {std::string(R"({"a": "x)"), std::string("{\"a\": \"\x80\"}"),
                                 std::string("{\"a\": \"\x01\"}")}) {
    Both both;
    std::vector<std::string> lines(3000, kPlain[0]);
    lines[1] = bad;
    const std::vector<bool> took = both.read(lines);
    EXPECT_FALSE(took[1]);
    EXPECT_TRUE(took.back());
  }
}

TEST(JsonBlock, TakesWhatIsWanted) {
  const std::vector<WantedField> wanted = {{"b", "b", {}},
                                           {"a", "first", SampleDtype::kFloat32},
                                           {"t", "t", SampleDtype::kBytes},
                                           {"i", "i", SampleDtype::kInt8}};
  Both both(wanted);
  const auto took = both.read({
      R"({"b": "x", "a": [[1, 2.5]], "t": "raw", "i": -128})",
      R"({"i": 127, "skipped": {"a": [1, "x\n", {"k": [null, true]}], "b": []}, "t": "", "a": 1, "b": 2})",
      R"({"b": 1, "a": 0.1, "t": "x", "i": 5.0})",
      R"({"t": "x", "b": [1, 2], "z": "\u00e9", "n": null, "i": 3, "a": 16777217})",
  });
  EXPECT_THAT(took, ::testing::Each(true));
  for (const char* line : {
           R"({"b": 1, "a": 1, "t": "x"})",
           R"({"b": 1, "a": 1, "t": "x", "i": 128})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1.5})",
           R"({"b": 1, "a": 1e39, "t": "x", "i": 1})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "b": "other"})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "i": null})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "z": NaN})",
           R"({"b": 1, "a": "1", "t": "x", "i": 1})",
           R"({"b": 1, "a": 1, "t": 5, "i": 1})",
           R"({"b": null, "a": 1, "t": "x", "i": 1})",
           R"({"b": 1, "a": true, "t": "x", "i": 1})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "z": "\q"})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "z": [1 2]})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "z": {"k" 2}})",
           R"({"b": 1, "a": 1, "t": "x", "i": 1, "z": 1e999999999})",
       }) {
    EXPECT_THAT(both.read({line}), ::testing::ElementsAre(false)) << line;
  }
  for (const SampleDtype dtype :
       {SampleDtype::kInt16, SampleDtype::kInt32, SampleDtype::kInt64, SampleDtype::kUint8,
        SampleDtype::kUint16, SampleDtype::kUint32, SampleDtype::kUint64, SampleDtype::kFloat16,
        SampleDtype::kBfloat16, SampleDtype::kFloat32, SampleDtype::kFloat64}) {
    Both one({{"x", "x", dtype}});
    EXPECT_THAT(one.read({R"({"x": 7})", R"({"x": [1, 0, 200]})"}), ::testing::Contains(true));
  }
}

TEST(JsonBlock, WhatIsWantedTwiceIsForTheOtherReader) {
  Both both({{"a", "x", {}}, {"a", "y", {}}});
  EXPECT_THAT(both.read({R"({"a": 1})"}), ::testing::ElementsAre(false));
}

// Each way to leave out escapes gives what the plain one does.
TEST(JsonText, AllUnescapersAgree) {
  std::mt19937 random(2);  // NOLINT: the same texts each time
  const std::vector<std::string> pieces = {"a",
                                           "bc",
                                           "\\n",
                                           "\\\\",
                                           "\\\"",
                                           "\\u00e9",
                                           "\\/",
                                           "\xc3\xa9",
                                           "\\q",
                                           "\\t\\r\\b\\f",
                                           "\\ud800",
                                           "\\uDbFf\\udFFF",
                                           "\\udc00",
                                           "word ",
                                           std::string(70, 'x')};
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    // Most have no escape that is none, or rare.
    const std::size_t kinds = round % 4 == 0 ? pieces.size() : 5;
    std::string text;
    for (std::size_t i = random() % 60; i != 0; --i) text += pieces[random() % kinds];
    const std::size_t size = text.size();
    text += '"' + std::string(128, 'z');
    const auto read = [&](const Unescaper& by) {
      std::vector<std::byte> room(size + 128, std::byte{0xee});
      const std::byte* end = by.unescape(std::string_view(text).substr(0, size), room.data());
      if (end == nullptr) return std::string("none");
      return ":" + std::string(reinterpret_cast<const char*>(room.data()),
                               static_cast<std::size_t>(end - room.data()));
    };
    ASSERT_EQ(unescapers().back().name, "plain");
    const std::string right = read(unescapers().back());
    refused += right == "none" ? 1 : 0;
    for (const Unescaper& by : unescapers()) ASSERT_EQ(read(by), right) << by.name << ": " << text;
  }
  EXPECT_GT(refused, 100U);
}

// Of many lines, and of lines with bytes exchanged, left out and put in.
TEST(JsonBlock, AgreesOverLinesOfAllKinds) {
  std::mt19937 random(1);  // NOLINT: the same lines each time
  const auto below = [&](std::size_t bound) { return random() % bound; };
  const std::vector<std::string> values = {"1",
                                           "-3",
                                           "2.5",
                                           "1e5",
                                           "-0.000123",
                                           "12345678901234567",
                                           "null",
                                           "true",
                                           "[1, 2]",
                                           "[1.5]",
                                           "[[1]]",
                                           "\"text\"",
                                           "\"\\n\"",
                                           "\"\\u00e9 \xc3\xa9\"",
                                           "\"\"",
                                           "[]",
                                           "{}",
                                           "false",
                                           "[\"word\"]",
                                           "1.2345678901234567890",
                                           "[0.1, 22, 333.25]",
                                           "5.0",
                                           "1e300",
                                           "70000",
                                           "NaN",
                                           "[NaN]",
                                           "123456789012345678901",
                                           "\"\\ud83d\\ude00\"",
                                           "\"\\ud83d\""};
  const auto object = [&] {
    std::string line = "{";
    const std::size_t count = below(6);
    for (std::size_t i = 0; i < count; ++i) {
      line +=
          fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ",
                      below(8) == 0 ? "k" : std::string(1 + i, 'a'), values[below(values.size())]);
    }
    return line + "}";
  };
  std::size_t taken = 0;
  for (int round = 0; round < 400; ++round) {
    Both all;
    Both some({{"a", "a", {}}, {"aaa", "three", {}}});
    Both typed({{"a", "a", SampleDtype::kInt16}, {"aa", "aa", SampleDtype::kFloat16}});
    std::vector<std::string> lines;
    for (int i = 0; i < 40; ++i) {
      std::string line = object();
      if (below(8) == 0) {
        const std::size_t at = below(line.size());
        const char with = "\"\\{}[],:0e.- x\x80\x01"[below(17)];
        switch (below(3)) {
          case 0:
            line[at] = with;
            break;
          case 1:
            line.erase(at, 1);
            break;
          default:
            line.insert(at, 1, with);
        }
      }
      lines.push_back(std::move(line));
    }
    for (const bool took : all.read(lines)) taken += took ? 1 : 0;
    (void)some.read(lines);
    (void)typed.read(lines);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(taken, 400U) << "the block takes lines of these";
}

}  // namespace
}  // namespace ringfeed
