// The specification of edges that may drop: DROP_NEW and KEEP_NEWEST, seen from a stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

// Puts in place instead of copying.
StepFunction forward_in_place(const StageContext& context) {
  return [in = context.input("input"), out = context.output("output")](Step& step) {
    const std::optional<Record> record = step.peek(in);
    if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
    const std::span<std::byte> room = step.reserve(out, 3000);
    if (room.empty()) return StepStatus::kNoRoom;
    std::memcpy(room.data(), record->bytes.data(), record->bytes.size());
    step.put_reserved(out, record->bytes.size(), {.user = record->user});
    return step.consume(*record);
  };
}

struct LooseCase {
  const char* name;
  OverflowBehavior overflow;
  StepFunction (*maker)(const StageContext&);
  std::uint64_t first_kept;  // of 20 records for a queue of 4
  friend void PrintTo(const LooseCase& value, std::ostream* out) { *out << value.name; }
};

class LooseEdge : public ::testing::TestWithParam<LooseCase> {
 protected:
  void describe(LaneRig& rig) const {
    rig.add_source("in", 1, {.capacity = 64});
    rig.add_node("stage",
                 function_node({.capacity = 4, .overflow = GetParam().overflow}, GetParam().maker));
    rig.add_sink("out", "stage");
    rig.build();
  }
};

TEST_P(LooseEdge, NeverHoldsUpItsProducer) {
  LaneRig rig;
  describe(rig);
  rig.allow("out", 0);
  for (const RigRecord& record : numbered(0, 20)) rig.feed("in", record);
  rig.run();
  EXPECT_EQ(rig.queue("in", 0, "stage", 0).get_total, 20U) << "everything was taken";
  const shm::QueueView queue = rig.queue("stage", 0, "out", 0);
  EXPECT_EQ(queue.put_total, 20U);
  EXPECT_EQ(queue.size_records + queue.drop_total, 20U);
  EXPECT_EQ(queue.drop_total, 16U);
  rig.allow("out", 100);
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out")),
            texts(numbered(GetParam().first_kept, GetParam().first_kept + 4)));
}

TEST_P(LooseEdge, LosesNothingWhileThereIsRoom) {
  LaneRig rig;
  describe(rig);
  for (const RigRecord& record : numbered(0, 200)) {
    rig.feed("in", record);
    rig.run();
  }
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, 200)));
  EXPECT_EQ(rig.queue("stage", 0, "out", 0).drop_total, 0U);
}

TEST_P(LooseEdge, CountsEachRecordOnceOverRestarts) {
  LaneRig rig;
  describe(rig);
  rig.allow("out", 5);
  for (const RigRecord& record : numbered(0, 50)) rig.feed("in", record);
  rig.finish("in");
  std::mt19937_64 random(11);
  rig.run_with_restarts(random, 0.3);
  rig.allow("out", 1000);
  rig.run_with_restarts(random, 0.3);
  EXPECT_TRUE(rig.all_finished());
  const shm::QueueView queue = rig.queue("stage", 0, "out", 0);
  EXPECT_EQ(queue.put_total, 50U);
  EXPECT_EQ(queue.get_total, rig.got("out").size());
  EXPECT_EQ(queue.get_total + queue.drop_total, 50U);
  const std::vector<RigRecord> got = rig.got("out");
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end(), [](const auto& a, const auto& b) {
    return std::stoi(a.bytes) < std::stoi(b.bytes);
  }));
}

// Behind an edge without units each record is one: several lanes share the work, and the rotation
// behind them goes on.
TEST_P(LooseEdge, EachRecordIsAUnitForWhatFollows) {
  LaneRig rig;
  rig.add_source("in", 1, {.capacity = 64});
  rig.add_node("stage",
               function_node({.capacity = 64, .overflow = GetParam().overflow}, GetParam().maker));
  rig.add_node("behind", function_node({.from = "stage", .lanes = 2, .capacity = 2}, forward));
  rig.add_sink("out", "behind");
  rig.build();
  for (const RigRecord& record : numbered(0, 40)) {
    rig.feed("in", record);
    rig.run();
  }
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, 40)));
}

INSTANTIATE_TEST_SUITE_P(
    Overflow, LooseEdge,
    ::testing::Values(LooseCase{"DropNew", DROP_NEW, forward, 0},
                      LooseCase{"DropNewInPlace", DROP_NEW, forward_in_place, 0},
                      LooseCase{"KeepNewest", KEEP_NEWEST, forward, 16},
                      LooseCase{"KeepNewestInPlace", KEEP_NEWEST, forward_in_place, 16}),
    [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace ringfeed
