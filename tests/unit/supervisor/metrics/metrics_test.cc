// Specification of supervisor/metrics: looks at a feed, the minute that is remembered of them, and
// the numbers that are made of two of them.
//
//   looks:   |    |    |    |    |    |    |    |         every 250 ms; times are the test's
//            ^ begin_of(1 s)     ^......newest
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <type_traits>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/metrics/aggregate.h"
#include "supervisor/metrics/history.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/show.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::metrics {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

constexpr std::uint64_t kSecond = 1'000'000'000;

class Metrics : public ::testing::Test {
 protected:
  Metrics()
      : feed_(test::planned_feed()),
        memory_(test::feed_memory()),
        groups_(memory_->output()),
        looker_(*memory_) {
    StagePlan& pool = *feed_.plan.mutable_stages(1);
    pool.set_name("mix");
    declare(pool, "sources_kept").set_gauge(true);
    CounterPlan& window = declare(pool, "chunks_in_window");
    window.set_shown_as("chunks_current");
    window.set_gauge(true);
    window.set_capacity(1000);
    window.set_capacity_shown_as("chunks_capacity");
    declare(pool, "reshuffles");
    declare(pool, "hanse_rejected");
    declare(pool, "store_hits");
    CounterPlan& skipped = declare(pool, "skipped");
    skipped.add_sum_of("skipped_empty");
    skipped.add_sum_of("skipped_damaged");
    declare(pool, "skipped_empty");
    declare(pool, "skipped_damaged");
    declare(pool, "chunks_train").set_listed(true);
    TextPlan& anchor = *pool.add_texts();
    anchor.set_name("anchor");
    anchor.set_configured("games-17.tar");
    anchor.set_answer("chunk_pool_response.chunk_anchor");
    declare(*feed_.plan.mutable_stages(0), "files_found");
    for (std::uint32_t lane = 0; lane < memory_->layout().lanes.size(); ++lane) {
      memory_->lane(lane).pid.store(7);
    }
  }

  FeedFacts facts() const {
    return {feed_.config,    feed_.plan,         memory_->layout(),
            looker_.shape(), looker_.counters(), texts_};
  }
  void look(std::uint64_t time_ns, bool regular = true) {
    history_.add([&](Look& look) { looker_.look({&groups_}, {}, time_ns, look); }, regular);
  }
  // So many seconds of looks, in each of which the lane was busy for 100 of 250 ms.
  void pass(std::uint64_t seconds) {
    for (std::uint64_t i = 0; i < 4 * seconds; ++i) {
      auto& busy = memory_->lane(0).counters.busy_ns;
      busy.store(busy.load() + 100'000'000);
      now_ += kLookNs;
      look(now_);
    }
  }
  void count(std::uint32_t lane, const char* name, std::uint64_t value, std::size_t place = 0) {
    shm::NamedCounter& counter = memory_->lane(lane).counters.named[place];
    std::memset(counter.name, 0, sizeof counter.name);
    std::strcpy(counter.name, name);
    counter.value.store(value);
  }
  void fill_ring(std::uint32_t ring, std::uint64_t put, std::uint64_t got = 0) {
    const layout::RingPlan& plan = memory_->layout().rings[ring];
    shm::Mapping mapping = shm::map_segment(memory_->fd(plan.segment), true).value_or_throw();
    auto& tail = *reinterpret_cast<shm::TailLine*>(mapping.data() + shm::kTailLineOffset);
    tail.tail.store(put * 64);
    tail.tail_seq.store(put);
    shm::Mapping heads = shm::map_segment(memory_->fd(plan.heads_segment), true).value_or_throw();
    auto& head =
        reinterpret_cast<shm::HeadLine*>(heads.data() + shm::kHeadLinesOffset)[plan.head_index];
    head.head.store(got * 64);
    head.head_seq.store(got);
  }
  std::uint32_t ring_from(std::uint32_t lane) const {
    return memory_->layout().lanes[lane].outputs.at(0).rings.at(0);
  }
  MetricsReply reply() {
    MetricsReply out;
    fill_metrics(facts(), history_, out);
    return out;
  }
  static CounterPlan& declare(StagePlan& stage, const std::string& name) {
    CounterPlan& counter = *stage.add_counters();
    counter.set_name(name);
    return counter;
  }
  static const CounterMetricProto* counter(const StageMetricProto& stage, const std::string& name) {
    const auto found = std::ranges::find(stage.counters(), name, &CounterMetricProto::name);
    return found == stage.counters().end() ? nullptr : &*found;
  }
  // Its value; nothing: nobody counts it.
  static std::optional<std::uint64_t> counted(const StageMetricProto& stage,
                                              const std::string& name) {
    const CounterMetricProto* const found = counter(stage, name);
    return found != nullptr && found->has_value() ? std::optional(found->value()) : std::nullopt;
  }
  static const StageMetricProto& stage(const DataLoaderMetricsProto& metrics, int number) {
    return metrics.stage_metrics(number);
  }

