// The six Lc0 stages together, from files to batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stamp_watch.h"
#include "workers/lc0/tensor_generator.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::SizeIs;

struct Lanes {
  int loaders = 1;
  int readers = 1;
  int unpackers = 1;
  int samplers = 1;
  int generators = 1;
  friend void PrintTo(const Lanes& lanes, std::ostream* out) {
    *out << lanes.loaders << ' ' << lanes.readers << ' ' << lanes.unpackers << ' ' << lanes.samplers
         << ' ' << lanes.generators;
  }
};

constexpr std::uint32_t kBatch = 16;

void describe_pipeline(LaneRig& rig, const std::string& directory, const Lanes& lanes,
                       const std::string& rate = "1") {
  rig.add_stage(
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory));
  rig.add_stage(fmt::format(
      "name: 'loader' chunk_source_loader {{ input: 'provider' threads: {} queue_bytes: 65536 }}",
      lanes.loaders));
  rig.add_stage(
      fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'loader' threads: {} "
                  "chunk_pool_size: 1000 queue_bytes: 1048576 queue_capacity: 3 }}",
                  lanes.readers));
  rig.add_stage(
      fmt::format("name: 'unpacker' chunk_unpacker {{ input: 'pool' threads: {} "
                  "position_sampling_rate: {} queue_bytes: 65536 }}",
                  lanes.unpackers, rate));
  rig.add_stage(
      fmt::format("name: 'sampler' shuffling_frame_sampler {{ input: 'unpacker' threads: {} "
                  "reservoir_size_per_thread: 60 queue_bytes: 65536 }}",
                  lanes.samplers));
  rig.add_stage(fmt::format(
      "name: 'tensors' tensor_generator {{ input: 'sampler' threads: {} batch_size: {} }}",
      lanes.generators, kBatch));
  rig.build();
}

// Tars and loose games of 1 to 29 positions, 600 in all, each position with a number of its own in
// its plies_left; among them files that cannot be used.
class Files {
 public:
  Files() {
    std::mt19937_64 random(12);
    std::uint64_t next = 0;
    for (int file = 0; next < kPositions; ++file) {
      if (file % 3 == 0) {
        directory_.write(fmt::format("{:03}.gz", file), gzip_text(some_game(random, next)));
        continue;
      }
      TarMaker tar;
      for (int game = 0; game < 4 && next < kPositions; ++game) {
        tar.add(fmt::format("{}.gz", game), gzip_text(some_game(random, next)));
        if (game == 1) tar.add("bad.gz", "neither gzip nor records");
      }
      directory_.write(fmt::format("sub{}/{:03}.tar", file % 2, file), tar.end().text());
    }
    directory_.write("notes.txt", "not data");
    directory_.write("002-cut.gz", gzip_text(game(0, 5)).substr(0, 60));
    directory_.write("zzz-empty.tar", "");
  }
  static constexpr std::uint64_t kPositions = 600;
  [[nodiscard]] const std::string& path() const { return directory_.path(); }

 private:
  static std::string some_game(std::mt19937_64& random, std::uint64_t& next) {
    const std::uint64_t count = std::min<std::uint64_t>(1 + random() % 29, kPositions - next);
    std::string records;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string record = lc0_record(next + i);
      const auto number = static_cast<float>(next + i);
      std::memcpy(record.data() + formats::v6::kPliesLeft, &number, sizeof number);
      records += record;
    }
    next += count;
    return records;
  }
  TempDir directory_;
};

// The positions of the batches, in order: result_m of the values is plies_left.
std::vector<std::uint64_t> positions_read(const std::vector<RigBatch>& batches) {
  const BatchOffsets offsets(kBatch);
  std::vector<std::uint64_t> all;
  for (const RigBatch& batch : batches) {
    for (std::uint32_t row = 0; row < batch.rows; ++row) {
      float number = 0;
      std::memcpy(&number, batch.bytes.data() + offsets.values + row * 72 + 8, sizeof number);
      all.push_back(static_cast<std::uint64_t>(number));
    }
  }
  return all;
}

class PipelineLanes : public ::testing::TestWithParam<Lanes> {};

