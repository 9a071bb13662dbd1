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
  EXPECT_THAT(shown, ElementsAre("s text", "i int64", "u uint64", "f float64", "b bool",
                                 "list int64 3", "reals float64 2", "deep int64 2 3",
                                 "bools bool 2", "empty int64 0", "words text", "object text",
                                 "ragged text", "mixed text", "big float64 1"));
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
  EXPECT_EQ(read_as(SampleDtype::kText, "7"), "7");
  EXPECT_EQ(read_as(SampleDtype::kBytes, "\"raw\""), "raw");
  EXPECT_EQ(read_as(SampleDtype::kText, "[1, 2]"), "[1,2]");
  for (const auto& [dtype, value] : std::vector<std::pair<SampleDtype, std::string>>{
           {SampleDtype::kInt8, "128"},
           {SampleDtype::kUint32, "-1"},
           {SampleDtype::kInt64, "18446744073709551615"},
           {SampleDtype::kInt32, "1.0"},
           {SampleDtype::kInt32, "\"1\""},
           {SampleDtype::kFloat32, "true"},
           {SampleDtype::kBool, "1"},
           {SampleDtype::kInt64, "[1, 2.5]"},
           {SampleDtype::kInt64, "[[1], [2, 3]]"},
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
  EXPECT_EQ(half("65520"), 0x7c00);
  EXPECT_EQ(half("1e300"), 0x7c00);
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
