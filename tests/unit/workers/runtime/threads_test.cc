// Lanes in threads: they sleep when there is nothing to do, are woken when there is, and nothing
// hangs. The suite to run under ThreadSanitizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

// Reported for people, not asserted: how often the lanes slept, and how long altogether.
void report_sleeps(LaneRig& rig) {
  std::uint64_t sleeps = 0;
  std::uint64_t asleep_ns = 0;
  std::uint64_t wakes = 0;
  for (std::size_t i = 0; i < rig.lane_count(); ++i) {
    const shm::LaneCounters& counters = rig.page(i).counters;
    sleeps += counters.sleeps.load();
    wakes += counters.wakes.load();
    asleep_ns += counters.starved_ns.load() + counters.blocked_ns.load();
  }
  ::testing::Test::RecordProperty("sleeps", static_cast<int>(sleeps));
  ::testing::Test::RecordProperty("wakes", static_cast<int>(wakes));
  ::testing::Test::RecordProperty("asleep_ms", static_cast<int>(asleep_ns / 1'000'000));
  EXPECT_GT(sleeps, 0U) << "nobody ever slept: this test has tested nothing";
}

// Queues of one record: every record is a wake-up in each direction.
TEST(Threads, PassEveryRecordThroughQueuesOfOne) {
  LaneRig rig;
  rig.add_source("in", 1, {.capacity = 1});
  rig.add_node("first", function_node({.capacity = 1}, forward));
  rig.add_node("second", function_node({.from = "first", .capacity = 1}, forward));
  rig.add_sink("out", "second");
  rig.build();
  constexpr std::uint64_t kRecords = 3000;
  for (const RigRecord& record : numbered(0, kRecords)) rig.feed("in", record);
  rig.finish("in");
  EXPECT_TRUE(rig.run_in_threads());
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, kRecords)));
  report_sleeps(rig);
}

TEST(Threads, KeepTheOrderOfManyLanes) {
  LaneRig rig("feed_output { dispatch: ORDERED }");
  rig.add_source("in", 2, {.capacity = 2});
  rig.add_node("stage", function_node({.lanes = 3, .capacity = 2}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  constexpr std::uint64_t kRecords = 3000;
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    rig.feed("in", {.bytes = std::to_string(i)});
    if (i % 5 == 0) rig.end_unit("in");
  }
  rig.finish("in");
  EXPECT_TRUE(rig.run_in_threads());
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, kRecords)));
  report_sleeps(rig);
}

TEST(Threads, DeliverEachRecordOnceWhenRelaxed) {
  LaneRig rig("feed_output { dispatch: RELAXED }");
  rig.add_source("in", 2, {.capacity = 2});
  rig.add_node("stage", function_node({.lanes = 3, .capacity = 2}, forward));
  rig.add_sink("out", "stage", 2);
  rig.build();
  constexpr std::uint64_t kRecords = 3000;
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    rig.feed("in", {.bytes = std::to_string(i)}, i % 3 == 2);
  }
  rig.finish("in");
  EXPECT_TRUE(rig.run_in_threads());
  EXPECT_TRUE(rig.all_finished());
  std::vector<std::string> got = texts(rig.got("out"));
  std::vector<std::string> sent = texts(numbered(0, kRecords));
  std::sort(got.begin(), got.end());
  std::sort(sent.begin(), sent.end());
  EXPECT_EQ(got, sent);
  report_sleeps(rig);
}

// KEEP_NEWEST: the producer gives up records while the consumer reads.
TEST(Threads, KeepTheNewestInOrder) {
  LaneRig rig;
  rig.add_source("in", 1, {.capacity = 3, .overflow = KEEP_NEWEST});
  rig.add_node("stage", function_node({.capacity = 1}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  constexpr std::uint64_t kRecords = 3000;
  for (const RigRecord& record : numbered(0, kRecords)) rig.feed("in", record);
  rig.finish("in");
  EXPECT_TRUE(rig.run_in_threads());
  EXPECT_TRUE(rig.all_finished());
  const std::vector<RigRecord> got = rig.got("out");
  const shm::QueueView queue = rig.queue("in", 0, "stage", 0);
  EXPECT_EQ(queue.put_total, kRecords);
  EXPECT_EQ(queue.get_total, got.size());
  EXPECT_EQ(queue.get_total + queue.drop_total, kRecords);
  for (std::size_t i = 1; i < got.size(); ++i) {
    EXPECT_LT(std::stoi(got[i - 1].bytes), std::stoi(got[i].bytes));
  }
}

// Whoever copies the memory while all lanes stand still sees no step half done.
TEST(Threads, StandStillWhileTheyAreParkedAndLoseNothing) {
  LaneRig rig("feed_output { dispatch: ORDERED }");
  rig.add_source("in", 2, {.capacity = 4});
  rig.add_node("stage", function_node({.lanes = 3, .capacity = 4}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  constexpr std::uint64_t kRecords = 30'000;
  for (const RigRecord& record : numbered(0, kRecords)) rig.feed("in", record);
  rig.finish("in");
  const auto at_rest = [&](std::uint64_t ticket) {
    for (std::size_t i = 0; i < rig.lane_count(); ++i) {
      const shm::LanePage& page = rig.page(i);
      if (page.parked.load() != ticket &&
          page.state.load() != static_cast<std::uint32_t>(shm::LaneState::kFinished)) {
        return false;
      }
    }
    return true;
  };
  const auto commits = [&] {
    std::vector<std::uint64_t> out;
    for (std::size_t i = 0; i < rig.lane_count(); ++i) out.push_back(rig.page(i).commit.load());
    return out;
  };
  std::uint64_t ticket = 0;
  std::uint64_t moves = 0;  // between two parkings
  std::vector<std::uint64_t> before(rig.lane_count());
  EXPECT_TRUE(rig.run_in_threads([&] {
    rig.want(shm::LaneDesire::kPark);
    ++ticket;
    while (!at_rest(ticket)) std::this_thread::yield();
    const std::vector<std::uint64_t> then = commits();
    if (then != before) ++moves;
    before = then;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    EXPECT_EQ(commits(), then) << "a parked lane has made a step";
    EXPECT_TRUE(at_rest(ticket));
    rig.want(shm::LaneDesire::kRun);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    return false;
  }));
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, kRecords)));
  EXPECT_GT(moves, 1U) << "the lanes were never parked in the middle: this test has tested nothing";
}

// Nobody would end it.
TEST(Threads, DoNotParkWithoutASupervisor) {
  LaneRig rig;
  rig.add_source("in");
  rig.add_node("stage", function_node({}, forward));
  rig.add_sink("out", "stage");
  rig.build();
  rig.feed("in", {.bytes = "a"});
  rig.finish("in");
  rig.want(shm::LaneDesire::kPark);
  LaneOrders orders;
  orders.alone.store(true);
  for (std::size_t i = 0; i < rig.lane_count(); ++i) EXPECT_TRUE(rig.lane(i).run(orders));
  EXPECT_THAT(texts(rig.got("out")), ::testing::ElementsAre("a"));
}

}  // namespace
}  // namespace ringfeed
