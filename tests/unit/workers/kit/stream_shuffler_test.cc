// The specification of workers/kit/stream_shuffler.h.
#include "workers/kit/stream_shuffler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/support/rig/stage_data.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// A shuffler in an arena; each call below is a committed step.
class Shuffler {
 public:
  explicit Shuffler(std::uint64_t range_max, std::uint64_t seed = 1)
      : rig_(fmt::format("seed: {}", seed)), shuffler_(layout_, range_max) {
    NodeSpec node;
    node.state_bytes = layout_.bytes();
    node.steps_per_commit = 1;
    node.entries_per_step = 64;
    node.create = [this](const StageContext&) {
      return std::make_unique<FunctionStage>([this](Step& step) {
        if (!work_) return StepStatus::kIdle;
        work_(step);
        work_ = {};
        return StepStatus::kDone;
      });
    };
    rig_.add_node("shuffler", std::move(node));
    rig_.build();
  }

  void reset(std::uint64_t lower, std::uint64_t upper) {
    make_step([&](Step& step) { shuffler_.reset(step, lower, upper); });
  }
  void move_up(std::uint64_t lower, std::uint64_t upper) {
    make_step([&](Step& step) { shuffler_.move_up(step, lower, upper); });
  }
  // The next integer; nullopt: exhausted.
  std::optional<std::uint64_t> next() {
    for (;;) {
      StreamShuffler::Draw draw;
      make_step([&](Step& step) { draw = shuffler_.next(step); });
      if (draw.exhausted) return std::nullopt;
      if (draw.value) return draw.value;
    }
  }
  std::vector<std::uint64_t> take(std::size_t count) {
    std::vector<std::uint64_t> values;
    while (values.size() < count) {
      const std::optional<std::uint64_t> value = next();
      if (!value) break;
      values.push_back(*value);
    }
    return values;
  }
  std::vector<std::uint64_t> take_all() { return take(~std::size_t{0}); }
  void restart() { rig_.restart_all(); }

 private:
  void make_step(std::function<void(Step&)> work) {
    work_ = std::move(work);
    rig_.round(0);
  }

  LaneRig rig_;
  StateLayout layout_;
  StreamShuffler shuffler_;
  std::function<void(Step&)> work_;
};

TEST(StreamShuffler, OfAnEmptyRangeIsExhausted) {
  Shuffler shuffler(10);
  EXPECT_EQ(shuffler.next(), std::nullopt) << "before the first reset";
  shuffler.reset(5, 5);
  EXPECT_EQ(shuffler.next(), std::nullopt);
}

TEST(StreamShuffler, GivesEachIntegerOnceAndThenNothing) {
  for (const std::uint64_t size : {1, 2, 5, 20, 100}) {
    Shuffler shuffler(100);
    shuffler.reset(7, 7 + size);
    EXPECT_THAT(shuffler.take_all(), UnorderedElementsAreArray(numbers(7, 7 + size)));
    EXPECT_EQ(shuffler.next(), std::nullopt) << "exhausted stays exhausted";
  }
}

TEST(StreamShuffler, GivesTheSameSetAfterAReset) {
  Shuffler shuffler(20);
  shuffler.reset(0, 20);
  const std::vector<std::uint64_t> first = shuffler.take_all();
  shuffler.reset(0, 20);
  const std::vector<std::uint64_t> second = shuffler.take_all();
  EXPECT_THAT(second, UnorderedElementsAreArray(first));
  EXPECT_NE(first, second) << "another order each time";
  shuffler.reset(0, 20);
  shuffler.take(7);
  shuffler.reset(0, 20);
  EXPECT_THAT(shuffler.take_all(), UnorderedElementsAreArray(numbers(0, 20)))
      << "a pass begun again forgets what it gave";
}

struct Move {
  std::uint64_t drawn;  // before the move
  std::uint64_t lower;
  std::uint64_t upper;
};
class ShufflerMoves : public ::testing::TestWithParam<Move> {};