  test::PlannedFeed feed_;
  std::unique_ptr<layout::FeedMemory> memory_;
  control::ConsumerGroups groups_;
  Looker looker_;
  History history_;
  Texts texts_;
  std::uint64_t now_ = 100 * kSecond;
};

TEST_F(Metrics, EachWindowHasWhatWasAddedInItAndTheTotalHasAll) {
  memory_->lane(0).counters.busy_ns.store(7 * kSecond);  // of an earlier supervisor's time
  look(now_);
  pass(70);
  const MetricsReply out = reply();
  ASSERT_EQ(out.windows_size(), 3);
  const double wanted[] = {1, 10, 60};
  for (int w = 0; w < 3; ++w) {
    EXPECT_THAT(out.windows(w).seconds_wanted(), DoubleEq(wanted[w]));
    EXPECT_NEAR(out.windows(w).seconds_covered(), wanted[w], 1e-6);
    const LoadMetricProto& load = stage(out.windows(w).metrics(), 0).loads(0);
    EXPECT_NEAR(load.busy_seconds(), 0.4 * wanted[w], 1e-6);
    EXPECT_NEAR(load.busy_share(), 0.4, 1e-6);
    EXPECT_EQ(load.lanes(), 1U);
  }
  EXPECT_NEAR(stage(out.total(), 0).loads(0).busy_seconds(), 7 + 70 * 0.4, 1e-6);
  EXPECT_FALSE(stage(out.total(), 0).loads(0).has_cpu_seconds())
      << "threads' clocks begin with their supervisor, totals do not";
}

TEST_F(Metrics, AWindowThatBeganBeforeTheFirstLookSaysWhatItCovers) {
  look(now_);
  pass(3);
  const MetricsReply out = reply();
  EXPECT_NEAR(out.windows(0).seconds_covered(), 1, 1e-6);
  EXPECT_NEAR(out.windows(1).seconds_covered(), 3, 1e-6);
  EXPECT_NEAR(out.windows(2).seconds_covered(), 3, 1e-6);
  const LoadMetricProto& load = stage(out.windows(2).metrics(), 0).loads(0);
  EXPECT_NEAR(load.busy_share(), 0.4, 1e-6) << "of the time that is covered";
}

TEST_F(Metrics, AMissedLookLengthensTheWindowInsteadOfFalsifyingIt) {
  look(now_);
  pass(5);
  now_ += 4 * kSecond;  // the supervisor was stopped, the lane was not
  memory_->lane(0).counters.busy_ns.fetch_add(4 * 400'000'000);
  look(now_);
  const MetricsReply out = reply();
  EXPECT_NEAR(out.windows(0).seconds_covered(), 4, 1e-6) << "there is no look one second ago";
  const LoadMetricProto& load = stage(out.windows(0).metrics(), 0).loads(0);
  EXPECT_NEAR(load.busy_seconds(), 1.6, 1e-6);
  EXPECT_NEAR(load.busy_share(), 0.4, 1e-6);
}

