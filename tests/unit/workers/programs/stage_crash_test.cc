// Lanes of the Lc0 stages and of those of parallel text killed in the middle of a step, at every
// failpoint: the batches are those of a run in which nobody died. Needs failpoints (presets debug
// and asan).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "ringfeed/shm/failpoint.h"
#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"
#include "workers/bitext/bitext_collator.h"
#include "workers/lc0/tensor_generator.h"

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

void describe_crashing(LaneRig& rig, const std::string& directory) {
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
std::vector<std::uint64_t> positions_of_all(const std::vector<RigBatch>& batches) {
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
  describe_crashing(undisturbed, directory.path());
  undisturbed.run();
  ASSERT_TRUE(undisturbed.all_finished());
  const std::vector<std::uint64_t> expected = positions_of_all(undisturbed.batches());
  ASSERT_EQ(sorted(expected), numbers(0, kPositions)) << "two uses at rate 1/2 give each once";

  // Passed for every word of the list; the others once a round.
  const bool in_the_list = GetParam() == std::string_view("shm.journal.carry_out");
  std::uint64_t deaths = 0;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    LaneRig rig("epochs: 2 seed: 3");
    describe_crashing(rig, directory.path());
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
    ASSERT_EQ(positions_of_all(rig.batches()), expected) << "seed " << seed;
    for (const char* counter : {"chunks_read", "skipped_damaged", "skipped_record"}) {
      EXPECT_EQ(rig.counter("pool.read", counter), undisturbed.counter("pool.read", counter))
          << counter;
    }
    EXPECT_EQ(rig.counter("tensors", "rows"), kPositions);
  }
  EXPECT_GT(deaths, 0U) << "nobody died at " << GetParam();
  RecordProperty("deaths", static_cast<int>(deaths));
}

// The same with stages between pool and unpacker, on real games of which one is damaged.
TEST_P(StageCrash, AnywhereBetweenPoolAndUnpackerLeavesTheBatchesAsTheyWere) {
  TempDir directory;
  for (const SampleGame& sample : kSampleGames) {
    Bytes records = sample_records(sample);
    records.resize(std::min<std::size_t>(records.size(), 20 * formats::kV6RecordBytes));
    std::string text(reinterpret_cast<const char*>(records.data()), records.size());
    directory.write(fmt::format("{}.gz", sample.frame_count), gzip_text(text));
    if (sample.frame_count != 26) continue;
    text[formats::kV6RecordBytes + formats::v6::kRule50] = 101;
    directory.write("damaged.gz", gzip_text(text));
  }
  const auto describe = [&directory](LaneRig& rig) {
    rig.add_stage(
        fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory.path()));
    rig.add_stage("name: 'loader' chunk_source_loader { input: 'provider' queue_bytes: 65536 }");
    rig.add_stage(
        "name: 'pool' shuffling_chunk_pool { input: 'loader' chunk_pool_size: 60 "
        "queue_bytes: 524288 queue_capacity: 2 }");
    rig.add_stage(
        "name: 'validator' chunk_validator { input: 'pool' threads: 2 queue_bytes: 524288 "
        "queue_capacity: 1 }");
    rig.add_stage(
        "name: 'rescorer' chunk_rescorer { input: 'validator' threads: 2 queue_bytes: 524288 "
        "queue_capacity: 1 policy_temperature: 1.25 deblunder_threshold: 0.1 "
        "deblunder_width: 0.06 }");
    rig.add_stage(
        "name: 'unpacker' chunk_unpacker { input: 'rescorer' position_sampling_rate: 0.5 "
        "queue_bytes: 65536 }");
    rig.add_stage(fmt::format(
        "name: 'tensors' tensor_generator {{ input: 'unpacker' batch_size: {} }}", kBatch));
    rig.build();
  };
  LaneRig undisturbed("epochs: 2 seed: 3");
  describe(undisturbed);
  undisturbed.run();
  ASSERT_TRUE(undisturbed.all_finished());
  ASSERT_EQ(undisturbed.counter("validator", "rejected_rule50"), 2U);
  ASSERT_EQ(undisturbed.counter("rescorer", "chunks"), 8U);
  ASSERT_EQ(undisturbed.counter("tensors", "rows"), 80U);

  const bool in_the_list = GetParam() == std::string_view("shm.journal.carry_out");
  std::uint64_t deaths = 0;
  LaneRig rig("epochs: 2 seed: 3");
  describe(rig);
  std::mt19937_64 random(4);
  for (int idle = 0; idle < 3;) {
    bool moved = false;
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      const std::string& node = rig.node_of(lane);
      if ((node == "validator" || node == "rescorer") && random() % 3 == 0) {
        const bool died = rig.die(lane, GetParam(), in_the_list ? 1 + random() % 4 : 1);
        deaths += died ? 1 : 0;
        moved = moved || died;
      }
      moved = rig.round(lane) || moved;
    }
    idle = moved ? 0 : idle + 1;
  }
  ASSERT_TRUE(rig.all_finished());
  EXPECT_EQ(rig.batches().size(), undisturbed.batches().size());
  for (std::size_t i = 0; i < rig.batches().size(); ++i) {
    EXPECT_EQ(rig.batches()[i].bytes, undisturbed.batches()[i].bytes) << "batch " << i;
  }
  for (const char* counter : {"chunks", "frames", "rejected_rule50"}) {
    EXPECT_EQ(rig.counter("validator", counter), undisturbed.counter("validator", counter));
  }
  for (const char* counter : {"chunks", "frames", "blunders"}) {
    EXPECT_EQ(rig.counter("rescorer", counter), undisturbed.counter("rescorer", counter));
  }
  // Only lanes of the tensor stage take slots back.
  const bool never = GetParam() == std::string_view("shm.feed.retired");
  EXPECT_EQ(deaths == 0, never) << "deaths at " << GetParam() << ": " << deaths;
}

