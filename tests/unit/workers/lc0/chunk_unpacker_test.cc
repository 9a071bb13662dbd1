// The specification of workers/lc0/chunk_unpacker.h.
#include "workers/lc0/chunk_unpacker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::uint32_t> by_rate(std::uint64_t key, std::uint32_t count, std::uint64_t use,
                                   double rate) {
  std::vector<std::uint32_t> out = {12345};  // what was there is forgotten
  sample_by_rate(key, count, use, rate, out);
  return out;
}
std::vector<std::uint32_t> by_count(std::uint64_t key, std::uint32_t count, std::uint64_t use,
                                    std::uint32_t positions) {
  std::vector<std::uint32_t> out = {12345};
  sample_by_count(key, count, use, positions, out);
  return out;
}

// ---- position_sampling_rate

class SampleByRate : public ::testing::TestWithParam<double> {};

// 2000 games of 90 positions, the same in each of ten uses: the share stays within four standard
// deviations of the rate, in every use. A sampler that drifts falls to half of it.
TEST_P(SampleByRate, GivesItsShareInEveryUse) {
  const double rate = GetParam();
  constexpr std::uint32_t kGames = 2000;
  constexpr std::uint32_t kPositions = 90;
  const double count = kGames * kPositions;
  for (std::uint64_t use = 0; use < 10; ++use) {
    std::size_t given = 0;
    for (std::uint32_t game = 0; game < kGames; ++game) {
      given += by_rate(mix(1, game), kPositions, use, rate).size();
    }
    EXPECT_NEAR(static_cast<double>(given) / count, rate, 4 * std::sqrt(rate * (1 - rate) / count))
        << "use " << use;
  }
}

// After u uses each single position has come u * rate times, rounded up or down.
TEST_P(SampleByRate, GivesEachPositionItsShareWithoutDrift) {
  const double rate = GetParam();
  constexpr std::uint32_t kPositions = 200;
  std::vector<int> times(kPositions);
  for (std::uint64_t use = 0; use < 300; ++use) {
    for (const std::uint32_t position : by_rate(77, kPositions, use, rate)) ++times[position];
    const double due = static_cast<double>(use + 1) * rate;
    for (const int count : times) {
      ASSERT_GT(count, due - 1) << "after use " << use;
      ASSERT_LT(count, due + 1) << "after use " << use;
    }
  }
}

TEST_P(SampleByRate, GivesPositionsInTheOrderOfTheGameAndTheSameAgain) {
  const std::vector<std::uint32_t> chosen = by_rate(5, 500, 3, GetParam());
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
  EXPECT_EQ(by_rate(5, 500, 3, GetParam()), chosen);
  EXPECT_NE(by_rate(6, 500, 3, GetParam()), chosen) << "another game, other positions";
}
INSTANTIATE_TEST_SUITE_P(Rates, SampleByRate,
                         ::testing::Values(0.03, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0 / 3));

TEST(SampleByRateOneIn, GivesEachPositionExactlyOnceInSoManyUses) {
  for (const std::uint32_t uses : {2U, 3U, 7U, 10U, 33U, 100U}) {
    std::vector<int> times(1000);
    for (std::uint64_t use = 0; use < uses; ++use) {
      for (const std::uint32_t position : by_rate(3, 1000, use, 1.0 / uses)) ++times[position];
    }
    EXPECT_THAT(times, Each(1)) << "rate 1/" << uses;
  }
}

TEST(SampleByRateOne, GivesEverythingInEveryUse) {
  for (std::uint64_t use = 0; use < 5; ++use) {
    EXPECT_THAT(by_rate(1, 4, use, 1.0), ElementsAre(0, 1, 2, 3));
  }
  EXPECT_THAT(by_rate(1, 0, 0, 1.0), IsEmpty());
  EXPECT_THAT(by_rate(1, 0, 0, 0.5), IsEmpty());
}

// ---- position_count