// Same seed, same files: the same batches, bit for bit, whatever the lanes, the order of their
// rounds, and the restarts.
TEST_P(PipelineLanes, GiveEachPositionOnceAndTheSameBatches) {
  const Files files;
  const auto run = [&](const Lanes& lanes, std::uint64_t seed, double restarts) {
    LaneRig rig("epochs: 1 seed: 3");
    describe_pipeline(rig, files.path(), lanes);
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    return positions_read(rig.batches());
  };
  const std::vector<std::uint64_t> one = run({}, 0, 0);
  ASSERT_EQ(sorted(one), numbers(0, Files::kPositions));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    ASSERT_EQ(run(GetParam(), seed, seed % 2 == 0 ? 0.0 : 0.1), one) << "seed " << seed;
  }
}
INSTANTIATE_TEST_SUITE_P(Lanes, PipelineLanes,
                         ::testing::Values(Lanes{}, Lanes{.loaders = 3}, Lanes{.readers = 2},
                                           Lanes{.unpackers = 3}, Lanes{.generators = 2},
                                           Lanes{2, 3, 2, 1, 2}));

// What a snapshot relies upon (stamps.h), in the middle of anything the stages do.
TEST(Pipeline, StampsEveryPageAndSlotThatItChanges) {
  const Files files;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    LaneRig rig("epochs: 1 seed: 3");
    describe_pipeline(rig, files.path(), {.loaders = 2, .readers = 2, .generators = 2});
    std::mt19937_64 random(seed);
    std::vector<StampWatch> watches;
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) watches.emplace_back(rig, lane);
    std::uint32_t generation = 0;
    std::uint64_t waited = 0;  // rounds without anything moving
    while (!rig.all_finished() && waited < 1000) {
      const std::size_t lane = random() % rig.lane_count();
      if (random() % 50 == 0) rig.restart(lane);
      if (random() % 20 == 0) {
        ++generation;
        for (std::size_t i = 0; i < rig.lane_count(); ++i) rig.order_generation(i, generation);
      }
      if (random() % 10 == 0) {
        ASSERT_EQ(watches[lane].mark(), "") << "seed " << seed;
      }
      waited = rig.round(lane) ? 0 : waited + 1;
      static_cast<void>(rig.batches());
    }
    EXPECT_TRUE(rig.all_finished());
    std::map<std::string, std::uint64_t> changed;
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      EXPECT_EQ(watches[lane].mark(), "") << "seed " << seed;
      changed[rig.node_of(lane)] += watches[lane].changed();
    }
    // Those that have state of their own.
    for (const char* node : {"provider", "pool", "sampler", "tensors"}) {
      EXPECT_GT(changed[node], 0U) << node;
    }
  }
}

TEST(Pipeline, GivesEachPositionOnceWithSeveralReservoirs) {
  const Files files;
  for (const char* dispatch : {"ORDERED", "RELAXED"}) {
    LaneRig rig(fmt::format("epochs: 1 seed: 3 feed_output {{ dispatch: {} }}", dispatch));
    describe_pipeline(rig, files.path(), {.unpackers = 2, .samplers = 3});
    rig.run();
    EXPECT_TRUE(rig.all_finished()) << dispatch;
    EXPECT_EQ(sorted(positions_read(rig.batches())), numbers(0, Files::kPositions)) << dispatch;
  }
}

TEST(Pipeline, GivesEachPositionOnceWhenRelaxed) {
  const Files files;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    LaneRig rig("epochs: 1 seed: 3 feed_output { dispatch: RELAXED }");
    describe_pipeline(rig, files.path(), {2, 2, 2, 2, 2});
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, 0.1);
    ASSERT_TRUE(rig.all_finished()) << "seed " << seed;
    ASSERT_EQ(sorted(positions_read(rig.batches())), numbers(0, Files::kPositions))
        << "seed " << seed;
  }
}

// At rate 1/4 over four epochs each position comes once: the uses of a chunk are disjoint.
TEST(Pipeline, GivesEachPositionOnceInAsManyEpochsAsTheRateSays) {
  const Files files;
  LaneRig rig("epochs: 4 seed: 3");
  describe_pipeline(rig, files.path(), {.readers = 2, .unpackers = 2}, "0.25");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(sorted(positions_read(rig.batches())), numbers(0, Files::kPositions));
}

TEST(PipelineThreads, GiveEachPositionOnce) {
  const Files files;
  LaneRig rig("epochs: 1 seed: 3");
  describe_pipeline(rig, files.path(), {2, 2, 2, 1, 2});
  EXPECT_TRUE(rig.run_in_threads());
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(sorted(positions_read(rig.batches())), numbers(0, Files::kPositions));
}

TEST(Pipeline, ReadsTheRealGames) {
  TempDir directory;
  std::filesystem::copy_file(sample_tar_path(), directory.path("sample.tar"));
  LaneRig rig("epochs: 1");
  describe_pipeline(rig, directory.path(), {});
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(positions_read(rig.batches()), SizeIs(324));
  EXPECT_EQ(rig.counter("pool.read", "chunks_read"), 4U);
}

}  // namespace
}  // namespace ringfeed