// Two branches of one splitter, one of them drawn by weight, joined again.
TEST_P(StageCrash, AnywhereInBranchesLeavesTheBatchesAsTheyWere) {
  TempDir directory;
  write_files(directory);
  const auto describe = [&directory](LaneRig& rig) {
    rig.add_stage(
        fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory.path()));
    rig.add_stage("name: 'loader' chunk_source_loader { input: 'provider' queue_bytes: 65536 }");
    rig.add_stage(
        "name: 'split' chunk_source_splitter { input: 'loader' outputs { name: 'a' } "
        "outputs { name: 'b' } queue_capacity: 64 queue_bytes: 65536 }");
    rig.add_stage(
        "name: 'pool' shuffling_chunk_pool { input: 'split.a' chunk_pool_size: 60 threads: 2 "
        "position_sampling { } queue_bytes: 262144 queue_capacity: 2 }");
    rig.add_stage(
        "name: 'drawn' chunk_unpacker { input: 'pool' position_sampling_rate: 1 "
        "queue_bytes: 65536 }");
    rig.add_stage(
        "name: 'extract' simple_chunk_extractor { input: 'split.b' threads: 2 "
        "queue_bytes: 262144 queue_capacity: 2 }");
    rig.add_stage(
        "name: 'once' chunk_unpacker { input: 'extract' position_sampling_rate: 1 "
        "queue_bytes: 65536 }");
    rig.add_stage(
        "name: 'join' join_positions { input: 'drawn' input: 'once' queue_bytes: 65536 }");
    rig.add_stage(
        fmt::format("name: 'tensors' tensor_generator {{ input: 'join' batch_size: {} }}", kBatch));
    rig.build();
  };
  LaneRig undisturbed("epochs: 2 seed: 3");
  describe(undisturbed);
  undisturbed.run();
  ASSERT_TRUE(undisturbed.all_finished());
  const std::vector<std::uint64_t> expected = positions_of_all(undisturbed.batches());
  ASSERT_GT(undisturbed.counter("pool", "weighted_rejected"), 0U);
  ASSERT_GT(undisturbed.counter("extract", "chunks_processed"), 10U);

  const bool in_the_list = GetParam() == std::string_view("shm.journal.carry_out");
  const std::set<std::string> victims = {"split",   "pool", "pool.weigh",
                                         "extract", "join", "extract.read"};
  std::uint64_t deaths = 0;
  LaneRig rig("epochs: 2 seed: 3");
  describe(rig);
  std::mt19937_64 random(5);
  for (int idle = 0; idle < 3;) {
    bool moved = false;
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      if (victims.contains(rig.node_of(lane)) && random() % 6 == 0) {
        const bool died = rig.die(lane, GetParam(), in_the_list ? 1 + random() % 6 : 1);
        deaths += died ? 1 : 0;
        moved = moved || died;
      }
      moved = rig.round(lane) || moved;
    }
    idle = moved ? 0 : idle + 1;
  }
  ASSERT_TRUE(rig.all_finished());
  EXPECT_EQ(positions_of_all(rig.batches()), expected);
  for (const char* counter : {"draws", "weighted_rejected", "chunks_dropped"}) {
    EXPECT_EQ(rig.counter("pool", counter), undisturbed.counter("pool", counter)) << counter;
  }
  for (const char* counter : {"chunks_processed", "sources_processed"}) {
    EXPECT_EQ(rig.counter("extract", counter), undisturbed.counter("extract", counter)) << counter;
  }
  const bool never = GetParam() == std::string_view("shm.feed.retired");
  EXPECT_EQ(deaths == 0, never) << "deaths at " << GetParam() << ": " << deaths;
}
// What trainers see of batches of parallel text: the arrays, without what lies between them.
std::vector<std::string> arrays_of(const DataLoaderConfig& feed,
                                   const std::vector<RigBatch>& batches) {
  BatchSchema schema;
  const StageViews stages(feed);
  bitext_collator_type().batch(stages[feed.stages(feed.stages_size() - 1).name()], schema);
  std::vector<std::string> all;
  for (const RigBatch& batch : batches) {
    std::string& seen = all.emplace_back();
    for (const TensorSpec& tensor : schema.tensors()) {
      std::uint64_t bytes = tensor.dtype() == "int32" ? 4 : 8;
      for (const std::int64_t size : tensor.shape()) {
        bytes *= size == -1 ? batch.rows
                 : size < 0 ? batch.ragged[static_cast<std::size_t>(-2 - size)]
                            : static_cast<std::uint64_t>(size);
      }
      seen.append(reinterpret_cast<const char*>(batch.bytes.data()) + tensor.offset(), bytes);
    }
  }
  return all;
}

