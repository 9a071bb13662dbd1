// The specification of workers/lc0/join_positions.h.
#include "workers/lc0/join_positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Join {
  explicit Join(const std::string& feed) : rig(feed) {
    for (const char* name : {"a", "b", "c"}) rig.add_source(name, 1, {.capacity = 4});
    rig.add_stage("name: 'join' join_positions { input: 'a' input: 'b' input: 'c' }");
    rig.add_sink("out", "join");
    rig.build();
  }
  void feed(const std::string& source, const std::vector<std::string>& records) {
    for (const std::string& record : records) rig.feed(source, {.bytes = record});
  }
  LaneRig rig;
};

TEST(Join, TakesOfEachInTurnAndLeavesOutWhoHasEnded) {
  Join join("feed_output { dispatch: ORDERED }");
  join.feed("a", {"a0", "a1", "a2"});
  join.feed("b", {"b0"});
  join.feed("c", {"c0", "c1", "c2", "c3"});
  for (const char* name : {"a", "b", "c"}) join.rig.finish(name);
  join.rig.run();
  EXPECT_THAT(texts(join.rig.got("out")),
              ElementsAre("a0", "b0", "c0", "a1", "c1", "a2", "c2", "c3"));
  EXPECT_TRUE(join.rig.all_finished());
}

TEST(Join, WaitsForTheOneWhoseTurnItIs) {
  Join join("feed_output { dispatch: ORDERED }");
  join.feed("a", {"a0", "a1"});
  join.feed("c", {"c0"});
  join.rig.run();
  EXPECT_THAT(texts(join.rig.got("out")), ElementsAre("a0"));
  join.feed("b", {"b0"});
  join.rig.run();
  EXPECT_THAT(texts(join.rig.got("out")), ElementsAre("a0", "b0", "c0", "a1"));
}

TEST(Join, TakesWhateverIsThereIfNoOrderIsWanted) {
  Join join("feed_output { dispatch: RELAXED }");
  join.feed("a", {"a0", "a1"});
  join.feed("c", {"c0"});
  join.rig.run();
  EXPECT_THAT(texts(join.rig.got("out")), UnorderedElementsAre("a0", "a1", "c0"));
}

TEST(Join, GivesTheSameWhereverItIsRestarted) {
  const auto all = [](double probability) {
    Join join("feed_output { dispatch: ORDERED }");
    for (int i = 0; i < 60; ++i) {
      join.feed("a", {fmt::format("a{}", i)});
      if (i % 2 == 0) join.feed("b", {fmt::format("b{}", i)});
      if (i < 7) join.feed("c", {fmt::format("c{}", i)});
    }
    for (const char* name : {"a", "b", "c"}) join.rig.finish(name);
    std::mt19937_64 random(9);
    join.rig.run_with_restarts(random, probability);
    return texts(join.rig.got("out"));
  };
  EXPECT_EQ(all(0).size(), 97U);
  EXPECT_EQ(all(0), all(0.3));
}

TEST(Join, RefusesNothing) {
  LaneRig rig;
  try {
    rig.add_stage("name: 'j' join_positions { }");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("input is missing; name the stages"));
  }
}

}  // namespace
}  // namespace ringfeed