TEST(SampleByCount, GivesSoManyPositionsWhateverTheLength) {
  for (std::uint64_t use = 0; use < 20; ++use) {
    EXPECT_THAT(by_count(1, 90, use, 1), SizeIs(1));
    EXPECT_THAT(by_count(1, 90, use, 7), SizeIs(7));
    EXPECT_THAT(by_count(1, 3, use, 7), SizeIs(7)) << "more than there are: some come again";
    EXPECT_THAT(by_count(1, 0, use, 7), IsEmpty());
  }
}

TEST(SampleByCount, NeverRepeatsBeforeEveryPositionHasCome) {
  for (const std::uint32_t count : {1U, 3U, 10U, 30U}) {
    std::vector<int> times(90);
    for (std::uint64_t use = 0; use < 90 / count; ++use) {
      for (const std::uint32_t position : by_count(8, 90, use, count)) ++times[position];
    }
    EXPECT_THAT(times, Each(1)) << count << " positions a use";
  }
}

TEST(SampleByCount, UsesEachPositionEquallyOftenInTheLongRun) {
  std::vector<int> times(45);
  for (std::uint64_t use = 0; use < 45 * 4; ++use) {
    for (const std::uint32_t position : by_count(8, 45, use, 4)) ++times[position];
  }
  EXPECT_THAT(times, Each(16));
}

TEST(SampleByCount, GivesAscendingPositionsAndTheSameAgain) {
  const std::vector<std::uint32_t> chosen = by_count(2, 200, 6, 20);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_EQ(by_count(2, 200, 6, 20), chosen);
  EXPECT_NE(by_count(2, 200, 16, 20), chosen) << "the second shuffle is another one";
}

// ---- the stage

void describe_unpacker(LaneRig& rig, const std::string& settings, std::uint32_t sinks = 1) {
  rig.add_source("chunks", 1, {.capacity = 64, .bytes = 1 << 20});
  rig.add_stage(fmt::format("name: 'unpacker' chunk_unpacker {{ input: 'chunks' {} }}", settings));
  rig.add_sink("out", "unpacker", sinks);
  rig.build();
}

std::vector<std::uint64_t> ids(const std::vector<RigRecord>& frames) {
  std::vector<std::uint64_t> all;
  for (const RigRecord& frame : frames) all.push_back(frame_id(frame.bytes));
  return all;
}

TEST(ChunkUnpacker, GivesEveryFrameInOrderWithItsLineage) {
  LaneRig rig;
  describe_unpacker(rig, "position_sampling_rate: 1 queue_capacity: 64");
  rig.feed("chunks", chunk_record(111, 0, 100, 5));
  rig.feed("chunks", chunk_record(222, 9, 200, 3));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(ids(rig.got("out")), ElementsAre(100, 101, 102, 103, 104, 200, 201, 202));
  const std::vector<RigRecord> frames = rig.got("out");
  EXPECT_EQ(frames[4].tag[0], 111U);
  EXPECT_EQ(frames[4].tag[1], 4U);
  EXPECT_EQ(frames[5].tag[0], 222U);
  EXPECT_EQ(frames[5].tag[1], 0U);
  EXPECT_EQ(frames[0].bytes, pack_text(lc0_record(100))) << "byte for byte";
  EXPECT_EQ(rig.counter("unpacker", "frames"), 8U);
}

TEST(ChunkUnpacker, ChoosesBySeedChunkAndUseAlone) {
  const auto run = [](const std::string& feed, const std::string& settings) {
    LaneRig rig(feed);
    describe_unpacker(rig, settings);
    for (std::uint16_t use = 0; use < 4; ++use) rig.feed("chunks", chunk_record(5, use, 0, 60));
    rig.finish("chunks");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    return ids(rig.got("out"));
  };
  const auto chosen = run("seed: 1", "position_sampling_rate: 0.25");
  EXPECT_EQ(sorted(chosen), numbers(0, 60)) << "each position once in four uses";
  EXPECT_EQ(run("seed: 1", "position_sampling_rate: 0.25 threads: 3"), chosen);
  EXPECT_NE(run("seed: 2", "position_sampling_rate: 0.25"), chosen);
  const auto counted = run("seed: 1", "position_count: 15");
  EXPECT_EQ(sorted(counted), numbers(0, 60));
}

