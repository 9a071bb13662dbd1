// The specification of workers/lc0/shuffling_frame_sampler.h.
#include "workers/lc0/shuffling_frame_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::IsEmpty;
using ::testing::SizeIs;

void describe_sampler(LaneRig& rig, std::uint64_t reservoir, const std::string& settings = "") {
  rig.add_source("frames", 1, {.capacity = 64, .bytes = 1 << 20});
  rig.add_stage(
      fmt::format("name: 'sampler' shuffling_frame_sampler {{ input: 'frames' "
                  "reservoir_size_per_thread: {} {} }}",
                  reservoir, settings));
  rig.add_sink("out", "sampler");
  rig.build();
}

std::vector<RigRecord> run(std::uint64_t reservoir, const std::vector<RigRecord>& frames,
                           const std::string& feed = "seed: 1") {
  LaneRig rig(feed);
  describe_sampler(rig, reservoir, "queue_capacity: 64");
  for (const RigRecord& frame : frames) rig.feed("frames", frame);
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  return rig.got("out");
}

TEST(FrameSampler, GivesBackEverythingAtTheEnd) {
  for (const std::uint64_t count : {0, 1, 5, 10, 11, 20, 100}) {
    EXPECT_EQ(sorted(texts(run(10, numbered(0, count)))), sorted(texts(numbered(0, count))))
        << count << " in, reservoir of 10";
  }
}

TEST(FrameSampler, GivesNothingBeforeItsReservoirIsFull) {
  LaneRig rig;
  describe_sampler(rig, 10);
  for (const RigRecord& frame : numbered(0, 10)) rig.feed("frames", frame);
  rig.run();
  EXPECT_THAT(rig.got("out"), IsEmpty());
  EXPECT_EQ(rig.counter("sampler", "frames_held"), 10U);
  for (const RigRecord& frame : numbered(10, 17)) rig.feed("frames", frame);
  rig.run();
  EXPECT_THAT(rig.got("out"), SizeIs(7)) << "one out for one in";
  EXPECT_EQ(rig.counter("sampler", "frames_held"), 10U);
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), SizeIs(17));
  EXPECT_EQ(rig.counter("sampler", "frames_held"), 0U);
}

TEST(FrameSampler, ChangesTheOrderAsTheSeedSays) {
  const std::vector<RigRecord> frames = numbered(0, 300);
  const std::vector<std::string> one = texts(run(50, frames, "seed: 1"));
  EXPECT_NE(one, texts(frames));
  EXPECT_EQ(texts(run(50, frames, "seed: 1")), one);
  EXPECT_NE(texts(run(50, frames, "seed: 2")), one);
}

TEST(FrameSampler, KeepsBytesAndLineageOfFramesOfAllSizes) {
  std::vector<RigRecord> frames;
  for (const std::size_t bytes : {0,    1,    7,    8,    500,  1095, 1096, 1097, 1191, 1192,
                                  1193, 1319, 1320, 1321, 1671, 1672, 1673, 5000, 8360, 8368}) {
    for (int copy = 0; copy < 10; ++copy) {
      RigRecord frame{.bytes = std::string(bytes, static_cast<char>('a' + copy))};
      frame.tag[0] = 1000 * frames.size();  // 40 bits of the chunk's identity are kept
      frame.tag[1] = frames.size();
      frames.push_back(std::move(frame));
    }
  }
  std::mt19937_64 random(4);
  std::shuffle(frames.begin(), frames.end(), random);
  const auto by_frame = [](const RigRecord& a, const RigRecord& b) { return a.tag[1] < b.tag[1]; };
  std::vector<RigRecord> got = run(30, frames);
  EXPECT_NE(got, frames);
  std::sort(got.begin(), got.end(), by_frame);
  std::sort(frames.begin(), frames.end(), by_frame);
  EXPECT_EQ(got, frames);
}

TEST(FrameSampler, SkipsWhatIsLargerThanAnyFrame) {
  LaneRig rig;
  describe_sampler(rig, 10);
  rig.feed("frames", {.bytes = "before"});
  rig.feed("frames", {.bytes = std::string(8417, 'x')});
  rig.feed("frames", {.bytes = "after"});
  rig.finish("frames");
  rig.run();
  EXPECT_EQ(sorted(texts(rig.got("out"))), (std::vector<std::string>{"after", "before"}));
  EXPECT_EQ(rig.counter("sampler", "frames_skipped"), 1U);
}

// In a steady state each held frame leaves with probability 1/R a step, so a frame waits R steps on
// the average, geometrically distributed: standard deviation about R. 20,000 frames, R = 100.
TEST(FrameSampler, HoldsEachFrameAsLongAsChanceSays) {
  constexpr double kReservoir = 100;
  constexpr std::uint64_t kFrames = 20'000;
  const std::vector<std::string> got = texts(run(100, numbered(0, kFrames), "seed: 5"));
  ASSERT_EQ(got.size(), kFrames);
  double sum = 0;
  double above_median = 0;
  double count = 0;
  for (std::size_t out = 0; out < kFrames - 200; ++out) {
    const double in = std::stod(got[out]);
    if (in < 1000 || in > kFrames - 2000) continue;  // beginning and end are another matter
    const double waited = static_cast<double>(out) + kReservoir - in;
    sum += waited;
    above_median += waited > kReservoir * std::log(2.0) ? 1 : 0;
    ++count;
  }
  EXPECT_NEAR(sum / count, kReservoir, 4 * kReservoir / std::sqrt(count));
  EXPECT_NEAR(above_median / count, 0.5, 0.02);
}

