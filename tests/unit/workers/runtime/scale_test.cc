// The specification of scaling: ringfeed/shm/node_lanes.h, and what lanes do when it changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using shm::NodeLanes;

TEST(NodeLanes, GiveEachUnitToOneLaneAndEachLaneItsNextOne) {
  for (const std::uint64_t block : {1, 2, 5}) {
    for (const NodeLanes lanes :
         {NodeLanes{.before = 3, .now = 3}, NodeLanes{.from = 7, .before = 1, .now = 4},
          NodeLanes{.floor = 4, .from = 13, .before = 4, .now = 2},
          NodeLanes{.floor = 20, .from = 20, .before = 2, .now = 5}}) {
      for (std::uint32_t lane = 0; lane < 6; ++lane) {
        std::uint64_t expected = shm::kNoUnit;
        for (std::uint64_t unit = 100; unit-- > 0;) {
          if (unit >= lanes.floor && lanes.lane_of(unit, block) == lane) expected = unit;
          // Whoever comes after the last one of these 100 is not known here.
          if (expected == shm::kNoUnit && lane < lanes.now) continue;
          EXPECT_EQ(lanes.next(lane, unit, block), expected) << lane << " from " << unit;
        }
      }
    }
  }
}

TEST(NodeLanes, AreStoredWhole) {
  const NodeLanes lanes{.floor = 17, .from = (std::uint64_t{1} << 48) - 1, .before = 255, .now = 1};
  shm::NodeLanesWords words{};
  shm::store(words, lanes);
  EXPECT_EQ(shm::load(words), lanes);
}

struct Case {
  std::uint64_t seed;
  const char* dispatch;
  double deaths;  // chance that a lane is restarted before its round
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.dispatch << " seed " << c.seed << " deaths " << c.deaths;
  }
};

class Scaling : public ::testing::TestWithParam<Case> {};

// Two stages behind one another are scaled up and down all the time, with empty units, short
// queues, and lanes that die.
TEST_P(Scaling, LosesNothingAndKeepsTheOrder) {
  const Case& c = GetParam();
  std::mt19937_64 random(c.seed);
  const auto up_to = [&](std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(1, most)(random);
  };
  const std::uint32_t sources = up_to(3);
  const std::uint32_t sinks = up_to(3);
  const std::uint64_t block = std::array<std::uint64_t, 3>{1, 2, 5}[c.seed % 3];
  LaneRig rig(fmt::format("feed_output {{ dispatch: {} }}", c.dispatch));
  rig.add_source("in", sources, {.capacity = up_to(4)});
  rig.add_node("one",
               function_node({.lanes = up_to(4), .lanes_max = 4, .capacity = up_to(4)}, forward));
  rig.add_node("two", function_node({.from = "one",
                                     .lanes = up_to(3),
                                     .lanes_max = 3,
                                     .capacity = up_to(4),
                                     .steps_per_commit = 1},
                                    forward));
  rig.add_sink("out", "two", sinks, block);
  rig.build();
  std::vector<std::vector<std::string>> expected(sinks);
  std::vector<std::string> all;
  for (std::uint32_t unit = 0; unit < 150; ++unit) {
    const std::uint32_t size = up_to(4) - 1;
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::string text = fmt::format("{}.{}", unit, i);
      rig.feed("in", {.bytes = text}, i + 1 == size);
      expected[unit / block % sinks].push_back(text);
      all.push_back(text);
    }
    if (size == 0) rig.end_unit("in");
  }
  rig.finish("in");
  int scaled = 0;
  for (int i = 0; i < 2'000'000 && !rig.all_finished(); ++i) {
    const std::size_t lane = random() % rig.lane_count();
    if (std::uniform_real_distribution<double>(0, 1)(random) < c.deaths) rig.restart(lane);
    (void)rig.round(lane);
    if (random() % 40 == 0) {
      scaled += random() % 2 == 0 ? rig.scale("one", up_to(4)) : rig.scale("two", up_to(3));
    }
  }
  EXPECT_TRUE(rig.all_finished());
  EXPECT_GT(scaled, 2);
  if (std::string_view(c.dispatch) == "ORDERED") {
    for (std::uint32_t s = 0; s < sinks; ++s) {
      EXPECT_EQ(texts(rig.got("out", s)), expected[s]) << "sink " << s;
    }
  } else {
    EXPECT_THAT(texts(rig.got("out")), ::testing::UnorderedElementsAreArray(all));
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    all.push_back({seed, seed % 4 == 0 ? "RELAXED" : "ORDERED", seed % 3 == 0 ? 0.05 : 0.0});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Seeds, Scaling, ::testing::ValuesIn(cases()));

// A lane that is not used any more works off what it had, and then sleeps.
TEST(ScalingDown, LeavesALaneWithoutUnits) {
  LaneRig rig("feed_output { dispatch: ORDERED }");
  rig.add_source("in");
  rig.add_node("stage", function_node({.lanes = 2, .lanes_max = 2}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  for (const char* text : {"0", "1", "2", "3"}) rig.feed("in", {.bytes = text});
  ASSERT_TRUE(rig.round(0));  // the source has given out all four
  ASSERT_TRUE(rig.scale("stage", 1));
  for (const char* text : {"4", "5", "6"}) rig.feed("in", {.bytes = text});
  rig.run();
  EXPECT_THAT(texts(rig.got("out")), ::testing::ElementsAre("0", "1", "2", "3", "4", "5", "6"));
  EXPECT_EQ(rig.queue("in", 0, "stage", 1).put_total, 2U);
  ASSERT_TRUE(rig.scale("stage", 2));
  for (const char* text : {"7", "8", "9"}) rig.feed("in", {.bytes = text});
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(rig.got("out").size(), 10U);
  EXPECT_GT(rig.queue("in", 0, "stage", 1).put_total, 2U);
}

TEST(ScalingTwice, WaitsUntilTheFirstChangeIsWorkedOff) {
  LaneRig rig("feed_output { dispatch: ORDERED }");
  rig.add_source("in");
  rig.add_node("stage", function_node({.lanes = 1, .lanes_max = 3}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  rig.feed("in", {.bytes = "0"});
  rig.feed("in", {.bytes = "1"});
  ASSERT_TRUE(rig.round(0));
  EXPECT_TRUE(rig.scale("stage", 3));
  EXPECT_FALSE(rig.scale("stage", 2));
  rig.feed("in", {.bytes = "2"});
  rig.run();
  EXPECT_TRUE(rig.scale("stage", 2));
}

}  // namespace
}  // namespace ringfeed