// A queue of two records takes a chunk of fifty frames piece by piece.
TEST(ChunkUnpacker, PutsOutAChunkInPiecesWhenTheQueueIsSmall) {
  LaneRig rig;
  describe_unpacker(rig, "position_sampling_rate: 1 queue_capacity: 2", 2);
  rig.feed("chunks", chunk_record(1, 0, 0, 50));
  rig.feed("chunks", chunk_record(2, 0, 50, 50));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(ids(rig.got("out", 0)), numbers(0, 50)) << "a chunk is a unit";
  EXPECT_EQ(ids(rig.got("out", 1)), numbers(50, 100));
}

TEST(ChunkUnpacker, GoesOnInTheMiddleOfAChunkAfterARestart) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    LaneRig rig;
    describe_unpacker(rig, "position_sampling_rate: 1 queue_capacity: 3");
    for (std::uint64_t chunk = 0; chunk < 4; ++chunk) {
      rig.feed("chunks", chunk_record(chunk, 0, 20 * chunk, 20));
    }
    rig.finish("chunks");
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, 0.4);
    ASSERT_EQ(ids(rig.got("out")), numbers(0, 80)) << "seed " << seed;
    ASSERT_EQ(rig.counter("unpacker", "frames"), 80U);
  }
}

TEST(ChunkUnpacker, PassesAChunkOfWhichNothingIsChosen) {
  LaneRig rig;
  describe_unpacker(rig, "position_sampling_rate: 1", 2);
  rig.feed("chunks", chunk_record(1, 0, 0, 0));
  rig.feed("chunks", chunk_record(2, 0, 7, 1));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out", 0), IsEmpty());
  EXPECT_THAT(ids(rig.got("out", 1)), ElementsAre(7)) << "the empty unit kept its turn";
}

TEST(ChunkUnpacker, SkipsARecordThatContradictsItself) {
  const RigRecord whole = chunk_record(1, 0, 10, 3);
  std::vector<RigRecord> damaged;
  damaged.push_back({.bytes = ""});
  damaged.push_back({.bytes = whole.bytes.substr(0, 10)});                       // no head
  damaged.push_back({.bytes = whole.bytes.substr(0, whole.bytes.size() - 16)});  // cut short
  damaged.push_back({.bytes = whole.bytes + std::string(16, 'x')});              // too long
  damaged.push_back({.bytes = whole.bytes});
  damaged.back().bytes[8] = 4;  // one frame more than there are
  damaged.push_back({.bytes = whole.bytes});
  std::memset(damaged.back().bytes.data() + chunk_head_bytes({}), 0, 4);  // a frame of 0 bytes
  damaged.push_back({.bytes = whole.bytes});
  std::memset(damaged.back().bytes.data() + chunk_head_bytes({}), 0xff, 4);  // of 4 GiB
  LaneRig rig;
  describe_unpacker(rig, "position_sampling_rate: 1 queue_capacity: 64");
  std::vector<std::uint64_t> expected;
  for (const RigRecord& record : damaged) {
    rig.feed("chunks", record);
    rig.feed("chunks", whole);
    expected.insert(expected.end(), {10, 11, 12});
  }
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(ids(rig.got("out")), expected);
  EXPECT_EQ(rig.counter("unpacker", "chunks_damaged"), damaged.size());
}

TEST(ChunkUnpackerSettings, RateAndCountExcludeEachOther) {
  LaneRig rig;
  rig.add_source("chunks");
  EXPECT_THROW(rig.add_stage("name: 'unpacker' chunk_unpacker { input: 'chunks' "
                             "position_sampling_rate: 0.5 position_count: 3 }"),
               Error);
}

TEST(ChunkUnpackerSettings, WithoutRateAndCountEveryPositionIsGiven) {
  LaneRig rig;
  describe_unpacker(rig, "queue_capacity: 64");
  rig.feed("chunks", chunk_record(5, 0, 0, 60));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(ids(rig.got("out")), numbers(0, 60));
}

}  // namespace
}  // namespace ringfeed