// From [0, 12): whatever is drawn before and wherever the range goes, everything that stays in it
// comes once, and nothing that has left it comes any more.
TEST_P(ShufflerMoves, KeepsWhatStaysAndForgetsWhatLeaves) {
  const Move move = GetParam();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Shuffler shuffler(40, seed);
    shuffler.reset(0, 12);
    const std::vector<std::uint64_t> before = shuffler.take(move.drawn);
    shuffler.move_up(move.lower, move.upper);
    std::vector<std::uint64_t> expected;
    for (const std::uint64_t value : numbers(move.lower, move.upper)) {
      if (std::find(before.begin(), before.end(), value) == before.end()) expected.push_back(value);
    }
    EXPECT_THAT(shuffler.take_all(), UnorderedElementsAreArray(expected));
  }
}
INSTANTIATE_TEST_SUITE_P(LowerAndUpper, ShufflerMoves,
                         ::testing::Values(Move{0, 0, 12},   // nowhere
                                           Move{3, 0, 16},   // upper, a little
                                           Move{3, 0, 40},   // upper, more than is listed at once
                                           Move{12, 0, 14},  // upper, after the pass was exhausted
                                           Move{3, 4, 12},   // lower
                                           Move{0, 11, 12},  // lower, nearly all
                                           Move{5, 12, 12},  // lower up to upper: nothing is left
                                           Move{5, 7, 19},   // both
                                           Move{5, 12, 30},  // both, nothing of the old range stays
                                           Move{5, 20, 50},  // both, beyond the old upper bound
                                           Move{12, 30, 60})  // the same after exhaustion
);

// A window of 10 slides over 0..199, one draw a move.
TEST(StreamShuffler, FollowsASlidingWindow) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Shuffler shuffler(10, seed);
    shuffler.reset(0, 10);
    std::set<std::uint64_t> seen;
    for (std::uint64_t upper = 10; upper <= 200; ++upper) {
      shuffler.move_up(upper - 10, upper);
      for (const std::uint64_t value : shuffler.take(upper % 3)) {
        EXPECT_GE(value, upper - 10);
        EXPECT_LT(value, upper);
        EXPECT_TRUE(seen.insert(value).second) << value << " came twice, seed " << seed;
      }
    }
    for (const std::uint64_t value : shuffler.take_all()) {
      EXPECT_GE(value, 190U);
      EXPECT_TRUE(seen.insert(value).second);
    }
    for (std::uint64_t value = 190; value < 200; ++value) EXPECT_TRUE(seen.contains(value));
  }
}

// Each of 10 values should come first equally often: chi-square with 9 degrees of freedom over
// 5000 passes, fixed seed; 99.9 % lie below 27.9. The same for the last place and one between.
TEST(StreamShuffler, IsUniformInEveryPlace) {
  constexpr std::uint64_t kValues = 10;
  constexpr int kPasses = 5000;
  Shuffler shuffler(kValues, 99);
  std::vector<std::vector<int>> seen(kValues, std::vector<int>(kValues));
  for (int pass = 0; pass < kPasses; ++pass) {
    shuffler.reset(0, kValues);
    const std::vector<std::uint64_t> order = shuffler.take_all();
    ASSERT_EQ(order.size(), kValues);
    for (std::size_t place = 0; place < kValues; ++place) ++seen[place][order[place]];
  }
  for (const std::size_t place : {0, 4, 9}) {
    double chi_square = 0;
    for (const int count : seen[place]) {
      const double expected = static_cast<double>(kPasses) / kValues;
      chi_square += (count - expected) * (count - expected) / expected;
    }
    EXPECT_LT(chi_square, 27.9) << "place " << place;
  }
}

TEST(StreamShuffler, GoesOnAfterARestartAsIfNothingHadBeen) {
  const auto run = [](std::size_t restart_every) {
    Shuffler shuffler(30, 3);
    std::vector<std::uint64_t> values;
    std::size_t draws = 0;
    shuffler.reset(0, 30);
    for (std::uint64_t upper = 30; upper < 90; upper += 7) {
      shuffler.move_up(upper - 30, upper);
      for (int i = 0; i < 9; ++i) {
        if (const auto value = shuffler.next()) values.push_back(*value);
        if (restart_every != 0 && ++draws % restart_every == 0) shuffler.restart();
      }
    }
    return values;
  };
  const std::vector<std::uint64_t> undisturbed = run(0);
  EXPECT_GT(undisturbed.size(), 40U);
  EXPECT_EQ(run(1), undisturbed);
  EXPECT_EQ(run(4), undisturbed);
}

TEST(StreamShufflerDeathTest, RefusesARangeLargerThanItsRoom) {
  Shuffler shuffler(10);
  EXPECT_DEATH(shuffler.reset(0, 11), "upper - lower <= range_max_");
}

}  // namespace
}  // namespace ringfeed
