// Numbers as another type has them.
#include "workers/samples/numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace ringfeed {
namespace {

using ::testing::ElementsAre;

template <typename To, typename From>
std::vector<To> converted(std::vector<From> numbers, SampleDtype from, SampleDtype to) {
  std::vector<std::byte> bytes;
  if (!convert_numbers(std::as_bytes(std::span(numbers)), from, to, bytes)) return {};
  std::vector<To> out(bytes.size() / sizeof(To));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST(Numbers, AreConvertedWhereTheTypeHoldsThem) {
  EXPECT_THAT((converted<std::uint8_t>(std::vector<std::int64_t>{0, 255}, SampleDtype::kInt64,
                                       SampleDtype::kUint8)),
              ElementsAre(0, 255));
  EXPECT_TRUE((converted<std::uint8_t>(std::vector<std::int64_t>{256}, SampleDtype::kInt64,
                                       SampleDtype::kUint8)
                   .empty()));
  EXPECT_TRUE((converted<std::int64_t>(std::vector<std::uint64_t>{~0ULL}, SampleDtype::kUint64,
                                       SampleDtype::kInt64)
                   .empty()));
  EXPECT_THAT((converted<double>(std::vector<std::uint8_t>{0, 1, 7}, SampleDtype::kBool,
                                 SampleDtype::kFloat64)),
              ElementsAre(0, 1, 1));
  EXPECT_THAT((converted<float>(std::vector<double>{0.1, -3}, SampleDtype::kFloat64,
                                SampleDtype::kFloat32)),
              ElementsAre(0.1F, -3));
}

TEST(Numbers, AreNotCutToWholeOnes) {
  const auto whole = [](double value, SampleDtype to) {
    return converted<std::int8_t>(std::vector<double>{value}, SampleDtype::kFloat64, to);
  };
  EXPECT_THAT(whole(-128, SampleDtype::kInt8), ElementsAre(-128));
  EXPECT_THAT(whole(-0.0, SampleDtype::kInt8), ElementsAre(0));
  for (const double value : {0.5, 128.0, -129.0, HUGE_VAL, std::nan("")}) {
    EXPECT_TRUE(whole(value, SampleDtype::kInt8).empty()) << value;
  }
  EXPECT_TRUE((converted<std::int64_t>(std::vector<double>{0x1p63}, SampleDtype::kFloat64,
                                       SampleDtype::kInt64)
                   .empty()));
  EXPECT_THAT((converted<std::uint64_t>(std::vector<double>{0x1p63}, SampleDtype::kFloat64,
                                        SampleDtype::kUint64)),
              ElementsAre(std::uint64_t{1} << 63));
  EXPECT_FALSE(can_become(SampleDtype::kFloat32, SampleDtype::kBool));
  EXPECT_FALSE(can_become(SampleDtype::kInt8, SampleDtype::kBool));
  EXPECT_FALSE(can_become(SampleDtype::kComplex64, SampleDtype::kFloat32));
  EXPECT_TRUE(can_become(SampleDtype::kComplex64, SampleDtype::kComplex64));
  EXPECT_FALSE(can_become(SampleDtype::kText, SampleDtype::kInt8));
}

TEST(Numbers, StayFinite) {
  const auto single = [](double value, SampleDtype to) {
    return !converted<std::uint8_t>(std::vector<double>{value}, SampleDtype::kFloat64, to).empty();
  };
  EXPECT_FALSE(single(1e300, SampleDtype::kFloat32));
  EXPECT_FALSE(single(70000, SampleDtype::kFloat16));
  EXPECT_FALSE(single(3.4e38, SampleDtype::kBfloat16));
  EXPECT_TRUE(single(3.4e38, SampleDtype::kFloat32));
  EXPECT_TRUE(single(HUGE_VAL, SampleDtype::kFloat16));
  EXPECT_TRUE(single(std::nan(""), SampleDtype::kFloat16));
}

TEST(Numbers, OfHalfPrecisionComeBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = from_half(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_half(value), bits);
  }
  EXPECT_EQ(from_half(0x3c00), 1.0);
  EXPECT_EQ(from_half(0x7c00), std::numeric_limits<double>::infinity());
  EXPECT_EQ(from_half(0x0001), std::ldexp(1.0, -24));
  EXPECT_TRUE(std::isnan(from_half(0x7e01)));
}

}  // namespace
}  // namespace ringfeed
