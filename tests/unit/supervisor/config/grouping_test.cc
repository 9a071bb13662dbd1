#include "supervisor/config/grouping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "tests/unit/supervisor/config/plan_maker.h"

namespace ringfeed::config {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<StageGroup> groups(std::string_view text, int cores) {
  const CheckedText checked = checked_text(text);
  EXPECT_EQ(problem_report(checked.checked.problems), "");
  return stage_groups(checked.configuration.message(), checked.plan, checked.checked.wiring, cores);
}

TEST(DefaultGroups, OfLc0OnTwoCoresAreThree) {
  EXPECT_THAT(groups(lc0_text(), 2),
              ElementsAre(StageGroup{"provider+loader+pool", {0, 1, 2}},
                          StageGroup{"unpacker+sampler", {3, 4}}, StageGroup{"tensors", {5}}));
}

TEST(DefaultGroups, FollowThePipelineAndNotTheFile) {
  const std::vector<StageGroup> found = groups(R"(
    stages { name: "tensors" tensor_generator { input: "unpacker" } }
    stages { name: "unpacker" chunk_unpacker { input: "pool" position_count: 1 } }
    stages { name: "loader" chunk_source_loader { input: "provider" } }
    stages { name: "pool" shuffling_chunk_pool { input: "loader" } }
    stages { name: "provider" file_path_provider { directory: "/data" } })",
                                               2);
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_THAT(found[0].stages, ElementsAre(4, 2, 3));
  EXPECT_THAT(found[1].stages, ElementsAre(1));
  EXPECT_THAT(found[2].stages, ElementsAre(0));
}

TEST(DefaultGroups, ALongNameIsShortened) {
  const std::string name(60, 'p');
  std::string text = lc0_text();
  for (std::size_t at = text.find("provider\""); at != std::string::npos;
       at = text.find("provider\"", at + name.size())) {
    text.replace(at, 8, name);
  }
  EXPECT_EQ(groups(text, 2)[0].name, name + "+2");
}

TEST(DefaultGroups, OfLc0OnManyCoresAreOneForEachHeavyStage) {
  EXPECT_THAT(groups(lc0_text(), 64),
              ElementsAre(StageGroup{"provider+loader", {0, 1}}, StageGroup{"pool", {2}},
                          StageGroup{"unpacker", {3}}, StageGroup{"sampler", {4}},
                          StageGroup{"tensors", {5}}));
}

TEST(ConfiguredGroups, AreTakenAsTheyAre) {
  EXPECT_THAT(groups(lc0_text() + R"(
    stage_groups { name: "out" stages: [ "tensors", "sampler" ] }
    stage_groups { name: "in" stages: [ "provider", "loader", "pool", "unpacker" ] })",
                     1),
              ElementsAre(StageGroup{"out", {4, 5}}, StageGroup{"in", {0, 1, 2, 3}}));
}

TEST(CutChain, HeavyStagesAreAloneAndCheapOnesTogether) {
  EXPECT_THAT(cut_chain({0.1, 0.1, 5, 0.1, 0.1, 5}, 8), ElementsAre(2, 1, 2, 1));
  EXPECT_THAT(cut_chain({0.1, 5, 0.1, 5}, 2), ElementsAre(2, 1, 1));
  EXPECT_THAT(cut_chain({1, 1, 1, 1}, 8), ElementsAre(1, 1, 1, 1));
}

TEST(CutChain, HasAtMostOneGroupMoreThanCores) {
  EXPECT_THAT(cut_chain({1, 1, 1, 1}, 1), ElementsAre(2, 2));
  EXPECT_THAT(cut_chain({1, 1, 1, 1}, 2), SizeIs(3));
}

TEST(CutChain, HasTwoGroupsFromThreeStagesOn) {
  EXPECT_THAT(cut_chain({}, 4), IsEmpty());
  EXPECT_THAT(cut_chain({1}, 4), ElementsAre(1));
  EXPECT_THAT(cut_chain({0, 0}, 4), SizeIs(1));
  EXPECT_THAT(cut_chain({0, 0, 0}, 4), SizeIs(2));
  EXPECT_THAT(cut_chain({0, 0, 9}, 1), ElementsAre(2, 1));
}

// For every chain of up to seven stages with weights out of {0, 1, 4}: nothing lost, nothing empty.
TEST(CutChain, EveryStageIsInExactlyOneGroup) {
  for (int code = 0; code < 2187; ++code) {
    for (std::size_t count = 1; count <= 7; ++count) {
      std::vector<double> weights;
      for (int rest = code; weights.size() < count; rest /= 3)
        weights.push_back(rest % 3 * rest % 3 * 2);
      for (const int cores : {1, 2, 16}) {
        const std::vector<int> sizes = cut_chain(weights, cores);
        EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), static_cast<int>(count));
        EXPECT_THAT(sizes, Each(Ge(1)));
        EXPECT_LE(sizes.size(), std::max<std::size_t>(static_cast<std::size_t>(cores) + 1, 2));
      }
    }
  }
}

// A program beside the worker has no stage of a plug-in, and the plug-in not what that program has.
TEST(DefaultGroups, AStageThatOnlyTheWorkerHasIsApartFromOneThatItCannotRun) {
  CheckedText checked = checked_text(lc0_text());
  const auto found = [&checked] {
    return stage_groups(checked.configuration.message(), checked.plan, checked.checked.wiring, 2);
  };
  ASSERT_EQ(found()[0].name, "provider+loader+pool");
  checked.plan.mutable_stages(0)->mutable_nodes(0)->set_program("ringfeed-worker-python");
  EXPECT_EQ(found()[0].name, "provider+loader+pool") << "its program has the others too";
  checked.plan.mutable_stages(2)->mutable_nodes(0)->set_no_other_program(true);
  std::vector<StageGroup> groups = found();
  EXPECT_EQ(groups[0], (StageGroup{"provider+loader", {0, 1}}));
  EXPECT_EQ(groups[1], (StageGroup{"pool", {2}}));
  EXPECT_EQ(groups[2].name, "unpacker+sampler");
  // The other way round, and two programs.
  checked.plan.mutable_stages(0)->mutable_nodes(0)->clear_program();
  checked.plan.mutable_stages(0)->mutable_nodes(0)->set_no_other_program(true);
  EXPECT_EQ(found()[0].name, "provider+loader+pool");
  checked.plan.mutable_stages(1)->mutable_nodes(0)->set_program("a");
  groups = found();
  EXPECT_EQ(groups[0].name, "provider");
  EXPECT_EQ(groups[1].name, "loader");
  EXPECT_EQ(groups[2].name, "pool");
  checked.plan.mutable_stages(2)->mutable_nodes(0)->clear_no_other_program();
  checked.plan.mutable_stages(2)->mutable_nodes(0)->set_program("b");
  EXPECT_EQ(found()[2].name, "pool");
  // A lane with a process of its own is in no group with others.
  checked.plan.mutable_stages(1)->mutable_nodes(0)->set_process_per_lane(true);
  EXPECT_EQ(found()[0].name, "provider+loader");
}

}  // namespace
}  // namespace ringfeed::config
