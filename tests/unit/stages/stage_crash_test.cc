// Lanes of the six Lc0 stages killed in the middle of a step, at every failpoint: the batches are
// those of a run in which nobody died. Needs failpoints (presets debug and asan).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ringfeed/shm/failpoint.h"
#include "tests/support/tar_maker.h"
#include "tests/unit/stages/stage_data.h"
#include "workers/stages/tensor_generator.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

constexpr std::uint32_t kBatch = 8;
constexpr std::uint64_t kPositions = 150;

void write_files(const TempDir& directory) {
  std::uint64_t next = 0;
  for (int file = 0; next < kPositions; ++file) {
    TarMaker tar;
    for (int game_number = 0; game_number < 3 && next < kPositions; ++game_number) {
      const std::uint64_t count = std::min<std::uint64_t>(1 + next % 9, kPositions - next);
      tar.add(fmt::format("{}.gz", game_number), gzip_text(game(next, count)));
      if (game_number == 1) tar.add("bad.gz", "neither gzip nor records");
      next += count;
    }
    directory.write(fmt::format("{:03}.tar", file), tar.end().text());
  }
}

void describe(LaneRig& rig, const std::string& directory) {
  rig.add_stage(
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory));
  rig.add_stage("name: 'loader' chunk_source_loader { input: 'provider' queue_bytes: 65536 }");
  rig.add_stage(
      "name: 'pool' shuffling_chunk_pool { input: 'loader' chunk_pool_size: 60 threads: 2 "
      "queue_bytes: 262144 queue_capacity: 3 }");
  rig.add_stage(
      "name: 'unpacker' chunk_unpacker { input: 'pool' position_sampling_rate: 0.5 "
      "queue_bytes: 65536 }");
  rig.add_stage(
      "name: 'sampler' shuffling_frame_sampler { input: 'unpacker' reservoir_size_per_thread: 25 "
      "queue_bytes: 65536 }");
  rig.add_stage(fmt::format(
      "name: 'tensors' tensor_generator {{ input: 'sampler' threads: 2 batch_size: {} }}", kBatch));
  rig.build();
}

// plies_left of each row (result_m of the values).
std::vector<std::uint64_t> positions(const std::vector<RigBatch>& batches) {
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

class StageCrash : public ::testing::TestWithParam<const char*> {};

TEST_P(StageCrash, AnywhereInAStepLeavesTheBatchesAsTheyWere) {
  TempDir directory;
  write_files(directory);
  LaneRig undisturbed("epochs: 2 seed: 3");
  describe(undisturbed, directory.path());
  undisturbed.run();
  ASSERT_TRUE(undisturbed.all_finished());
  const std::vector<std::uint64_t> expected = positions(undisturbed.batches());
  ASSERT_EQ(sorted(expected), numbers(0, kPositions)) << "two uses at rate 1/2 give each once";

  // Passed for every word of the list; the others once a round.
  const bool in_the_list = GetParam() == std::string_view("shm.journal.carry_out");
  std::uint64_t deaths = 0;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    LaneRig rig("epochs: 2 seed: 3");
    describe(rig, directory.path());
    std::mt19937_64 random(seed);
    for (int idle = 0; idle < 3;) {
      bool moved = false;
      for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
        if (random() % 12 == 0) {
          const bool died = rig.die(lane, GetParam(), in_the_list ? 1 + random() % 12 : 1);
          deaths += died ? 1 : 0;
          moved = moved || died;
        }
        moved = rig.round(lane) || moved;
      }
      idle = moved ? 0 : idle + 1;
    }
    ASSERT_TRUE(rig.all_finished()) << "seed " << seed;
    ASSERT_EQ(positions(rig.batches()), expected) << "seed " << seed;
    for (const char* counter : {"chunks_read", "skipped_damaged", "skipped_record"}) {
      EXPECT_EQ(rig.counter("pool.read", counter), undisturbed.counter("pool.read", counter))
          << counter;
    }
    EXPECT_EQ(rig.counter("tensors", "rows"), kPositions);
  }
  EXPECT_GT(deaths, 0U) << "nobody died at " << GetParam();
  RecordProperty("deaths", static_cast<int>(deaths));
}
INSTANTIATE_TEST_SUITE_P(EveryFailpoint, StageCrash,
                         ::testing::Values("runtime.lane.attach", "runtime.lane.recovered",
                                           "shm.journal.before_commit", "shm.journal.after_commit",
                                           "shm.journal.carry_out", "shm.journal.carried_out",
                                           "shm.feed.retired"));

}  // namespace
}  // namespace ringfeed