TEST_F(Metrics, TheHistoryHoldsAMinuteHoweverOftenSomebodyAsks) {
  look(now_);
  for (int second = 0; second < 80; ++second) {
    pass(1);
    for (int i = 1; i < 20; ++i) look(now_ + static_cast<std::uint64_t>(i) * 1'000'000, false);
  }
  EXPECT_LE(history_.size(), 244U);
  EXPECT_NEAR(reply().windows(2).seconds_covered(), 60, 0.3);
  EXPECT_EQ(history_.newest().time_ns, now_ + 19'000'000) << "an answer is of now";
}

TEST_F(Metrics, ARestartedLaneGoesOnCounting) {
  count(0, "files_found", 10);
  look(now_);
  pass(1);
  // A new life writes the names again, and a look falls in between.
  std::memset(memory_->lane(0).counters.named[0].name, 0, sizeof(shm::NamedCounter::name));
  pass(1);
  EXPECT_EQ(counted(stage(reply().total(), 0), "files_found"), 10U);
  std::strcpy(memory_->lane(0).counters.named[0].name, "files_f");
  pass(1);
  EXPECT_EQ(counted(stage(reply().total(), 0), "files_found"), 10U);
  count(0, "files_found", 14);
  pass(1);
  const MetricsReply out = reply();
  EXPECT_EQ(counted(stage(out.total(), 0), "files_found"), 14U);
  EXPECT_EQ(counted(stage(out.windows(0).metrics(), 0), "files_found"), 4U);
  EXPECT_EQ(stage(out.total(), 0).counters_size(), 1);
}

TEST_F(Metrics, ALaneThatWasTakenAwayKeepsItsPast) {
  const layout::FeedLayout& layout = memory_->layout();
  const std::uint32_t read = layout.lanes[2].node_index;
  ASSERT_EQ(layout.nodes[read].lanes, 2U);
  memory_->lane(3).counters.busy_ns.store(5 * kSecond);
  look(now_);
  shm::NodeLanes lanes = memory_->node_lanes(read);
  lanes.now = 1;
  memory_->set_node_lanes(read, lanes);
  pass(1);
  const MetricsReply out = reply();
  const LoadMetricProto& load = stage(out.total(), 1).loads(1);
  EXPECT_EQ(load.name(), "read");
  EXPECT_EQ(load.lanes(), 1U);
  EXPECT_NEAR(load.busy_seconds(), 5, 1e-6);
}

TEST_F(Metrics, WhatOnlyGrowsIsNeverLessThanItWas) {
  fill_ring(ring_from(0), 9, 5);
  look(now_);
  fill_ring(ring_from(0), 7, 3);  // as if the words of two moments had been read
  now_ += kLookNs;
  look(now_);
  const QueueMetricProto queue = stage(reply().total(), 0).output_queue_metrics(0);
  EXPECT_EQ(queue.put_count(), 9U);
  EXPECT_EQ(queue.get_count(), 5U);
  EXPECT_EQ(stage(reply().windows(0).metrics(), 0).output_queue_metrics(0).put_count(), 0U);
}

TEST_F(Metrics, AQueueHasCountsRatesAndTheFullnessThatWasSeen) {
  look(now_);
  const std::uint64_t puts[] = {4, 12, 10, 8};
  std::uint64_t put = 0;
  for (const std::uint64_t fill : puts) {
    put += 10;
    fill_ring(ring_from(0), put, put - fill);
    now_ += kLookNs;
    look(now_);
  }
  const MetricsReply out = reply();
  const QueueMetricProto& queue = stage(out.windows(0).metrics(), 0).output_queue_metrics(0);
  EXPECT_EQ(queue.name(), "output");
  EXPECT_EQ(queue.capacity(), 16U);
  EXPECT_EQ(queue.put_count(), 40U);
  EXPECT_EQ(queue.get_count(), 32U);
  EXPECT_THAT(queue.put_per_s(), DoubleEq(40));
  EXPECT_EQ(queue.fullness().min(), 0);
  EXPECT_EQ(queue.fullness().max(), 12);
  EXPECT_EQ(queue.fullness().latest(), 8);
  EXPECT_EQ(queue.fullness().count(), 5U);
  EXPECT_THAT(queue.fullness().mean(), DoubleEq(34.0 / 5));
}

