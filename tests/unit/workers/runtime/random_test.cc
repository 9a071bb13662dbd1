// The specification of workers/include/ringfeed/worker/random.h.
#include "ringfeed/worker/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ringfeed {
namespace {

using ::testing::ElementsAre;

// The vectors that the authors of Philox publish for philox4x32-10: counter and key all zero give
// 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_THAT(philox(0, 0), ElementsAre(0xe169c58d6627e8d5, 0x9b00dbd8bc57ac4c));
  static_assert(philox(0, 0)[0] == 0xe169c58d6627e8d5, "usable where a constant is wanted");
}

// A change of any one bit of key or counter changes about half of the bits that come out.
TEST(Philox, EveryBitOfKeyAndCounterMatters) {
  const std::array<std::uint64_t, 2> base = philox(0x123456789abcdef0, 77);
  for (int bit = 0; bit < 64; ++bit) {
    for (const bool in_key : {true, false}) {
      const std::uint64_t change = std::uint64_t{1} << bit;
      const std::array<std::uint64_t, 2> other =
          philox(0x123456789abcdef0 ^ (in_key ? change : 0), 77 ^ (in_key ? 0 : change));
      const int changed = std::popcount(base[0] ^ other[0]) + std::popcount(base[1] ^ other[1]);
      EXPECT_GT(changed, 35) << "bit " << bit << " of " << (in_key ? "key" : "counter");
      EXPECT_LT(changed, 93) << "bit " << bit << " of " << (in_key ? "key" : "counter");
    }
  }
}

TEST(Random, IsTheSequenceOfPhiloxInOrder) {
  Random random(42);
  for (std::uint64_t block = 0; block < 10; ++block) {
    EXPECT_EQ(random.next(), philox(42, block)[0]);
    EXPECT_EQ(random.next(), philox(42, block)[1]);
  }
  EXPECT_EQ(random.counter(), 20U);
}

TEST(Random, GivesTheSameNumbersAgainFromAnyPlace) {
  Random first(7);
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 100; ++i) numbers.push_back(first.next());
  for (std::uint64_t at = 0; at < 100; ++at) {
    Random again(7, at);
    EXPECT_EQ(again.next(), numbers[at]) << "begun at " << at;
    first.seek(at);
    EXPECT_EQ(first.next(), numbers[at]) << "sought " << at;
  }
}

TEST(Random, BelowStaysBelow) {
  Random random(1);
  for (const std::uint64_t bound : {1ULL, 2ULL, 3ULL, 1000ULL, 1ULL << 32, (1ULL << 63) + 1}) {
    for (int i = 0; i < 200; ++i) EXPECT_LT(random.below(bound), bound);
  }
}

// Chi-square over 97 values, 97,000 draws, fixed key: 96 degrees of freedom, the middle 99.9 % lie
// between 55 and 148.
TEST(Random, BelowIsUniform) {
  constexpr std::uint64_t kValues = 97;
  constexpr std::uint64_t kDraws = 1000 * kValues;
  std::vector<std::uint64_t> seen(kValues);
  Random random(20240501);
  for (std::uint64_t i = 0; i < kDraws; ++i) ++seen[random.below(kValues)];
  double chi_square = 0;
  for (const std::uint64_t count : seen) {
    const double off = static_cast<double>(count) - 1000;
    chi_square += off * off / 1000;
  }
  EXPECT_GT(chi_square, 55);
  EXPECT_LT(chi_square, 148);
}

// Two thirds of 2^64 as the bound: a plain remainder would give the lower half twice as often.
TEST(Random, BelowIsNotBiasedForHugeBounds) {
  const std::uint64_t bound = 0xaaaaaaaaaaaaaaaa;
  Random random(3);
  int low = 0;
  for (int i = 0; i < 10000; ++i) low += random.below(bound) < bound / 2 ? 1 : 0;
  EXPECT_NEAR(low, 5000, 200);  // four standard deviations
}

TEST(Random, UnitIsInZeroToOneAndEvenlySpread) {
  Random random(9);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.unit();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.0116);  // four standard deviations
}

TEST(Random, MixedKeysDoNotMeet) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t a = 0; a < 100; ++a) {
    for (std::uint64_t b = 0; b < 100; ++b) keys.insert(mix(a, b));
  }
  EXPECT_EQ(keys.size(), 10000U);
  EXPECT_NE(mix(1, 2), mix(2, 1));
  EXPECT_NE(mix("sampler"), mix("samples"));
}

}  // namespace
}  // namespace ringfeed