// Directions, their plans in two kinds of epochs, batches on two lanes.
TEST_P(StageCrash, AnywhereInParallelTextLeavesTheBatchesAsTheyWere) {
  const std::string data = RINGFEED_SOURCE_DIR "/tests/data/fairseq/inputs/data_bin";
  const std::string source = fmt::format(
      "name: 'bitext' bitext_source {{ compat: NLLB directory: '{0}/shard000' "
      "directory: '{0}/shard001' lang_pairs: 'eng_Latn-tur_Latn' lang_pairs: 'eng_Latn-hin_Deva' "
      "lang_pairs: 'fra_Latn-eng_Latn' encoder_langtok: SRC decoder_langtok: true "
      "queue_capacity: 2 queue_bytes: 65536 }}",
      data);
  const std::string planner =
      "name: 'plans' epoch_planner { input: 'bitext' compat: NLLB max_tokens: 300 world_size: 2 "
      "sampling_method: TEMPERATURE virtual_epoch_size: 250 epoch_remainder_batch: true "
      "queue_capacity: 3 }";
  const std::string collator = "name: 'batches' bitext_collator { input: 'plans' threads: 2 }";
  const std::string feed =
      fmt::format("epochs: 4 seed: 3 stages {{ {} }} stages {{ {} }} stages {{ {} }}", source,
                  planner, collator);
  const auto describe = [&](LaneRig& rig) {
    rig.add_stage(source);
    rig.add_stage(planner);
    rig.add_stage(collator);
    rig.build();
  };
  LaneRig undisturbed(feed);
  describe(undisturbed);
  ASSERT_TRUE(undisturbed.run_until([&] { return undisturbed.all_finished(); }));
  const std::vector<std::string> expected = arrays_of(undisturbed.config(), undisturbed.batches());
  ASSERT_GT(expected.size(), 60U);

  const bool in_the_list = GetParam() == std::string_view("shm.journal.carry_out");
  std::uint64_t deaths = 0;
  LaneRig rig(feed);
  describe(rig);
  std::mt19937_64 random(7);
  ASSERT_TRUE(rig.run_until([&] {
    for (std::size_t lane = 0; lane < rig.lane_count(); ++lane) {
      if (random() % 12 == 0) {
        deaths += rig.die(lane, GetParam(), in_the_list ? 1 + random() % 12 : 1) ? 1 : 0;
      }
      rig.round(lane);
    }
    return rig.all_finished();
  }));
  EXPECT_EQ(arrays_of(rig.config(), rig.batches()), expected);
  for (const char* counter : {"batches", "stand_ins", "plans", "sentences_repeated"}) {
    EXPECT_EQ(rig.counter("plans", counter), undisturbed.counter("plans", counter)) << counter;
  }
  EXPECT_GT(deaths, 0U) << "nobody died at " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(EveryFailpoint, StageCrash,
                         ::testing::Values("runtime.lane.attach", "runtime.lane.recovered",
                                           "shm.journal.before_commit", "shm.journal.after_commit",
                                           "shm.journal.carry_out", "shm.journal.carried_out",
                                           "shm.feed.retired"));

}  // namespace
}  // namespace ringfeed
