// Specification of supervisor/metrics: what a status says of lanes, rings, groups and trainers, and
// how it is shown.
#include "supervisor/metrics/status.h"

#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "supervisor/metrics/show.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::metrics {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Status : public ::testing::Test {
 protected:
  Status() : feed_(test::planned_feed()), memory_(test::feed_memory()) {}

  StatusReply stages(const std::vector<GroupFacts>& groups) {
    StatusReply status;
    fill_stages(*memory_, feed_.plan, groups, status);
    return status;
  }
  // Publishes `records` on a ring without writing any: only the cursors are looked at.
  void fill_ring(std::uint32_t ring, std::uint64_t records) {
    const layout::RingPlan& plan = memory_->layout().rings[ring];
    shm::Mapping mapping = shm::map_segment(memory_->fd(plan.segment), true).value_or_throw();
    auto& tail = *reinterpret_cast<shm::TailLine*>(mapping.data() + shm::kTailLineOffset);
    tail.tail.store(records * 64);
    tail.tail_seq.store(records);
  }
  std::uint32_t ring_from(std::uint32_t lane) {
    return memory_->layout().lanes[lane].outputs.at(0).rings.at(0);
  }
  void set_note(std::uint32_t lane, std::string_view text, std::uint32_t version = 2) {
    shm::LaneNote& note = memory_->lane(lane).counters.note;
    std::memcpy(note.text, text.data(), text.size());
    note.bytes = static_cast<std::uint32_t>(text.size());
    note.version.store(version);
  }

  test::PlannedFeed feed_;
  std::unique_ptr<layout::FeedMemory> memory_;
};

TEST_F(Status, ALaneWithoutAProcessIsAbsentAndAFinishedOneHasEnded) {
  memory_->lane(0).pid.store(7);
  memory_->lane(1).pid.store(7);
  memory_->lane(1).state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished));
  const StatusReply status = stages({{0, 3}, {8, 0}});
  EXPECT_EQ(status.stages(0).lanes(0).state(), LaneStatus::ABSENT);
  EXPECT_EQ(status.stages(0).lanes(0).restarts(), 3U);
  EXPECT_EQ(status.stages(1).lanes(0).state(), LaneStatus::ENDED);
  EXPECT_EQ(status.stages(2).lanes(0).state(), LaneStatus::ABSENT) << "has not attached yet";
}

TEST_F(Status, ASleeperWithInputWaitsForRoomAndOneWithoutWaitsForInput) {
  for (std::uint32_t lane = 0; lane < 5; ++lane) {
    memory_->lane(lane).pid.store(7);
    memory_->lane(lane).waiting.store(1);
  }
  memory_->lane(0).waiting.store(0);
  fill_ring(ring_from(0), 3);  // source > mix
  const StatusReply status = stages({{7, 0}, {8, 0}});
  EXPECT_EQ(status.stages(0).lanes(0).state(), LaneStatus::RUNNING);
  EXPECT_EQ(status.stages(1).lanes(0).state(), LaneStatus::BLOCKED);
  EXPECT_EQ(status.stages(1).lanes(1).state(), LaneStatus::STARVED);
  EXPECT_EQ(status.stages(2).lanes(0).state(), LaneStatus::STARVED);
}

TEST_F(Status, ASourceSleepsForRoomOnlyIfItsRingIsFull) {
  memory_->lane(0).pid.store(7);
  memory_->lane(0).waiting.store(1);
  fill_ring(ring_from(0), 15);
  EXPECT_EQ(stages({{7, 0}, {0, 0}}).stages(0).lanes(0).state(), LaneStatus::STARVED);
  fill_ring(ring_from(0), 16);
  EXPECT_EQ(stages({{7, 0}, {0, 0}}).stages(0).lanes(0).state(), LaneStatus::BLOCKED);
}

TEST_F(Status, NamedCountersAreSummedOverTheLanesOfAStage) {
  for (const std::uint32_t lane : {2U, 3U}) {
    shm::NamedCounter& counter = memory_->lane(lane).counters.named[0];
    std::strcpy(counter.name, "frames_skipped");
    counter.value.store(lane);
  }
  const StatusReply status = stages({{7, 0}, {8, 0}});
  ASSERT_EQ(status.stages(1).counters_size(), 1);
  EXPECT_EQ(status.stages(1).counters(0).name(), "frames_skipped");
  EXPECT_EQ(status.stages(1).counters(0).value(), 5U);
}

TEST_F(Status, NotesAreReadWholeOrNotAtAll) {
  set_note(1, "812 of 100000 chunks");
  EXPECT_THAT(progress_notes(*memory_), ElementsAre("mix: 812 of 100000 chunks"));
  set_note(2, "812 of 100000 chunks");
  EXPECT_THAT(progress_notes(*memory_), ElementsAre("mix: 812 of 100000 chunks")) << "said once";
  set_note(1, "half a no", 3);
  set_note(2, "", 2);
  EXPECT_THAT(progress_notes(*memory_), IsEmpty()) << "an odd version is being written";
}

