#include "supervisor/peek/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

namespace ringfeed::peek {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename T>
Summary summary_of(const std::string& dtype, const std::vector<T>& items, std::size_t first = 3) {
  ObservedArray array;
  array.dtype = dtype;
  array.item_bytes = sizeof(T);
  array.shape = {items.size()};
  array.bytes = std::as_bytes(std::span(items));
  return summarise(array, first);
}

TEST(Summary, OfFiniteNumbersAlone) {
  const Summary seen = summary_of<float>(
      "float32", {1, -3, 0, std::nanf(""), std::numeric_limits<float>::infinity(), 2}, 4);
  EXPECT_EQ(seen.items, 6u);
  EXPECT_EQ(seen.zeros, 1u);
  EXPECT_EQ(seen.nans, 1u);
  EXPECT_EQ(seen.infinities, 1u);
  ASSERT_TRUE(seen.range.has_value());
  EXPECT_DOUBLE_EQ(seen.range->min, -3);
  EXPECT_DOUBLE_EQ(seen.range->max, 2);
  EXPECT_DOUBLE_EQ(seen.range->mean, 0);
  EXPECT_DOUBLE_EQ(seen.range->std, std::sqrt(14.0 / 4));
  EXPECT_THAT(seen.first, ElementsAre("1", "-3", "0", "nan"));
}

TEST(Summary, OfWholeNumbersIsExact) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;
  const Summary seen = summary_of<std::int64_t>("int64", {kLarge - 1, kLarge, kLarge - 1});
  ASSERT_TRUE(seen.range.has_value());
  EXPECT_EQ(seen.range->max_text, "9007199254740993");
  EXPECT_EQ(seen.range->min_text, "9007199254740992");
  const auto most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(summary_of<std::uint64_t>("uint64", {most}).range->max_text, "18446744073709551615");
}

TEST(Summary, OfNumbersThatDifferLittle) {
  const Summary seen = summary_of<double>("float64", {1e9 + 1, 1e9 + 2, 1e9 + 3});
  EXPECT_NEAR(seen.range->std, std::sqrt(2.0 / 3), 1e-6);
}

TEST(Summary, OfHalves) {
  const Summary half = summary_of<std::uint16_t>(
      "float16", {0x3c00, 0xc000, 0x8000, 0x0001, 0x7c00, 0x7e00, 0x7bff}, 4);
  EXPECT_THAT(half.first, ElementsAre("1", "-2", "-0", "5.9605e-08"));
  EXPECT_EQ(half.zeros, 1u);
  EXPECT_EQ(half.infinities, 1u);
  EXPECT_EQ(half.nans, 1u);
  EXPECT_DOUBLE_EQ(half.range->max, 65504);
  const Summary brain = summary_of<std::uint16_t>("bfloat16", {0x3f80, 0xc000, 0x7fc0});
  EXPECT_DOUBLE_EQ(brain.range->max, 1);
  EXPECT_DOUBLE_EQ(brain.range->min, -2);
  EXPECT_EQ(brain.nans, 1u);
}

TEST(Summary, OfTypesWithoutAnOrder) {
  const Summary seen =
      summary_of<std::complex<float>>("complex64", {{0, 0}, {1, -2}, {std::nanf(""), 0}});
  EXPECT_EQ(seen.zeros, 1u);
  EXPECT_EQ(seen.nans, 1u);
  EXPECT_FALSE(seen.range.has_value());
  EXPECT_THAT(seen.first, ElementsAre("0+0j", "1-2j", "nan+0j"));
}

// Of a later version, or one that contradicts its size.
TEST(Summary, OfAnUnknownTypeHasItsItemsAlone) {
  const Summary seen = summary_of<std::uint32_t>("float128", {1, 2});
  EXPECT_EQ(seen.items, 2u);
  EXPECT_FALSE(seen.range.has_value());
  EXPECT_THAT(seen.first, IsEmpty());
  EXPECT_THAT(summary_of<std::uint32_t>("int64", {1, 2}).first, IsEmpty());
}

TEST(Summary, OfNothing) {
  const Summary seen = summary_of<float>("float32", {});
  EXPECT_EQ(seen.items, 0u);
  EXPECT_FALSE(seen.range.has_value());
}

TEST(Summary, OfAnArrayWhoseNumbersAreAllNone) {
  const Summary seen = summary_of<float>("float32", {std::nanf(""), std::nanf("")});
  EXPECT_EQ(seen.nans, 2u);
  EXPECT_FALSE(seen.range.has_value());
}

}  // namespace
}  // namespace ringfeed::peek
