#include "supervisor/top/story.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/supervisor/top/messages.h"

namespace ringfeed::top {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Picture picture(const Told& told) { return picture_of(told.status, nullptr, told.metrics); }

std::vector<std::string> texts(const Story& story) {
  std::vector<std::string> all;
  for (const Event& event : story.events()) all.push_back(event.text);
  return all;
}

TEST(Story, BeginsWithoutEvents) {
  Story story;
  Told told = feed_told();
  told.status.mutable_stages(0)->mutable_lanes(0)->set_restarts(3);
  story.add(picture(told), 1'000, 0);
  story.add(picture(told), 2'000, 0);
  EXPECT_THAT(texts(story), IsEmpty());
}

// Lanes that share a process die together.
TEST(Story, TellsADeathOnce) {
  Story story;
  Told told = feed_told();
  story.add(picture(told), 1'000, 0);
  for (LaneStatus& lane : *told.status.mutable_stages(1)->mutable_lanes()) {
    lane.set_restarts(1);
    lane.set_pid(8);
  }
  story.add(picture(told), 2'000, 0);
  story.add(picture(told), 3'000, 0);
  EXPECT_THAT(texts(story), ElementsAre("the process of pool.0, pool.1 has died and has a "
                                        "successor, process 8"));
}

TEST(Story, TellsSkipsTrainersAndSupervisors) {
  Story story;
  Told told = feed_told();
  story.add(picture(told), 1'000, 0);
  CounterStatus& counter = *told.status.mutable_stages(0)->add_counters();
  counter.set_name("skipped_too_large");
  counter.set_value(3);
  told.status.clear_trainers();
  told.status.set_supervisor_pid(100);
  told.status.mutable_groups(0)->set_skipped(5);
  story.add(picture(told), 2'000, 0);
  EXPECT_THAT(texts(story),
              ElementsAre(HasSubstr("trainer 0 of group 'train' (process 500) has left"),
                          HasSubstr("lost 5 batches"), "3 left out (source: too large)",
                          HasSubstr("another supervisor serves the feed, process 100")));
}

TEST(Story, TellsATroubleOnceAndItsEnd) {
  Story story;
  for (int i = 0; i < 3; ++i) story.add_trouble("it is gone", 0);
  story.add(picture(feed_told()), 1'000, 0);
  EXPECT_THAT(texts(story), ElementsAre("the supervisor answers again", "it is gone"));
}

TEST(Story, KeepsTheLastMinute) {
  Story story;
  Told told = feed_told();
  for (std::uint64_t second = 0; second < 100; ++second) {
    told.status.mutable_outputs(0)->set_batches_published(5 * second);
    story.add(picture(told), 1'000 * second, 0);
  }
  EXPECT_THAT(story.rates(99'000), Each(5.0));
  EXPECT_EQ(story.rates(99'000).size(), 60u);
  // Nobody has answered since: nothing is known of these seconds.
  const std::vector<double> later = story.rates(119'000);
  EXPECT_EQ(later.back(), -1);
  EXPECT_EQ(later.front(), 5);
}

// 600 batches in a minute, all of them in the last ten seconds, and none of these in the last one.
TEST(Story, BeginsWithWhatTheSupervisorRemembers) {
  Told told = feed_told();
  told.metrics.mutable_windows(0)
      ->mutable_metrics()
      ->mutable_stage_metrics(2)
      ->mutable_output_queue_metrics(0)
      ->set_put_count(0);
  const Picture first = picture(told);
  const std::vector<double> past = past_rates(first, told.metrics);
  ASSERT_EQ(past.size(), 60u);
  EXPECT_EQ(past[0], 0);
  EXPECT_DOUBLE_EQ(past[55], 600 / 9.0);
  EXPECT_EQ(past[59], 0);
  Story story;
  story.set_past(past);
  story.add(first, 100'000, 0);
  EXPECT_DOUBLE_EQ(story.rates(100'000)[55], 600 / 9.0);
  EXPECT_DOUBLE_EQ(story.rates(120'000)[35], 600 / 9.0);
}

// A queue belongs to the rings of its size; those between the parts of a stage lead nowhere else.
TEST(Picture, TellsQueuesApart) {
  Told told = feed_told();
  const Picture drawn = picture(told);
  EXPECT_EQ(drawn.stages[0].queues[0].to, "pool");
  EXPECT_EQ(drawn.stages[2].queues[0].to, "trainers");
  EXPECT_TRUE(drawn.stages[1].limits);
  EXPECT_EQ(drawn.trainers[0].holds, 3u);
  EXPECT_EQ(drawn.outputs[0].verdict, OutputRow::Verdict::kTrainersWait);
}

// A supervisor is another process: nothing of what it says is taken for granted.
TEST(Picture, BearsAnEmptyAnswer) {
  const Picture drawn = picture_of({}, nullptr, {});
  EXPECT_THAT(drawn.stages, IsEmpty());
  EXPECT_THAT(past_rates(drawn, {}), Each(-1));
}

TEST(Picture, KnowsReasonsOfSkips) {
  EXPECT_EQ(skip_reason("skipped_too_large"), "too large");
  EXPECT_EQ(skip_reason("frames"), std::nullopt);
}

}  // namespace
}  // namespace ringfeed::top
