// The specification of workers/runtime/lane.h and of what workers/include/ringfeed/worker/stage.h
// promises to a stage: a call of step() happens whole or not at all.
#include "workers/runtime/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// in -> stage -> out, one lane each.
struct OneStage {
  OneStage(const NodeOptions& options, StepMaker maker) {
    if (!options.from.empty()) rig.add_source("in");
    rig.add_node("stage", function_node(options, std::move(maker)), options.counters);
    rig.add_sink("out", "stage");
    rig.build();
    stage = rig.lanes_of("stage").front();
  }
  LaneRig rig;
  std::size_t stage = 0;
};

// ---- a call that is refused

class StepRefused : public ::testing::TestWithParam<StepStatus> {};

// Whatever a call did before it noticed that it cannot go on, the next call finds as it was.
TEST_P(StepRefused, LeavesNoTrace) {
  bool refuse = true;
  std::vector<std::uint64_t> draws;
  std::vector<std::uint64_t> words;
  OneStage one({.state_bytes = 64, .counters = {"calls"}}, [&](const StageContext& context) {
    const Counter counter = context.counter("calls");
    return [&, counter, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
      words.push_back(step.load(Word{8}));
      step.store(Word{8}, 77);
      draws.push_back(step.draw(1'000'000'000));
      step.count(counter);
      if (!step.put(out, record->bytes)) return StepStatus::kNoRoom;
      if (!step.put(out, bytes_of("more"))) return StepStatus::kNoRoom;
      const StepStatus consumed = step.consume(*record);
      return refuse ? GetParam() : consumed;
    };
  });
  one.rig.feed("in", {.bytes = "a"});
  for (int i = 0; i < 3; ++i) one.rig.run();
  EXPECT_THAT(one.rig.got("out"), IsEmpty());
  EXPECT_EQ(one.rig.counter("stage", "calls"), 0U);
  EXPECT_EQ(one.rig.queue("in", 0, "stage", 0).get_total, 0U);
  EXPECT_EQ(one.rig.queue("stage", 0, "out", 0).put_total, 0U);
  ASSERT_GE(draws.size(), 3U);

  refuse = false;
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("a", "more"));
  EXPECT_EQ(one.rig.counter("stage", "calls"), 1U);
  EXPECT_THAT(words, ::testing::Each(0U)) << "a refused store was seen";
  EXPECT_THAT(draws, ::testing::Each(draws.front())) << "a refused draw was not drawn again";
}
INSTANTIATE_TEST_SUITE_P(EveryRefusal, StepRefused,
                         ::testing::Values(StepStatus::kNoRoom, StepStatus::kNoInput,
                                           StepStatus::kIdle));

// Whoever takes a step back in order to begin it anew does not sleep in between.
TEST(StepCommit, CallsAgainAtOnce) {
  int calls = 0;
  OneStage one({.steps_per_commit = 1}, [&](const StageContext& context) {
    return [&, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      if (++calls == 1) {
        (void)step.put(out, bytes_of("taken back"));
        (void)step.consume(*record);
        return StepStatus::kAgain;
      }
      return step.put(out, record->bytes) ? step.consume(*record) : StepStatus::kNoRoom;
    };
  });
  one.rig.feed("in", {.bytes = "a"});
  one.rig.round(one.rig.lanes_of("in").front());
  EXPECT_EQ(one.rig.lane(one.stage).round(), LaneRuntime::Round::kWorked);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(one.rig.queue("in", 0, "stage", 0).get_total, 0U);
  EXPECT_EQ(one.rig.lane(one.stage).round(), LaneRuntime::Round::kWorked);
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("a"));
  EXPECT_EQ(calls, 2);
}

// Calls 1 and 2 of a commit succeed, 3 is refused: 1 and 2 happen.
TEST(StepCommit, TakesBackOnlyTheCallThatWasRefused) {
  int calls = 0;
  OneStage one({.state_bytes = 64}, [&](const StageContext& context) {
    return [&, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      step.store(Word{0}, step.load(Word{0}) + 1);
      if (!step.put(out, bytes_of(std::to_string(step.load(Word{0}))))) return StepStatus::kNoRoom;
      const StepStatus consumed = step.consume(*record);
      return ++calls == 3 ? StepStatus::kNoRoom : consumed;
    };
  });
  for (const RigRecord& record : numbered(0, 4)) one.rig.feed("in", record);
  one.rig.round(one.rig.lanes_of("in").front());
  one.rig.round(one.stage);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(one.rig.queue("in", 0, "stage", 0).get_total, 2U);
  EXPECT_EQ(one.rig.queue("stage", 0, "out", 0).size_records, 2U);
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("1", "2", "3", "4"));
}