TEST_F(Metrics, QueuesInsideAStageAreNamedByTheirPart) {
  look(now_);
  const MetricsReply out = reply();
  std::vector<std::string> names;
  for (const auto& queue : stage(out.total(), 1).output_queue_metrics()) {
    names.push_back(queue.name());
  }
  EXPECT_THAT(names, ::testing::ElementsAre("orders", "output", "read.feedback"));
}

TEST_F(Metrics, AGaugeIsItsLatestValueAndACounterWhatWasAdded) {
  count(1, "chunks_in_window", 900, 0);
  count(1, "reshuffles", 3, 1);
  look(now_);
  count(1, "chunks_in_window", 400, 0);
  count(1, "reshuffles", 5, 1);
  count(2, "store_hits", 70);
  count(3, "store_hits", 7);
  pass(1);
  const MetricsReply out = reply();
  const StageMetricProto& total = stage(out.total(), 1);
  EXPECT_EQ(total.kind(), "shuffling_chunk_pool");
  EXPECT_EQ(counted(total, "chunks_current"), 400U);
  EXPECT_TRUE(counter(total, "chunks_current")->gauge());
  EXPECT_EQ(counter(total, "chunks_current")->capacity(), 1000U);
  EXPECT_EQ(counter(total, "chunks_current")->capacity_name(), "chunks_capacity");
  EXPECT_EQ(counted(total, "chunks_in_window"), std::nullopt) << "it is shown as chunks_current";
  EXPECT_EQ(counted(total, "reshuffles"), 5U);
  EXPECT_FALSE(counter(total, "reshuffles")->gauge());
  EXPECT_EQ(counted(total, "store_hits"), 77U) << "over the lanes of the stage";
  EXPECT_EQ(counter(total, "hanse_rejected"), nullptr) << "nobody counts it";
  const StageMetricProto& window = stage(out.windows(0).metrics(), 1);
  EXPECT_EQ(counted(window, "chunks_current"), 400U);
  EXPECT_EQ(counted(window, "reshuffles"), 2U);
  EXPECT_EQ(counted(window, "store_hits"), 77U);
}

TEST_F(Metrics, ASumIsThereWhenOneOfItsPartsIs) {
  look(now_);
  EXPECT_EQ(counted(stage(reply().total(), 1), "skipped"), std::nullopt);
  count(1, "skipped_empty", 4, 0);
  count(2, "skipped_damaged", 3, 0);
  pass(1);
  const StageMetricProto total = stage(reply().total(), 1);
  EXPECT_EQ(counted(total, "skipped"), 7U);
  EXPECT_EQ(counted(total, "skipped_empty"), 4U);
}

// The process of a stage group may be of another version than the program that made the plan.
TEST_F(Metrics, ACounterThatNobodyHasDeclaredIsShownAsOneThatOnlyGrows) {
  count(1, "a_new_counter", 5, 0);
  count(1, "chunks_train", 2, 1);
  look(now_);
  count(1, "a_new_counter", 6, 0);
  pass(1);
  count(1, "a_new_counter", 1, 0);  // a gauge, in truth
  pass(1);
  const StageMetricProto window = stage(reply().windows(0).metrics(), 1);
  EXPECT_EQ(counted(window, "a_new_counter"), 0U);
  EXPECT_TRUE(counter(window, "a_new_counter")->listed());
  const auto json = nlohmann::json::parse(message_json(reply()));
  EXPECT_EQ(json["total"]["stage_metrics"][1]["other_counters"],
            nlohmann::json::parse(R"([{"name": "chunks_train", "value": 2},
                                      {"name": "a_new_counter", "value": 1}])"));
}

