// The specification of workers/kit/resumed_split.h.
#include "workers/kit/resumed_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/rig/lane_rig.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;

// Puts out the letters of each record, one a record; what stands behind a '.' is left out.
class LetterSplitter final : public Stage {
 public:
  explicit LetterSplitter(const StageContext& context)
      : split_([] {
          StateLayout layout;
          return ResumedSplit(layout);
        }()),
        in_(context.input("input")),
        out_(context.output("output")) {}

  StepStatus step(Step& step) noexcept override {
    const std::optional<Record> record = step.peek(in_);
    if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
    std::uint64_t next = split_.done(step);
    while (next < record->bytes.size()) {
      if (record->bytes[next] == std::byte{'.'}) return split_.finish(step, *record);
      if (!step.put(out_, record->bytes.subspan(next, 1))) break;
      ++next;
    }
    return split_.advance(step, *record, next, record->bytes.size());
  }
  void forget(Step& step, const Record&) noexcept override { split_.forget(step); }

 private:
  ResumedSplit split_;
  InPort in_;
  OutPort out_;
};

// Words come in, letters go out through a queue of two.
struct Splitter {
  Splitter() {
    rig.add_source("words");
    NodeSpec node;
    node.state_bytes = 8;
    node.inputs = {{.port = "input", .from = "words.output"}};
    node.outputs = {{.port = "output",
                     .record_type = "letters",
                     .queue_capacity = 2,
                     .queue_bytes = 4096,
                     .units = UnitRule::kFollow}};
    node.steps_per_commit = 1;
    node.create = [](const StageContext& context) {
      return std::make_unique<LetterSplitter>(context);
    };
    rig.add_node("letters", std::move(node));
    rig.add_sink("out", "letters");
    rig.build();
  }
  std::string got() const {
    std::string letters;
    for (const RigRecord& record : rig.got("out")) letters += record.bytes;
    return letters;
  }
  std::uint64_t done() const { return rig.state_word("letters", 0); }
  LaneRig rig;
};

TEST(ResumedSplit, PutsOutEachPartOnceAndInOrder) {
  Splitter split;
  for (const char* word : {"abcdefg", "", "h", "ij"}) split.rig.feed("words", {.bytes = word});
  split.rig.finish("words");
  split.rig.run();
  EXPECT_TRUE(split.rig.all_finished());
  EXPECT_EQ(split.got(), "abcdefghij");
  EXPECT_EQ(split.done(), 0U);
}

TEST(ResumedSplit, KeepsWhatFoundRoomAndWaitsForMore) {
  Splitter split;
  split.rig.allow("out", 0);
  split.rig.feed("words", {.bytes = "abcdefg"});
  split.rig.run();
  EXPECT_EQ(split.done(), 2U);
  split.rig.allow("out", 3);
  split.rig.run();
  EXPECT_EQ(split.got(), "abc");
  EXPECT_EQ(split.done(), 5U);
}

TEST(ResumedSplit, LeavesTheRestOutWhenItIsFinishedEarly) {
  Splitter split;
  for (const char* word : {".", "ab.cd", "abcde.f", "gh"}) split.rig.feed("words", {.bytes = word});
  split.rig.finish("words");
  split.rig.run();
  EXPECT_EQ(split.got(), "ababcdegh");
  EXPECT_EQ(split.done(), 0U);
}

TEST(ResumedSplitRestart, NeitherLosesNorRepeatsAPart) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Splitter split;
    for (const char* word : {"abcdefg", "h", "ijklmno.p", "qrstu"}) {
      split.rig.feed("words", {.bytes = word});
    }
    split.rig.finish("words");
    std::mt19937_64 random(seed);
    split.rig.run_with_restarts(random, 0.3);
    EXPECT_TRUE(split.rig.all_finished()) << "seed " << seed;
    ASSERT_EQ(split.got(), "abcdefghijklmnoqrstu") << "seed " << seed;
  }
}

// A record that is set aside in the middle: the next one begins with its first part.
TEST(ResumedSplitPoison, ForgetsHowFarItWas) {
  Splitter split;
  split.rig.allow("out", 0);
  split.rig.feed("words", {.bytes = "abcdefg"});
  split.rig.feed("words", {.bytes = "hijk"});
  split.rig.run();
  ASSERT_EQ(split.done(), 2U);
  const std::size_t lane = split.rig.lanes_of("letters").front();
  split.rig.condemn(lane, shm::record_key(0, 0, 0));
  split.rig.allow("out", 100);
  split.rig.finish("words");
  split.rig.run();
  EXPECT_EQ(split.got(), "abhijk");
  EXPECT_THAT(split.rig.dead_letters(), ElementsAre("abcdefg"));
}

}  // namespace
}  // namespace ringfeed