// What is left at the end comes in a random order: over 400 runs of a reservoir of 8 each frame is
// the first to leave equally often; chi-square with 7 degrees of freedom, 99.9 % lie below 24.3.
TEST(FrameSampler, EmptiesItsReservoirInRandomOrder) {
  std::vector<int> first(8);
  for (int seed = 1; seed <= 400; ++seed) {
    ++first[std::stoul(run(8, numbered(0, 8), fmt::format("seed: {}", seed)).front().bytes)];
  }
  double chi_square = 0;
  for (const int count : first) chi_square += (count - 50.0) * (count - 50.0) / 50;
  EXPECT_LT(chi_square, 24.3);
}

// The arena is laid out for frames of the usual size. Larger ones make it grow, and nothing is
// lost.
TEST(FrameSampler, GrowsForLargeFrames) {
  LaneRig rig;
  describe_sampler(rig, 3000);
  const std::uint64_t before = rig.arena_bytes("sampler");
  for (int i = 0; i < 4000; ++i) {
    rig.feed("frames", {.bytes = std::to_string(i) + std::string(8000, ' ')});
  }
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), SizeIs(4000));
  EXPECT_GT(rig.arena_bytes("sampler"), before);
}

// However the sizes of frames change over the life of a feed, it never runs out of places.
TEST(FrameSampler, HasRoomForAnyChangeOfSizes) {
  LaneRig rig;
  describe_sampler(rig, 2000);
  std::size_t fed = 0;
  for (const std::size_t bytes : {8000, 100, 1600, 1300, 1150, 8000, 100}) {
    for (int i = 0; i < 3000; ++i, ++fed) rig.feed("frames", {.bytes = std::string(bytes, 'x')});
    rig.run();
    ASSERT_EQ(rig.got("out").size(), fed - 2000)
        << "stuck at frames of " << bytes << " bytes: " << rig.note("sampler");
  }
}

TEST(FrameSampler, NeedsNoMoreMemoryForManySwaps) {
  LaneRig rig;
  describe_sampler(rig, 200);
  StateLayout layout;
  const ShufflingFrameSampler::State state(layout, 200);
  const auto places_bytes = [&] { return rig.state_word("sampler", state.places_bytes.offset); };
  std::mt19937_64 random(8);
  std::uniform_int_distribution<std::size_t> sizes(1000, 1700);
  const auto feed = [&](int count) {
    for (int i = 0; i < count; ++i) rig.feed("frames", {.bytes = std::string(sizes(random), 'x')});
    rig.run();
  };
  feed(5000);
  const std::uint64_t settled = places_bytes();
  EXPECT_GT(settled, 200 * 1104U);
  feed(20'000);
  // The share of a size class wanders a little; its places are never given to another.
  EXPECT_LT(places_bytes(), settled + settled / 10);
  EXPECT_EQ(rig.got("out").size(), 25'000U - 200);
}

TEST(FrameSampler, GoesOnAfterARestartAsIfNothingHadBeen) {
  const auto run_once = [](std::uint64_t seed, double restarts) {
    LaneRig rig("seed: 3");
    describe_sampler(rig, 40, "queue_capacity: 5");
    std::mt19937_64 sizes(1);
    for (int i = 0; i < 400; ++i) {
      rig.feed("frames", {.bytes = std::to_string(i) + std::string(sizes() % 1800, '.')});
    }
    rig.finish("frames");
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    return texts(rig.got("out"));
  };
  const std::vector<std::string> undisturbed = run_once(0, 0);
  ASSERT_THAT(undisturbed, SizeIs(400));
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_EQ(run_once(seed, 0.3), undisturbed) << "seed " << seed;
  }
}

TEST(FrameSamplerDrain, KeepsItsReservoir) {
  LaneRig rig;
  describe_sampler(rig, 10);
  for (const RigRecord& frame : numbered(0, 15)) rig.feed("frames", frame);
  rig.run();
  rig.want(shm::LaneDesire::kDrain);
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), SizeIs(5));
}

// Two lanes, games of very different lengths dealt out in turn: lane 0 gets ten times what lane 1
// gets. Neither may wait for the other with the rest of the feed waiting for both.
TEST(FrameSamplerLanes, DoNotWaitForEachOther) {
  for (const char* dispatch : {"ORDERED", "RELAXED"}) {
    LaneRig rig(fmt::format("seed: 1 feed_output {{ dispatch: {} }}", dispatch));
    describe_sampler(rig, 50, "threads: 2 queue_capacity: 4");
    std::uint64_t count = 0;
    for (int game = 0; game < 60; ++game) {
      for (int i = 0; i < (game % 2 == 0 ? 40 : 4); ++i) {
        rig.feed("frames", {.bytes = std::to_string(count++)}, false);
      }
      rig.end_unit("frames");
    }
    rig.finish("frames");
    rig.run();
    EXPECT_TRUE(rig.all_finished()) << dispatch;
    EXPECT_EQ(sorted(texts(rig.got("out"))), sorted(texts(numbered(0, count)))) << dispatch;
  }
}

}  // namespace
}  // namespace ringfeed
