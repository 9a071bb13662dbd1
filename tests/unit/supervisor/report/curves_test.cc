#include "supervisor/report/curves.h"

#include <gtest/gtest.h>

#include <array>

namespace ringfeed::report {
namespace {

using Numbers = std::array<double, 2>;

TEST(Curves, KeepEachPointOfAShortRun) {
  Curves curves(2);
  curves.add(0, 1, Numbers{3, Curves::kUnknown});
  curves.add(1, 0.5, Numbers{5, 7});
  ASSERT_EQ(curves.points().size(), 2u);
  EXPECT_DOUBLE_EQ(curves.points()[0].mean(0).value(), 3);
  EXPECT_FALSE(curves.points()[0].mean(1).has_value());
  EXPECT_DOUBLE_EQ(curves.points()[1].end_s, 1.5);
  EXPECT_DOUBLE_EQ(curves.largest(0), 5);
  EXPECT_DOUBLE_EQ(curves.largest(1), 7);
}

TEST(Curves, AreBoundedAndLoseNothingOfTheMean) {
  Curves curves(2);
  constexpr int kLooks = 100'003;
  for (int i = 0; i < kLooks; ++i) {
    curves.add(0.25 * i, 0.25, Numbers{static_cast<double>(i % 2), i < 1'000 ? 8.0 : 0.0});
  }
  ASSERT_LT(curves.points().size(), Curves::kPointsMax);
  ASSERT_GT(curves.points().size(), Curves::kPointsMax / 4);
  double seconds = 0;
  double weighted = 0;
  double before = 0;
  for (const Curves::Point& point : curves.points()) {
    EXPECT_DOUBLE_EQ(point.begin_s, before) << "no gap, and in the order of time";
    before = point.end_s;
    seconds += point.means[0].seconds;
    weighted += point.means[0].weighted;
  }
  EXPECT_DOUBLE_EQ(before, 0.25 * kLooks);
  EXPECT_DOUBLE_EQ(seconds, 0.25 * kLooks);
  EXPECT_DOUBLE_EQ(weighted, 0.25 * (kLooks / 2));
  EXPECT_DOUBLE_EQ(curves.points().front().mean(1).value(), 8) << "the first minutes are there";
  EXPECT_DOUBLE_EQ(curves.points().back().mean(1).value(), 0);
}

TEST(Curves, JoinWhatIsKnownAlone) {
  Curves curves(1);
  for (std::size_t i = 0; i < Curves::kPointsMax; ++i) {
    const std::array<double, 1> value{i % 2 == 0 ? Curves::kUnknown : 4};
    curves.add(static_cast<double>(i), 1, value);
  }
  for (const Curves::Point& point : curves.points()) EXPECT_DOUBLE_EQ(point.mean(0).value(), 4);
}

TEST(Curves, TakeNoTimeThatIsNone) {
  Curves curves(2);
  curves.add(0, 0, Numbers{1, 1});
  curves.add(0, -1, Numbers{1, 1});
  curves.add(0, Curves::kUnknown, Numbers{1, 1});
  EXPECT_TRUE(curves.points().empty());
  EXPECT_DOUBLE_EQ(curves.largest(0), 0);
}

}  // namespace
}  // namespace ringfeed::report