// A unit that an attempt ended and that was then taken back is not ended. Two lanes, a unit each:
//   call 1 puts "first", without its unit's end;  call 2 consumes the end, and is refused;
//   call 3 puts "later" into the same unit and consumes.
// Whoever reads both lanes in turn must find "first" and "later" of lane 0 before lane 1.
TEST(StepCommit, TakesBackTheEndOfAUnit) {
  LaneRig rig;
  rig.add_source("in");
  std::map<std::uint32_t, int> calls;
  rig.add_node("stage", function_node({.lanes = 2}, [&](const StageContext& context) {
                 return [&calls = calls[context.lane], in = context.input("input"),
                         out = context.output("output")](Step& step) {
                   const std::optional<Record> record = step.peek(in);
                   if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
                   const std::string unit = text_of(*record);
                   switch (++calls) {
                     case 1:
                       return step.put(out, bytes_of("first of " + unit)) ? StepStatus::kDone
                                                                          : StepStatus::kNoRoom;
                     case 2:
                       (void)step.consume(*record);
                       return StepStatus::kNoRoom;
                     default:
                       if (!step.put(out, bytes_of("later of " + unit))) return StepStatus::kNoRoom;
                       return step.consume(*record);
                   }
                 };
               }));
  rig.add_sink("out", "stage");
  rig.build();
  rig.feed("in", {.bytes = "unit 0"});
  rig.feed("in", {.bytes = "unit 1"});
  rig.finish("in");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(texts(rig.got("out")), ElementsAre("first of unit 0", "later of unit 0",
                                                 "first of unit 1", "later of unit 1"));
}

TEST(StepCommit, GathersAsManyCallsAsTheNodeSays) {
  for (const std::uint32_t calls_per_commit : {1U, 4U, 16U}) {
    OneStage one({.steps_per_commit = calls_per_commit}, forward);
    for (const RigRecord& record : numbered(0, 12)) one.rig.feed("in", record);
    one.rig.round(one.rig.lanes_of("in").front());
    while (one.rig.round(one.stage)) {
    }
    EXPECT_EQ(one.rig.page(one.stage).commit.load(), (12 + calls_per_commit - 1) / calls_per_commit)
        << calls_per_commit << " calls a commit";
    one.rig.run();
    EXPECT_THAT(one.rig.got("out"), SizeIs(12));
  }
}

// ---- what a call sees of itself and of the calls before it

TEST(StepMemory, ReadsItsOwnWritesBeforeTheCommit) {
  std::vector<std::uint64_t> seen;
  OneStage one({.from = "", .units = UnitRule::kRecord, .state_bytes = 64},
               [&](const StageContext&) {
                 return [&](Step& step) {
                   seen.push_back(step.load(Word{16}));
                   step.store(Word{16}, step.load(Word{16}) + 1);
                   step.store(Word{16}, step.load(Word{16}) + 1);
                   return seen.size() == 3 ? StepStatus::kEnd : StepStatus::kDone;
                 };
               });
  one.rig.round(one.stage);
  EXPECT_THAT(seen, ElementsAre(0, 2, 4)) << "three calls of one commit";
  EXPECT_EQ(one.rig.page(one.stage).commit.load(), 1U);
}

TEST(StepMemory, OutlivesTheLane) {
  const StepMaker counting = [](const StageContext& context) {
    // Caches are rebuilt from the arena by the constructor.
    const std::uint64_t found = context.load(Word{8});
    return [found, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      const std::uint64_t count = step.load(Word{8}) + 1;
      step.store(Word{8}, count);
      step.fill({64, 8}, bytes_of("bulk" + std::to_string(1000 + count)));
      const std::string text = fmt::format("{} of which {} before this life", count, found);
      if (!step.put(out, bytes_of(text))) return StepStatus::kNoRoom;
      return step.consume(*record);
    };
  };
  OneStage one({.state_bytes = 128}, counting);
  one.rig.feed("in", {.bytes = "x"});
  one.rig.feed("in", {.bytes = "x"});
  one.rig.run();
  one.rig.restart("stage");
  one.rig.feed("in", {.bytes = "x"});
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")),
              ElementsAre("1 of which 0 before this life", "2 of which 0 before this life",
                          "3 of which 2 before this life"));
}