TEST_F(Metrics, ATextIsTheConfiguredOneUntilAnAnswerHasAnotherOne) {
  look(now_);
  EXPECT_EQ(stage(reply().total(), 1).texts_size(), 0) << "a feed that was taken over";
  texts_.take_configured(feed_.plan);
  EXPECT_EQ(stage(reply().total(), 1).texts(0).text(), "games-17.tar");
  StageControlAnswer answer;
  answer.set_stage("mix");
  StageControlResponse response;
  answer.set_response(response.SerializeAsString());
  texts_.take_answer(feed_.plan, answer);
  EXPECT_EQ(stage(reply().total(), 1).texts(0).text(), "games-17.tar") << "of another kind";
  answer.set_response("\xff\xff");
  texts_.take_answer(feed_.plan, answer);
  EXPECT_EQ(stage(reply().total(), 1).texts(0).text(), "games-17.tar") << "cannot be read";
  response.mutable_chunk_pool_response()->set_chunk_anchor("games-21.tar");
  answer.set_response(response.SerializeAsString());
  texts_.take_answer(feed_.plan, answer);
  const StageMetricProto total = stage(reply().total(), 1);
  ASSERT_EQ(total.texts_size(), 1);
  EXPECT_EQ(total.texts(0).name(), "anchor");
  EXPECT_EQ(total.texts(0).text(), "games-21.tar");
}

TEST_F(Metrics, TheOutputOfTheFeedIsItsSlots) {
  test::ProducingLane lane(*memory_, 0);
  look(now_);
  ASSERT_EQ(lane.publish_all(), 4);
  pass(1);
  const MetricsReply out = reply();
  const QueueMetricProto& queue = stage(out.windows(0).metrics(), 2).output_queue_metrics(0);
  EXPECT_EQ(queue.put_count(), 4U);
  EXPECT_EQ(queue.get_count(), 0U);
  EXPECT_EQ(queue.capacity(), 4U);
  EXPECT_EQ(queue.fullness().latest(), 4);
  EXPECT_EQ(stage(out.total(), 2).loads(0).records_out(), 4U);
}

TEST_F(Metrics, TheFeedIsAnotherOneAfterItsFirstBatchAndAfterScaling) {
  look(now_);
  pass(2);
  EXPECT_EQ(history_.steady_since(0, looker_.shape()), 0U);
  test::ProducingLane lane(*memory_, 0);
  ASSERT_TRUE(lane.publish());
  pass(1);
  EXPECT_EQ(history_.steady_since(0, looker_.shape()), 9U);
  const std::uint32_t read = memory_->layout().lanes[2].node_index;
  shm::NodeLanes lanes = memory_->node_lanes(read);
  lanes.now = 1;
  memory_->set_node_lanes(read, lanes);
  pass(1);
  EXPECT_EQ(history_.steady_since(0, looker_.shape()), 13U);
}

TEST_F(Metrics, AThreadsClockIsFoundByItsNameAndSummedOverItsLives) {
  // Lane 0 is this test's own thread beside the main one.
  ThreadClocks clocks(memory_->layout());
  std::vector<LaneLook> lanes(memory_->layout().lanes.size());
  lanes[0].at_work = true;
  const auto live = [&] {
    std::atomic<int> phase{0};
    pid_t tid = 0;
    std::thread thread([&] {
      tid = ::gettid();
      ::pthread_setname_np(::pthread_self(), memory_->layout().lanes[0].name().c_str());
      std::uint64_t spent = 0;
      timespec now{};
      while (spent < 20'000'000) {
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        spent = static_cast<std::uint64_t>(now.tv_nsec);
      }
      phase.store(1);
      phase.notify_all();
      phase.wait(1);
    });
    phase.wait(0);
    clocks.look({::getpid(), 0}, lanes);
    phase.store(2);
    phase.notify_all();
    thread.join();
    // One that is joined may still be on its way out, and its clock with it.
    const std::string task = fmt::format("/proc/self/task/{}", tid);
    while (::access(task.c_str(), F_OK) == 0) std::this_thread::yield();
  };
  live();
  const std::uint64_t first = lanes[0].cpu_ns;
  EXPECT_GE(first, 20'000'000U);
  clocks.look({::getpid(), 0}, lanes);
  EXPECT_EQ(lanes[0].cpu_ns, first) << "it has ended";
  live();
  EXPECT_GE(lanes[0].cpu_ns, first + 20'000'000U);
}