TEST_F(Status, WorkOfAStageIsThatOfItsLanes) {
  set_note(1, "812 of 1000 chunks");
  EXPECT_THAT(stage_work(*memory_), IsEmpty()) << "a note without an end";
  memory_->lane(1).counters.note.done = 812;
  memory_->lane(1).counters.note.total = 1000;
  set_note(2, "8 of 10 files");
  memory_->lane(2).counters.note.done = 8;
  memory_->lane(2).counters.note.total = 10;
  const std::vector<StageWork> work = stage_work(*memory_);
  ASSERT_EQ(work.size(), 1U);
  EXPECT_EQ(work[0].stage, "mix");
  EXPECT_EQ(work[0].done, 820U);
  EXPECT_EQ(work[0].total, 1010U);
  EXPECT_EQ(work[0].text, "812 of 1000 chunks; 8 of 10 files");
}

TEST_F(Status, MoreThanAllOfItIsNothing) {
  set_note(1, "812 of 1000 chunks");
  memory_->lane(1).counters.note.done = 1001;
  memory_->lane(1).counters.note.total = 1000;
  EXPECT_THAT(stage_work(*memory_), IsEmpty());
}

TEST_F(Status, ANoteThatLiesAboutItsLengthIsCut) {
  memory_->lane(1).counters.note.bytes = 1'000'000;
  EXPECT_LE(read_note(memory_->lane(1).counters.note).text.size(), sizeof(shm::LaneNote::text));
}

TEST_F(Status, ProducingLanesCountTheirBatches) {
  control::ConsumerGroups groups(memory_->output());
  test::ProducingLane lane(*memory_, 0);
  ASSERT_EQ(lane.publish_all(), 4);
  StatusReply status = stages({{7, 0}, {8, 0}});
  EXPECT_EQ(status.stages(2).lanes(0).records_out(), 4U);
  fill_output(memory_->output(), groups, feed_.plan.stages(2).batch(), status);
  EXPECT_EQ(status.outputs(0).batches_published(), 4U);
  EXPECT_EQ(status.outputs(0).slots_used(), 4U);
}

TEST(Show, JsonHasNumbersAsNumbersAndRatesFromTwoLooks) {
  StatusReply before;
  before.set_feed("lc0");
  before.set_state(StatusReply::RUNNING);
  before.set_uptime_ms(1000);
  LaneStatus& lane = *before.add_stages()->add_lanes();
  lane.set_name("pool.0");
  lane.set_records_out(100);
  before.add_outputs();
  StatusReply now = before;
  now.set_uptime_ms(1500);
  now.mutable_stages(0)->mutable_lanes(0)->set_records_out(150);
  now.mutable_outputs(0)->set_batches_published(7);
  const auto json = nlohmann::json::parse(status_json(now, &before));
  EXPECT_EQ(json["feed"], "lc0");
  EXPECT_EQ(json["state"], "RUNNING");
  EXPECT_EQ(json["stages"][0]["lanes"][0]["records_out"], 150);
  EXPECT_EQ(json["stages"][0]["lanes"][0]["records_per_s"], 100.0);
  EXPECT_EQ(json["outputs"][0]["batches_per_s"], 14.0);
  EXPECT_TRUE(json["rings"].is_array());
  EXPECT_FALSE(json.contains("reason")) << "what is absent is left out";
}

TEST(Show, TextNamesLanesRingsGroupsAndTrainers) {
  StatusReply status;
  status.set_feed("lc0");
  status.set_state(StatusReply::WARMING);
  status.set_reason("stopped by signal 15");
  StageStatus& stage = *status.add_stages();
  stage.set_name("pool");
  stage.set_progress("3 of 10 chunks");
  LaneStatus& lane = *stage.add_lanes();
  lane.set_name("pool.0");
  lane.set_state(LaneStatus::STARVED);
  RingStatus& ring = *status.add_rings();
  ring.set_from("pool.0");
  ring.set_to("unpack.0");
  ring.set_fill_records(3);
  ring.set_capacity_records(16);
  status.add_outputs();
  FeedStatus& validation = *status.add_outputs();
  validation.set_alias("validation");
  validation.set_batches_published(12);
  status.add_groups()->set_name("train");
  ConsumerGroupStatus& other = *status.add_groups();
  other.set_name("other");
  other.set_output("validation");
  TrainerStatus& trainer = *status.add_trainers();
  trainer.set_group("train");
  trainer.set_client("train.py");
  const std::string text = show_status(status, nullptr);
  for (const char* part :
       {"feed lc0: warming", "stopped by signal 15", "pool: 3 of 10 chunks", "pool.0", "starved",
        "pool.0 > unpack.0", "3 of 16", "feed: 0 batches", "group train: shared", "train.py",
        "output validation: 12 batches", "group other: shared"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace ringfeed::metrics