TEST(StepMemory, GrowsUpToItsLimitAndCountsWhatIsRefused) {
  OneStage one(
      {.from = "", .units = UnitRule::kRecord, .state_bytes = 4096, .state_bytes_max = 1 << 20},
      [&](const StageContext&) {
        return [&](Step& step) {
          EXPECT_TRUE(step.grow(900'000, 3 << 20))
              << "as much as there must be, if not as would be nice";
          EXPECT_GE(step.state_bytes(), 900'000U);
          step.store(Word{899'992}, 5);
          EXPECT_FALSE(step.grow(3 << 20));
          EXPECT_FALSE(step.grow(2 << 20));
          EXPECT_GE(step.state_bytes(), 900'000U) << "a refusal changes nothing";
          return StepStatus::kEnd;
        };
      });
  one.rig.round(one.stage);
  EXPECT_EQ(one.rig.counter("stage", "growths_refused"), 2U);
  one.rig.restart("stage");
  EXPECT_GE(one.rig.arena_bytes("stage"), 900'000U) << "what was reserved stays so";
}

TEST(StepDraw, GoesOnWhereTheLastLifeCommitted) {
  const auto run = [](bool with_restarts) {
    OneStage one({}, [](const StageContext& context) {
      return [in = context.input("input"), out = context.output("output")](Step& step) {
        const std::optional<Record> record = step.peek(in);
        if (!record) return StepStatus::kNoInput;
        if (!step.put(out, bytes_of(std::to_string(step.draw(1'000'000))))) {
          return StepStatus::kNoRoom;
        }
        return step.consume(*record);
      };
    });
    for (int i = 0; i < 20; ++i) {
      one.rig.feed("in", {.bytes = "x"});
      one.rig.run();
      if (with_restarts) one.rig.restart("stage");
    }
    return texts(one.rig.got("out"));
  };
  const std::vector<std::string> undisturbed = run(false);
  EXPECT_THAT(undisturbed, SizeIs(20));
  EXPECT_EQ(std::set<std::string>(undisturbed.begin(), undisturbed.end()).size(), 20U);
  EXPECT_EQ(run(true), undisturbed);
}

TEST(StepDraw, CanBeForeseenAndIsNotChangedByThat) {
  constexpr std::uint64_t kBound = 1'000'000;
  constexpr std::size_t kAhead = 3;
  std::vector<std::uint64_t> drawn;
  std::vector<std::uint64_t> foreseen;
  OneStage one({}, [&](const StageContext& context) {
    return [&, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      foreseen.push_back(step.foresee(kBound, kAhead));
      const std::uint64_t now = step.foresee(kBound, 0);
      drawn.push_back(step.draw(kBound));
      EXPECT_EQ(now, drawn.back());
      if (!step.put(out, bytes_of("x"))) return StepStatus::kNoRoom;
      return step.consume(*record);
    };
  });
  for (int i = 0; i < 20; ++i) {
    one.rig.feed("in", {.bytes = "x"});
    one.rig.run();
    if (i % 5 == 4) one.rig.restart("stage");
  }
  ASSERT_EQ(drawn.size(), 20U);
  for (std::size_t i = 0; i + kAhead < drawn.size(); ++i) {
    EXPECT_EQ(foreseen[i], drawn[i + kAhead]) << i;
  }
}

// ---- records

TEST(StepRecord, CarriesBytesTagsAndUser) {
  OneStage one({}, forward);
  const std::vector<RigRecord> sent = {{.bytes = "", .tag = {1, 2}, .user = 3},
                                       {.bytes = std::string(5000, 'x'), .tag = {~0ULL, 0}},
                                       {.bytes = std::string("\0\1\2", 3), .user = ~0ULL}};
  for (const RigRecord& record : sent) one.rig.feed("in", record);
  one.rig.run();
  EXPECT_EQ(one.rig.got("out"), sent);
}

TEST(StepRecord, IsWrittenInPlaceAndMayBeShorterThanReserved) {
  OneStage one({}, [](const StageContext& context) {
    return [in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      const std::span<std::byte> room = step.reserve(out, 1000);
      if (room.empty()) return StepStatus::kNoRoom;
      EXPECT_EQ(room.size(), 1000U);
      std::memcpy(room.data(), record->bytes.data(), record->bytes.size());
      step.put_reserved(out, record->bytes.size(), {.user = 9});
      return step.consume(*record);
    };
  });
  one.rig.feed("in", {.bytes = "short"});
  one.rig.run();
  EXPECT_THAT(one.rig.got("out"), ElementsAre(RigRecord{.bytes = "short", .user = 9}));
}

TEST(StepRecord, SeveralCanBeGatheredInOneCall) {
  OneStage one({.units = UnitRule::kRecord}, [](const StageContext& context) {
    return [in = context.input("input"), out = context.output("output")](Step& step) {
      std::string gathered;
      while (const std::optional<Record> record = step.peek(in)) {
        gathered += text_of(*record);
        if (step.consume(*record) != StepStatus::kDone) return StepStatus::kNoRoom;
      }
      if (gathered.empty()) return StepStatus::kNoInput;
      return step.put(out, bytes_of(gathered)) ? StepStatus::kDone : StepStatus::kNoRoom;
    };
  });
  for (const RigRecord& record : numbered(0, 5)) one.rig.feed("in", record);
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("01234"));
}

TEST(StepRecord, BlocksWhenTheQueueIsFullAndGoesOnWhenItIsNot) {
  OneStage one({.capacity = 4}, forward);
  one.rig.allow("out", 0);
  for (const RigRecord& record : numbered(0, 10)) one.rig.feed("in", record);
  one.rig.run();
  EXPECT_EQ(one.rig.queue("stage", 0, "out", 0).size_records, 4U);
  EXPECT_EQ(one.rig.queue("stage", 0, "out", 0).drop_total, 0U);
  one.rig.allow("out", 3);
  one.rig.run();
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("0", "1", "2"));
  EXPECT_EQ(one.rig.queue("stage", 0, "out", 0).size_records, 4U);
  one.rig.allow("out", 100);
  one.rig.run();
  EXPECT_THAT(one.rig.got("out"), SizeIs(10));
}

// ---- the end

TEST(LaneEnd, ClosesTheOutputsTogetherWithTheLastCall) {
  OneStage one({.from = "", .units = UnitRule::kRecord}, [](const StageContext& context) {
    return [out = context.output("output")](Step& step) {
      EXPECT_TRUE(step.put(out, bytes_of("the last")));
      return StepStatus::kEnd;
    };
  });
  one.rig.run();
  EXPECT_TRUE(one.rig.all_finished());
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("the last"));
  EXPECT_TRUE(one.rig.queue("stage", 0, "out", 0).closed);
}

TEST(LaneEnd, IsSeenOnlyBehindTheLastRecord) {
  OneStage one({.capacity = 2}, forward);
  one.rig.allow("out", 0);
  for (const RigRecord& record : numbered(0, 9)) one.rig.feed("in", record);
  one.rig.finish("in");
  one.rig.run();
  EXPECT_FALSE(one.rig.finished(one.stage)) << "there is input left";
  one.rig.allow("out", 100);
  one.rig.run();
  EXPECT_TRUE(one.rig.all_finished());
  EXPECT_THAT(one.rig.got("out"), SizeIs(9));
}

// The lane dies in the carry-out of its last step, behind any number of its stores, and its
// neighbour goes on before it is back.
TEST(LaneEnd, IsSeenOnlyBehindTheLastRecordByTheNeighbourOfALaneThatDied) {
  std::uint32_t entries = 1;
  for (std::uint32_t stored = 0; stored <= entries; ++stored) {
    OneStage one({}, forward);
    for (const RigRecord& record : numbered(0, 3)) one.rig.feed("in", record);
    one.rig.finish("in");
    one.rig.round(one.rig.lanes_of("in").front());
    const std::vector<RigSegment> segments = one.rig.segments();
    // The rings come in the order of the nodes that read them.
    const auto ring = std::find_if(segments.rbegin(), segments.rend(), [](const RigSegment& each) {
      return each.kind == shm::SegmentKind::kRing;
    });
    ASSERT_NE(ring, segments.rend());
    const std::vector<std::byte> before(ring->data, ring->data + shm::kRingDataOffset);
    one.rig.round(one.stage);
    ASSERT_TRUE(one.rig.finished(one.stage));
    // All that the list has stored in the output ring behind the first `stored` entries is undone.
    const shm::LanePage& page = one.rig.page(one.stage);
    const std::uint32_t area = page.commit.load() & 1;
    entries = page.entry_counts[area].load();
    const RigSegment& arena = segments[segments.size() - one.rig.lane_count() + one.stage];
    const auto* const list =
        reinterpret_cast<const shm::JournalEntry*>(arena.data + shm::journal_area_offset(area));
    for (std::uint32_t i = stored; i < entries; ++i) {
      const shm::WordRef ref{list[i].where};
      if (shm::segment_of(ref) != shm::kFirstRingSegment) continue;
      std::memcpy(ring->data + shm::offset_of(ref), before.data() + shm::offset_of(ref), 8);
    }
    const std::size_t out = one.rig.lanes_of("out").front();
    while (one.rig.round(out)) {
    }
    EXPECT_TRUE(!one.rig.finished(out) || one.rig.got("out").size() == 3) << stored << " stored";
    one.rig.restart(one.stage);
    one.rig.run();
    EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("0", "1", "2")) << stored << " stored";
  }
  EXPECT_GE(entries, 3U);
}

TEST(LaneEnd, IsForGoodWhateverIsRestarted) {
  int lives = 0;
  OneStage one({}, [&](const StageContext& context) {
    ++lives;
    return forward(context);
  });
  one.rig.feed("in", {.bytes = "a"});
  one.rig.finish("in");
  one.rig.run();
  EXPECT_EQ(lives, 1);
  one.rig.restart_all();
  EXPECT_TRUE(one.rig.all_finished());
  EXPECT_EQ(lives, 1) << "a lane that has finished needs no stage";
  one.rig.run();
  EXPECT_THAT(one.rig.got("out"), SizeIs(1));
}

// ---- wishes of the supervisor

TEST(LaneDesires, DrainIsToldToTheStage) {
  OneStage one({.from = "", .units = UnitRule::kRecord}, [](const StageContext& context) {
    return [out = context.output("output")](Step& step) {
      if (step.draining()) return StepStatus::kEnd;
      return step.put(out, bytes_of("x")) ? StepStatus::kDone : StepStatus::kNoRoom;
    };
  });
  one.rig.allow("out", 5);
  one.rig.run();
  EXPECT_FALSE(one.rig.finished(one.stage));
  one.rig.want(shm::LaneDesire::kDrain);
  one.rig.allow("out", 1000);
  one.rig.run();
  EXPECT_TRUE(one.rig.all_finished());
  EXPECT_EQ(one.rig.got("out").size(), one.rig.queue("stage", 0, "out", 0).put_total)
      << "what was under way flows out";
}

TEST(LaneDesires, StopLeavesBetweenTwoStepsAndLosesNothing) {
  OneStage one({}, forward);
  for (const RigRecord& record : numbered(0, 1000)) one.rig.feed("in", record);
  one.rig.finish("in");
  EXPECT_TRUE(one.rig.run_in_threads([&] { return one.rig.got("out").size() >= 10; }));
  one.rig.want(shm::LaneDesire::kStop);
  EXPECT_TRUE(one.rig.run_in_threads()) << "lanes that are told to stop return at once";
  EXPECT_LT(one.rig.got("out").size(), 1001U);
  one.rig.want(shm::LaneDesire::kRun);
  one.rig.restart_all();
  EXPECT_TRUE(one.rig.run_in_threads());
  EXPECT_TRUE(one.rig.all_finished());
  EXPECT_EQ(texts(one.rig.got("out")), texts(numbered(0, 1000)));
}

// How often this thread has given up its processor to wait.
long waits_of_this_thread() {
  rusage usage{};
  RF_CHECK(::getrusage(RUSAGE_THREAD, &usage) == 0, errno);
  return usage.ru_nvcsw;
}

// The wish comes, and is rung for, when the lane's last round is under way and it has not read its
// bell yet: only a look at the wish itself keeps it awake. Repeated, as a thread may also have to
// wait for something else.
TEST(LaneDesires, AWishDuringARoundIsNotSleptOver) {
  long waits_min = std::numeric_limits<long>::max();
  for (int trial = 0; trial < 20 && waits_min > 0; ++trial) {
    LaneRig* rig = nullptr;
    long waits = 0;
    OneStage one({.from = "", .units = UnitRule::kRecord}, [&](const StageContext&) {
      return [&](Step& step) {
        if (step.draining()) {
          waits_min = std::min(waits_min, waits_of_this_thread() - waits);
          return StepStatus::kEnd;
        }
        rig->want(shm::LaneDesire::kDrain);
        waits = waits_of_this_thread();
        return StepStatus::kIdle;
      };
    });
    rig = &one.rig;
    EXPECT_TRUE(one.rig.run_in_threads());
    EXPECT_TRUE(one.rig.all_finished());
  }
  EXPECT_EQ(waits_min, 0) << "the lane slept until its time was over";
}

// A source that has nothing to do is asked again without being rung for.
TEST(LaneIdle, IsCalledAgainAfterItsPoll) {
  std::atomic<int> calls{0};
  OneStage one({.from = "", .units = UnitRule::kRecord}, [&](const StageContext& context) {
    return [&, out = context.output("output")](Step& step) {
      if (++calls < 20) return StepStatus::kIdle;
      EXPECT_TRUE(step.put(out, bytes_of("found")));
      return StepStatus::kEnd;
    };
  });
  EXPECT_EQ(one.rig.lane(one.stage).round(), LaneRuntime::Round::kIdle);
  EXPECT_TRUE(one.rig.run_in_threads());
  EXPECT_EQ(calls, 20);
  EXPECT_THAT(texts(one.rig.got("out")), ElementsAre("found"));
}

// ---- counters and notes

TEST(LaneCounters, CountExactlyWhatHappenedAndSurvive) {
  OneStage one({.counters = {"records", "last_bytes"}}, [](const StageContext& context) {
    const Counter records = context.counter("records");
    const Counter last = context.counter("last_bytes");
    return [=, in = context.input("input"), out = context.output("output")](Step& step) {
      const std::optional<Record> record = step.peek(in);
      if (!record) return StepStatus::kNoInput;
      step.count(records, 2);
      step.gauge(last, record->bytes.size());
      if (!step.put(out, record->bytes)) return StepStatus::kNoRoom;
      return step.consume(*record);
    };
  });
  for (int i = 1; i <= 5; ++i) {
    one.rig.feed("in", {.bytes = std::string(static_cast<std::size_t>(i), 'x')});
    one.rig.run();
    one.rig.restart("stage");
  }
  EXPECT_EQ(one.rig.counter("stage", "records"), 10U);
  EXPECT_EQ(one.rig.counter("stage", "last_bytes"), 5U);
  EXPECT_EQ(one.rig.page(one.stage).incarnation.load(), 6U);
}

TEST(LaneCountersDeathTest, OneThatIsNotDeclaredEndsTheProcess) {
  EXPECT_DEATH(OneStage({.counters = {"records"}},
                        [](const StageContext& context) {
                          (void)context.counter("recods");
                          return forward(context);
                        }),
               "the counter is declared in StageType::counters.*recods");
}

TEST(LaneNotes, AreCutToTheirRoomAndHaveAnEvenVersionAtRest) {
  OneStage one({}, [](const StageContext& context) {
    context.note(std::string(10'000, 'n'));
    return forward(context);
  });
  EXPECT_EQ(one.rig.note("stage"), std::string(sizeof shm::LaneNote::text, 'n'));
  one.rig.lane(one.stage).note("short");
  EXPECT_EQ(one.rig.note("stage"), "short");
  EXPECT_EQ(one.rig.page(one.stage).counters.note.version.load() % 2, 0U);
}

}  // namespace
}  // namespace ringfeed
