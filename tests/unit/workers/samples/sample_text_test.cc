// Samples as people read them.
#include "workers/samples/sample_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "workers/samples/numbers.h"

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The line of a sample that has this field alone.
std::string line_of(const SampleField& field) {
  std::vector<std::byte> bytes(*sample_bytes(std::span(&field, 1)));
  write_sample(bytes, std::span(&field, 1));
  const std::vector<std::string> lines = sample_text(*SampleView::open(bytes));
  return lines.size() == 1 ? lines[0] : "not one line";
}
template <typename T>
std::string line_of(SampleDtype dtype, std::vector<std::uint32_t> shape,
                    const std::vector<T>& values) {
  return line_of(
      {.name = "x", .dtype = dtype, .shape = shape, .data = std::as_bytes(std::span(values))});
}
std::string line_of_text(std::string_view text, SampleDtype dtype = SampleDtype::kText) {
  return line_of({.name = "x", .dtype = dtype, .data = std::as_bytes(std::span(text))});
}

TEST(SampleText, NumbersAndSmallArraysAreWhole) {
  EXPECT_EQ(line_of<std::int64_t>(SampleDtype::kInt64, {}, {-3}), "x  int64  -3");
  EXPECT_EQ(line_of<std::uint64_t>(SampleDtype::kUint64, {}, {~0ULL}),
            "x  uint64  18446744073709551615");
  EXPECT_EQ(line_of<std::uint8_t>(SampleDtype::kUint8, {2, 3}, {0, 1, 2, 3, 4, 255}),
            "x  uint8[2,3]  0 1 2 3 4 255");
  EXPECT_EQ(line_of<std::uint8_t>(SampleDtype::kBool, {2}, {0, 1}), "x  bool[2]  false true");
  EXPECT_EQ(line_of<float>(SampleDtype::kFloat32, {2}, {0.5F, -1e10F}),
            "x  float32[2]  0.5 -1e+10");
  EXPECT_EQ(line_of<std::uint16_t>(SampleDtype::kFloat16, {1}, {to_half(1.5)}),
            "x  float16[1]  1.5");
  EXPECT_EQ(line_of<std::uint16_t>(SampleDtype::kBfloat16, {1}, {to_bfloat16(-2)}),
            "x  bfloat16[1]  -2");
  EXPECT_EQ(line_of<std::complex<float>>(SampleDtype::kComplex64, {1}, {{1, -2}}),
            "x  complex64[1]  1-2j");
  EXPECT_EQ(line_of<float>(SampleDtype::kFloat32, {0, 3}, {}), "x  float32[0,3]");
}

TEST(SampleText, OfLargeArraysTheFirstAndTheRange) {
  std::vector<std::int16_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), std::int16_t{-10});
  EXPECT_EQ(line_of(SampleDtype::kInt16, {10, 100}, numbers),
            "x  int16[10,100]  -10 -9 -8 -7 -6 -5 -4 -3 …, min -10, max 989");
}

TEST(SampleText, NanIsInNoRangeAndIsCounted) {
  std::vector<double> numbers(10, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(line_of(SampleDtype::kFloat64, {10}, numbers), HasSubstr("…, 10 of them NaN"));
  numbers[9] = 2;
  EXPECT_THAT(line_of(SampleDtype::kFloat64, {10}, numbers),
              HasSubstr("…, min 2, max 2, 9 of them NaN"));
}

TEST(SampleText, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(line_of_text("a\n\x1b[31m"), R"(x  text  "a\n\x1b[31m")") << "safe for a terminal";
  std::string text;
  for (int i = 0; i < 100; ++i) text += "€";
  EXPECT_EQ(line_of_text(text), "x  text  \"" + text.substr(0, 60) + "\"… (300 bytes)");
  EXPECT_EQ(line_of_text("a" + text), "x  text  \"a" + text.substr(0, 57) + "\"… (301 bytes)");
}

TEST(SampleText, BytesAreHexadecimal) {
  EXPECT_EQ(line_of_text(std::string_view("\x00\xff", 2), SampleDtype::kBytes),
            "x  bytes  00 ff (2 bytes)");
  EXPECT_THAT(line_of_text(std::string(100, 'a'), SampleDtype::kBytes),
              HasSubstr("61 61 … (100 bytes)"));
}

TEST(SampleText, FieldsStandBelowEachOther) {
  const std::int64_t id = 7;
  const std::string_view text = "word";
  const std::vector<SampleField> fields = {
      {.name = "id", .dtype = SampleDtype::kInt64, .data = std::as_bytes(std::span(&id, 1))},
      {.name = "text", .dtype = SampleDtype::kText, .data = std::as_bytes(std::span(text))}};
  std::vector<std::byte> bytes(*sample_bytes(fields));
  write_sample(bytes, fields);
  EXPECT_THAT(sample_text(*SampleView::open(bytes)),
              ElementsAre("id    int64  7", "text  text   \"word\""));
}

TEST(SampleText, ASampleWithoutFieldsHasNoLines) {
  std::vector<std::byte> bytes(*sample_bytes({}));
  write_sample(bytes, {});
  EXPECT_THAT(sample_text(*SampleView::open(bytes)), IsEmpty());
}

}  // namespace
}  // namespace ringfeed