TEST_F(Metrics, TextAndJsonHaveTheSameNumbers) {
  count(0, "files_found", 10);
  look(now_);
  pass(2);
  MetricsReply out = reply();
  out.set_feed("lc0");
  const std::string text = show_metrics(out);
  for (const char* part : {"feed lc0", "source", "mix.read", "40/0/0", "source.output",
                           "mix.read.feedback", "files_found=10"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const auto numbers = nlohmann::json::parse(message_json(out));
  EXPECT_EQ(numbers["total"]["stage_metrics"][0]["file_path_provider"]["files_found"], 10);
  EXPECT_EQ(numbers["windows"].size(), 3U);
}

// What programs read of a stage. The names of members and what is there when are promised.
TEST_F(Metrics, TheJsonOfAStageHasItsCountersInAnObjectNamedAfterItsKind) {
  count(1, "chunks_in_window", 400, 0);
  count(1, "chunks_train", 9, 1);
  texts_.take_configured(feed_.plan);
  look(now_);
  const auto stage_of = [&](bool described, std::size_t number) {
    const auto json = nlohmann::json::parse(message_json(reply(), described));
    auto stage = json["total"]["stage_metrics"][number];
    EXPECT_EQ(stage[stage.contains("file_path_provider") ? "file_path_provider"
                                                         : "shuffling_chunk_pool"]["loads"]
                  .size(),
              number == 0 ? 1U : 2U);
    for (auto& part : stage) {
      if (part.is_object()) part.erase("loads");
    }
    stage.erase("output_queue_metrics");
    return stage.dump();
  };
  EXPECT_EQ(stage_of(false, 1),
            R"({"name":"mix","other_counters":[{"name":"chunks_train","value":9}],)"
            R"("shuffling_chunk_pool":{"anchor":"games-17.tar","chunks_capacity":1000,)"
            R"("chunks_current":400}})");
  EXPECT_EQ(stage_of(false, 0), R"({"file_path_provider":{},"name":"source","other_counters":[]})");
  EXPECT_EQ(stage_of(true, 1),
            R"({"counters":[{"capacity":1000,"capacity_name":"chunks_capacity","gauge":true,)"
            R"("name":"chunks_current","value":400},{"listed":true,"name":"chunks_train",)"
            R"("value":9}],"name":"mix","other_counters":[{"name":"chunks_train","value":9}],)"
            R"("shuffling_chunk_pool":{"anchor":"games-17.tar","chunks_capacity":1000,)"
            R"("chunks_current":400}})");
}

// Beside the stages, the JSON is one that protobuf reads as the message.
TEST_F(Metrics, ProtobufReadsTheRestOfTheJson) {
  look(now_);
  pass(1);
  MetricsReply out = reply();
  out.set_uptime_ms(~std::uint64_t{0});
  BottleneckProto& found = *out.add_bottlenecks();
  found.set_kind(BottleneckProto::TRAINERS);
  found.set_batches_per_s(0.1);
  found.add_shares()->set_lanes(3);
  EXPECT_EQ(why_object(out)["bottlenecks"][0], to_json(found));
  EXPECT_EQ(to_json(out)["uptime_ms"], ~std::uint64_t{0});
  const auto is_read_back = [](const auto& message) {
    std::remove_cvref_t<decltype(message)> back;
    return google::protobuf::util::JsonStringToMessage(message_json(message), &back).ok() &&
           back.SerializeAsString() == message.SerializeAsString();
  };
  EXPECT_TRUE(is_read_back(found));
  for (const StageMetricProto& stage : out.total().stage_metrics()) {
    for (const auto& load : stage.loads()) EXPECT_TRUE(is_read_back(load)) << stage.name();
    for (const auto& queue : stage.output_queue_metrics()) {
      EXPECT_TRUE(is_read_back(queue)) << stage.name();
    }
    for (const auto& counter : stage.counters()) {
      EXPECT_TRUE(is_read_back(counter)) << stage.name();
    }
  }
}

}  // namespace
}  // namespace ringfeed::metrics
