#include "supervisor/metrics/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ringfeed::metrics {
namespace {

using ::testing::Optional;

TEST(Pace, SaysWhatIsLeftFromHowItWent) {
  Pace pace;
  EXPECT_EQ(pace.left_ms(0, 100, 1'000), std::nullopt) << "after one look";
  EXPECT_EQ(pace.left_ms(5, 100, 1'500), std::nullopt) << "too early to tell";
  EXPECT_THAT(pace.left_ms(10, 100, 2'000), Optional(9'000U));
  EXPECT_THAT(pace.left_ms(50, 100, 6'000), Optional(5'000U));
  EXPECT_THAT(pace.left_ms(100, 100, 11'000), Optional(0U));
}

TEST(Pace, GoesByTheLastHalfMinute) {
  Pace pace;
  std::uint64_t done = 0;
  // A slow minute, then ten times as fast.
  for (std::uint64_t s = 1; s <= 60; ++s) (void)pace.left_ms(done += 1, 10'000, s * 1'000);
  for (std::uint64_t s = 61; s <= 120; ++s) (void)pace.left_ms(done += 10, 10'000, s * 1'000);
  const std::optional<std::uint64_t> left = pace.left_ms(done, 10'000, 120'000);
  ASSERT_TRUE(left);
  EXPECT_NEAR(static_cast<double>(*left), (10'000 - 660) * 100.0, 5'000);
}

TEST(Pace, OfWhatStandsStillIsUnknown) {
  Pace pace;
  for (std::uint64_t s = 1; s <= 5; ++s) (void)pace.left_ms(s * 10, 100, s * 1'000);
  EXPECT_TRUE(pace.left_ms(50, 100, 20'000)) << "it may go on";
  for (std::uint64_t s = 21; s <= 60; ++s) (void)pace.left_ms(50, 100, s * 1'000);
  EXPECT_EQ(pace.left_ms(50, 100, 61'000), std::nullopt);
}

TEST(Pace, BeginsAnewWhereTheWorkDoes) {
  Pace pace;
  for (std::uint64_t s = 1; s <= 5; ++s) (void)pace.left_ms(s * 10, 100, s * 1'000);
  EXPECT_EQ(pace.left_ms(1, 100, 6'000), std::nullopt);
  EXPECT_THAT(pace.left_ms(2, 100, 7'000), Optional(98'000U));
}

TEST(Pace, TakesAnyNumbers) {
  Pace pace;
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_EQ(pace.left_ms(0, most, 0), std::nullopt);
  EXPECT_EQ(pace.left_ms(1, most, 10'000), std::nullopt) << "longer than anybody waits";
  EXPECT_EQ(pace.left_ms(3, 2, 20'000), std::nullopt) << "more than all of it";
  EXPECT_EQ(pace.left_ms(3, 0, 30'000), std::nullopt);
}

TEST(Paces, ForgetWhatIsOver) {
  Paces paces;
  std::vector<Progress> all{{"snapshot", "", 0, 100, {}}};
  paces.look(all, 1'000);
  all[0].done = 50;
  paces.look(all, 2'000);
  EXPECT_THAT(all[0].left_ms, Optional(1'000U));
  std::vector<Progress> none;
  paces.look(none, 3'000);
  all[0].done = 60;
  paces.look(all, 4'000);
  EXPECT_EQ(all[0].left_ms, std::nullopt) << "the next one";
}

TEST(Progress, TheLongestIsWaitedFor) {
  std::vector<Progress> all{
      {"pool", "", 100, 100, {}}, {"loader", "", 5, 0, {}}, {"sampler", "", 90, 100, 9'000}};
  EXPECT_EQ(longest(all), &all[2]);
  all.push_back({"tensors", "", 10, 100, 3'000});
  EXPECT_EQ(longest(all), &all[2]);
  all.push_back({"plan", "", 1, 100, {}});
  EXPECT_EQ(longest(all), &all[4]) << "how long it takes is not known";
  EXPECT_EQ(longest({}), nullptr);
}

TEST(Progress, IsALineAndABar) {
  const Progress half{"pool", "window: 812 of 1624 chunks", 812, 1624, 14'400};
  EXPECT_EQ(progress_line(half), "pool: window: 812 of 1624 chunks, about 14 s left");
  EXPECT_EQ(progress_bar(half, false), "[##########..........] 50 %");
  EXPECT_EQ(progress_bar(half, true), "[██████████░░░░░░░░░░] 50 %");
  EXPECT_EQ(progress_bar({"pool", "", 3, 0, {}}, true), "");
  EXPECT_EQ(progress_line({"pool", "3 files", 3, 0, {}}), "pool: 3 files");
  EXPECT_EQ(left_text({"pool", "", 99, 100, 20}), "about 1 s left");
  EXPECT_EQ(left_text({"pool", "", 100, 100, 0}), "") << "it is over";
}

}  // namespace
}  // namespace ringfeed::metrics
