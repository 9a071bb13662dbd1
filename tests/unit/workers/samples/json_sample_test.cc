// The specification of workers/samples/json_sample.h.
#include "workers/samples/json_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A reader, and the text with the bytes behind it that may be read.
class Reader {
 public:
  explicit Reader(std::vector<WantedField> wanted = {}) : samples_(std::move(wanted)) {}
  JsonSamples::Outcome read(const std::string& text) {
    text_ = text + std::string(64, '!');
    return samples_.read({text_.data(), text.size()});
  }

 private:
  JsonSamples samples_;
  std::string text_;
};

std::string text_of(const SampleField& field) {
  return {reinterpret_cast<const char*>(field.data.data()), field.data.size()};
}
template <typename T>
std::vector<T> values(const SampleField& field) {
  std::vector<T> out(field.data.size() / sizeof(T));
  std::memcpy(out.data(), field.data.data(), field.data.size());
  return out;
}

TEST(JsonSample, HasTheTypesThatTheValuesHave) {
  Reader reader;
  const auto read = reader.read(
      R"({"s": "a\u00e9\n", "i": -3, "u": 18446744073709551615, "f": 1.5, "b": true, "n": null,
          "list": [1, 2, 3], "reals": [1, 2.5], "deep": [[1, 2, 3], [4, 5, 6]],
          "bools": [true, false], "empty": [], "words": ["x", "y"], "object": {"k": [1, null]},
          "ragged": [[1], [2, 3]], "mixed": [1, [2]], "big": [18446744073709551615]})");
  ASSERT_EQ(read.fault, SampleFault::kNone) << read.text;
  std::vector<std::string> shown;
  for (const SampleField& field : read.fields) {
    std::string shape;
    for (const std::uint32_t size : field.shape) shape += " " + std::to_string(size);
    shown.push_back(std::string(field.name) + " " + std::string(dtype_name(field.dtype)) + shape);
  }
  EXPECT_THAT(
      shown, ElementsAre("s text", "i int64", "u uint64", "f float64", "b bool", "list int64 3",
                         "reals float64 2", "deep int64 2 3", "bools bool 2", "empty int64 0",
                         "words text", "object text", "ragged text", "mixed text", "big uint64 1"));
  EXPECT_EQ(text_of(read.fields[0]), "a\u00e9\n");
  EXPECT_THAT(values<std::int64_t>(read.fields[1]), ElementsAre(-3));
  EXPECT_THAT(values<double>(read.fields[6]), ElementsAre(1, 2.5));
  EXPECT_THAT(values<std::int64_t>(read.fields[7]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(text_of(read.fields[10]), R"(["x","y"])");
  EXPECT_EQ(text_of(read.fields[11]), R"({"k":[1,null]})");
  EXPECT_EQ(text_of(read.fields[12]), "[[1],[2,3]]");
}

TEST(JsonSample, TakesTheFieldsThatAreWanted) {
  Reader reader({{"b", "b", {}}, {"a", "first", SampleDtype::kFloat32}});
  const auto read = reader.read(R"({"a": [[1, 2]], "x": {"a": 3}, "b": "t"})");
  ASSERT_EQ(read.fault, SampleFault::kNone) << read.text;
  ASSERT_EQ(read.fields.size(), 2U);
  EXPECT_EQ(read.fields[0].name, "b");
  EXPECT_EQ(read.fields[1].name, "first");
  EXPECT_THAT(read.fields[1].shape, ElementsAre(1, 2));
  EXPECT_THAT(values<float>(read.fields[1]), ElementsAre(1, 2));
  EXPECT_EQ(reader.read(R"({"a": 1})").fault, SampleFault::kMissingField);
  EXPECT_THAT(reader.read(R"({"a": 1, "b": null})").text, HasSubstr("no field 'b'"));
}

TEST(JsonSample, ConvertsNumbersThatTheTypeCanHold) {
  const auto read_as = [](SampleDtype dtype, const std::string& value) {
    Reader reader({{"x", "x", dtype}});
    const auto read = reader.read("{\"x\": " + value + "}");
    return read.fault == SampleFault::kNone ? text_of(read.fields[0]) : "refused: " + read.text;
  };
  const auto bytes = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  EXPECT_EQ(read_as(SampleDtype::kInt8, "-128"), bytes(std::int8_t{-128}));
  EXPECT_EQ(read_as(SampleDtype::kUint8, "255"), bytes(std::uint8_t{255}));
  EXPECT_EQ(read_as(SampleDtype::kUint64, "18446744073709551615"), bytes(~std::uint64_t{0}));
  EXPECT_EQ(read_as(SampleDtype::kFloat32, "1"), bytes(1.0F));
  EXPECT_EQ(read_as(SampleDtype::kFloat64, "0.1"), bytes(0.1));
  EXPECT_EQ(read_as(SampleDtype::kInt64, "5.0"), bytes(std::int64_t{5}));
  EXPECT_EQ(read_as(SampleDtype::kInt64, "-1.5e1"), bytes(std::int64_t{-15}));
  EXPECT_EQ(read_as(SampleDtype::kInt64, "1e18"), bytes(std::int64_t{1'000'000'000'000'000'000}));
  EXPECT_EQ(read_as(SampleDtype::kUint64, "1e19"),
            bytes(std::uint64_t{10'000'000'000'000'000'000U}));
  EXPECT_EQ(read_as(SampleDtype::kInt64, "-9223372036854775808.00"),
            bytes(std::numeric_limits<std::int64_t>::min()));
  EXPECT_EQ(read_as(SampleDtype::kUint8, "[1.0, true]").substr(0, 7), "refused");
  EXPECT_EQ(read_as(SampleDtype::kUint8, "[true, false]"), std::string("\1\0", 2));
  EXPECT_EQ(read_as(SampleDtype::kFloat32, "true"), bytes(1.0F));
  EXPECT_EQ(read_as(SampleDtype::kFloat32, "3.4028235e38"), bytes(3.4028235e38F));
  EXPECT_EQ(read_as(SampleDtype::kFloat32, "-Infinity"),
            bytes(-std::numeric_limits<float>::infinity()));
  EXPECT_EQ(read_as(SampleDtype::kFloat16, "Infinity"), bytes(std::uint16_t{0x7c00}));
  EXPECT_EQ(read_as(SampleDtype::kFloat16, "NaN"), bytes(std::uint16_t{0x7e00}));
  EXPECT_EQ(read_as(SampleDtype::kFloat64, "123456789012345678901234567890"),
            bytes(123456789012345678901234567890.0));
  EXPECT_EQ(read_as(SampleDtype::kFloat64, "1e-400"), bytes(0.0));
  EXPECT_EQ(read_as(SampleDtype::kFloat64, "-0.0000000001e-400"), bytes(-0.0));
  EXPECT_EQ(read_as(SampleDtype::kText, "1e400"), "1e400");
  EXPECT_EQ(read_as(SampleDtype::kText, "[NaN, 1.50, \"a b\"]"), "[NaN,1.50,\"a b\"]");
  EXPECT_EQ(read_as(SampleDtype::kBytes, R"("a\udc00\ud83d\ude00\ud83d")"),
            "a\xed\xb0\x80\xf0\x9f\x98\x80\xed\xa0\xbd");
  EXPECT_EQ(read_as(SampleDtype::kText, "7"), "7");
  EXPECT_EQ(read_as(SampleDtype::kBytes, "\"raw\""), "raw");
  EXPECT_EQ(read_as(SampleDtype::kText, "[1, 2]"), "[1,2]");
  for (const auto& [dtype, value] : std::vector<std::pair<SampleDtype, std::string>>{
           {SampleDtype::kInt8, "128"},
           {SampleDtype::kUint32, "-1"},
           {SampleDtype::kInt64, "18446744073709551615"},
           {SampleDtype::kInt32, "1.5"},
           {SampleDtype::kInt32, "\"1\""},
           {SampleDtype::kBool, "1"},
           {SampleDtype::kInt64, "[1, 2.5]"},
           {SampleDtype::kInt64, "[[1], [2, 3]]"},
           {SampleDtype::kInt64, "NaN"},
           {SampleDtype::kInt64, "9007199254740993.0"},
           {SampleDtype::kInt64, "1e19"},
           {SampleDtype::kUint64, "-1e18"},
           {SampleDtype::kInt16, "[1, 1e5]"},
           {SampleDtype::kFloat16, "70000"},
           {SampleDtype::kFloat16, "65520"},
           {SampleDtype::kBfloat16, "3.4e38"},
           {SampleDtype::kFloat32, "1e300"},
           {SampleDtype::kFloat32, "[0, -1e300]"},
           {SampleDtype::kFloat64, "1e400"},
           {SampleDtype::kFloat64, "null, \"x\": \"1\""},
           {SampleDtype::kText, R"("\udc00")"},
           {SampleDtype::kComplex64, "1"},
       }) {
    EXPECT_THAT(read_as(dtype, value), HasSubstr("refused: field 'x' is")) << value;
  }
}

// Beside the definition: the nearest of the 65,536 values, ties to the even one.
TEST(JsonSample, HalvesAreTheNearest) {
  const auto half = [](const std::string& value) {
    Reader reader({{"x", "x", SampleDtype::kFloat16}});
    return values<std::uint16_t>(reader.read("{\"x\": " + value + "}").fields[0])[0];
  };
  EXPECT_EQ(half("0"), 0x0000);
  EXPECT_EQ(half("-0.0"), 0x8000);
  EXPECT_EQ(half("1"), 0x3c00);
  EXPECT_EQ(half("-2"), 0xc000);
  EXPECT_EQ(half("65504"), 0x7bff);
  EXPECT_EQ(half("65519.99"), 0x7bff);
  EXPECT_EQ(half("0.00006103515625"), 0x0400) << "the least that is normal";
  EXPECT_EQ(half("0.000060975551605224609375"), 0x03ff);
  EXPECT_EQ(half("5.9604644775390625e-8"), 0x0001);
  EXPECT_EQ(half("2.98023223876953125e-8"), 0x0000) << "a tie, to the even one";
  EXPECT_EQ(half("2.9802322387695316e-8"), 0x0001);
  EXPECT_EQ(half("1.00048828125"), 0x3c00) << "a tie";
  EXPECT_EQ(half("1.0004882812500002"), 0x3c01);
  EXPECT_EQ(half("1.00146484375"), 0x3c02) << "a tie, to the even one";
  EXPECT_EQ(half("0.333251953125"), 0x3555);
}

// Of what nobody asks for it is enough that Python's json takes it.
TEST(JsonSample, WhatIsNotWantedCostsNothing) {
  Reader reader({{"id", "id", SampleDtype::kInt64}});
  std::string many;
  for (int i = 0; i < 1000; ++i) many += ", \"m" + std::to_string(i) + "\": null";
  for (const std::string& other :
       {std::string(R"("x": 123456789012345678901234567890)"), std::string(R"("x": -1e400)"),
        std::string(R"("x": NaN)"), std::string(R"("x": [Infinity, {"y": -Infinity}])"),
        std::string(R"("x": "\ud800", "\udfff": 1)"), std::string(R"("": 1)"),
        "\"x\": " + std::string(3000, '[') + std::string(3000, ']'),
        "\"" + std::string(300, 'k') + "\": 1", "\"x\": 1" + many}) {
    const auto read = reader.read("{\"id\": 7, " + other + "}");
    EXPECT_EQ(read.fault, SampleFault::kNone) << other.substr(0, 60) << ": " << read.text;
    EXPECT_EQ(values<std::int64_t>(read.fields[0]), std::vector<std::int64_t>{7});
  }
  for (const char* other :
       {R"("x": tru)", R"("x": Nan)", R"("x": +Infinity)", R"("x": -NaN)", R"("x": 1.)",
        R"("x": 01)", R"("x": "\u12")", R"("x": "\ud800\q")", R"("x": [1 2])", R"("x": [1,])",
        R"("x": {"k"})", R"("x": {"k": 1,})", R"("x": {1: 2})", R"("x": [})", R"("x" 1)", R"("x":)",
        R"("x": "a"b)"}) {
    const auto read = reader.read("{\"id\": 7, " + std::string(other) + "}");
    EXPECT_EQ(read.fault, SampleFault::kNotJson) << other;
  }
  Reader all;
  const auto read =
      all.read(R"({"": 1, "big": 123456789012345678901, "n": -Infinity, "half": "\ud800"})");
  ASSERT_EQ(read.fields.size(), 3U) << read.text;
  EXPECT_EQ(text_of(read.fields[0]), "123456789012345678901");
  EXPECT_EQ(read.fields[1].dtype, SampleDtype::kFloat64);
  EXPECT_EQ(read.fields[2].dtype, SampleDtype::kBytes);
  EXPECT_EQ(all.read("{\"x\": 1" + many + "}").fields.size(), 1U) << "nulls are no fields";
  EXPECT_EQ(all.read("{\"x\": 1" + many.substr(0, many.size() - 4) + "1}").fields.size(), 2U);
}

TEST(JsonSample, StrictLinesHaveNoNaN) {
  JsonSamples strict({{"id", "id", {}}}, true);
  const std::string text = R"({"id": 1, "x": [NaN]})" + std::string(64, '!');
  EXPECT_EQ(strict.read({text.data(), text.size() - 64}).fault, SampleFault::kNotJson);
}

TEST(JsonSample, OfMembersOfOneNameTheLastCounts) {
  Reader all;
  const auto read = all.read(R"({"a": 1, "b": 2, "\u0061": "x", "c": 3, "c": null})");
  ASSERT_EQ(read.fields.size(), 2U) << read.text;
  EXPECT_EQ(read.fields[1].name, "a");
  EXPECT_EQ(text_of(read.fields[1]), "x");
  Reader some({{"a", "a", SampleDtype::kInt64}});
  EXPECT_EQ(values<std::int64_t>(some.read(R"({"a": "no", "a": 5})").fields[0])[0], 5);
  EXPECT_EQ(some.read(R"({"a": 5, "a": null})").fault, SampleFault::kMissingField);
}

TEST(JsonSample, LinesThatAreNoObjectsAreRefused) {
  Reader reader;
  for (const char* text : {"", "{", "{\"a\": 1", "{\"a\": 1}}", "{\"a\": 01}", "{\"a\": \"\x80\"}",
                           "{a: 1}", "{\"a\": tru}", "nothing", "{\"a\": 1} {\"a\": 2}"}) {
    EXPECT_EQ(reader.read(text).fault, SampleFault::kNotJson) << text;
  }
  for (const char* text : {"[1]", "1", "\"x\"", "null"}) {
    EXPECT_EQ(reader.read(text).fault, SampleFault::kNotAnObject) << text;
  }
  const auto read = reader.read(R"({"fine": 1})");
  EXPECT_EQ(read.fault, SampleFault::kNone) << "it goes on behind them";
  EXPECT_EQ(read.fields.size(), 1U);
  EXPECT_THAT(reader.read("{}").fields, IsEmpty());
}

}  // namespace
}  // namespace ringfeed
