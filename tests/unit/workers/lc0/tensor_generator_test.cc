// The specification of workers/lc0/tensor_generator.h.
#include "workers/lc0/tensor_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/sha256.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint64_t kPlanesBytes = formats::kPlanesRowFloats * 4;
constexpr std::uint64_t kPolicyBytes = formats::kPolicyRowFloats * 4;
constexpr std::uint64_t kValuesBytes = formats::kValuesRowFloats * 4;

void describe_generator(LaneRig& rig, std::uint32_t batch_size, const std::string& settings = "",
                        std::uint32_t sources = 1) {
  rig.add_source("frames", sources, {.capacity = 64, .bytes = 1 << 20});
  rig.add_stage(
      fmt::format("name: 'tensors' tensor_generator {{ input: 'frames' batch_size: {} {} }}",
                  batch_size, settings));
  rig.build();
}

RigRecord frame(std::uint64_t id) { return {.bytes = pack_text(lc0_record(id)), .tag = {id, 0}}; }

std::vector<std::uint32_t> row_counts(const std::vector<RigBatch>& batches) {
  std::vector<std::uint32_t> rows;
  for (const RigBatch& batch : batches) rows.push_back(batch.rows);
  return rows;
}

// The numbers of the records in a batch, read from plane 0 of each row.
std::vector<std::uint64_t> ids_of(const RigBatch& batch) {
  std::vector<std::uint64_t> ids;
  for (std::uint32_t row = 0; row < batch.rows; ++row) {
    std::uint64_t id = 0;
    for (std::uint64_t square = 0; square < 64; ++square) {
      float value = 0;
      std::memcpy(&value, batch.bytes.data() + row * kPlanesBytes + 4 * square, 4);
      if (value != 0) id |= std::uint64_t{1} << square;
    }
    ids.push_back(id);
  }
  return ids;
}
// The bit of a plane that becomes square 0 of the row is found once, with a record of one bit.
std::vector<std::uint64_t> ids_of(const std::vector<RigBatch>& batches) {
  std::vector<std::uint64_t> ids;
  for (const RigBatch& batch : batches) {
    for (const std::uint64_t id : ids_of(batch)) ids.push_back(id);
  }
  return ids;
}
// What ids_of() reads for record `id`, by the formats' own tensors.
std::uint64_t seen_id(std::uint64_t id) {
  formats::Lc0TensorWriter writer;
  const std::string packed = pack_text(lc0_record(id));
  RigBatch batch;
  batch.rows = 1;
  std::vector<float> memory(formats::kPlanesRowFloats + formats::kPolicyRowFloats +
                            formats::kValuesRowFloats + 64);
  auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  auto* planes = reinterpret_cast<float*>((address + 63) / 64 * 64);
  std::vector<float> rest(formats::kPolicyRowFloats + formats::kValuesRowFloats + 64);
  address = reinterpret_cast<std::uintptr_t>(rest.data());
  auto* policy = reinterpret_cast<float*>((address + 63) / 64 * 64);
  RF_CHECK(writer.write_row(
               std::as_bytes(std::span(packed)),
               {.planes = planes, .policy = policy, .values = policy + formats::kPolicyRowFloats},
               0) == formats::RowStatus::kWritten,
           id);
  formats::store_fence();
  batch.bytes.resize(kPlanesBytes);
  std::memcpy(batch.bytes.data(), planes, kPlanesBytes);
  return ids_of(batch).front();
}
std::vector<std::uint64_t> seen_ids(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> ids;
  for (std::uint64_t id = begin; id < end; ++id) ids.push_back(seen_id(id));
  return ids;
}

// The digests that tests/data/README.md gives, through rings, steps and slots.
TEST(TensorGenerator, GivesTheDigestsOfTheRealGame) {
  const SampleGame& game = kSampleGames[3];
  ASSERT_STREQ(game.name, "lc0-data-sample/training.1387357298.gz");
  const Bytes records = sample_records(game);
  ASSERT_EQ(records.size(), 133 * formats::kV6RecordBytes);
  for (const std::uint32_t batch_size : {133U, 200U, 50U}) {
    LaneRig rig;
    describe_generator(rig, batch_size);
    for (std::size_t i = 0; i < 133; ++i) {
      const auto* at = reinterpret_cast<const char*>(records.data()) + i * formats::kV6RecordBytes;
      rig.feed("frames", {.bytes = pack_text({at, formats::kV6RecordBytes})});
    }
    rig.finish("frames");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    const BatchOffsets offsets(batch_size);
    Bytes planes;
    Bytes policy;
    Bytes values;
    const auto append = [](Bytes& to, const RigBatch& batch, std::uint64_t offset,
                           std::uint64_t bytes) {
      const auto begin = batch.bytes.begin() + static_cast<std::ptrdiff_t>(offset);
      to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes));
    };
    for (const RigBatch& batch : rig.batches()) {
      append(planes, batch, offsets.planes, batch.rows * kPlanesBytes);
      append(policy, batch, offsets.policy, batch.rows * kPolicyBytes);
      append(values, batch, offsets.values, batch.rows * kValuesBytes);
    }
    EXPECT_EQ(sha256(planes), "aab7e3bed1f637b781c3b257dc92a030119409bc952a73a7b58ca13a19066e98");
    EXPECT_EQ(sha256(policy), "d13e6fd21a8d2947b7dd2e381da30a8b08bb837fad0dd85f3866dd885388568b");
    EXPECT_EQ(sha256(values), "9afdc3df3a3af8b1c7347a8ba30c27eed6d636b7ff2d14d47593d228e8344f2c");
  }
}

TEST(TensorGenerator, CutsTheFramesIntoBatchesInOrder) {
  LaneRig rig;
  describe_generator(rig, 4);
  for (std::uint64_t id = 0; id < 10; ++id) rig.feed("frames", frame(id));
  rig.run();
  EXPECT_THAT(row_counts(rig.batches()), ElementsAre(4, 4)) << "two frames wait for more";
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(row_counts(rig.batches()), ElementsAre(4, 4, 2));
  EXPECT_EQ(ids_of(rig.batches()), seen_ids(0, 10));
  EXPECT_EQ(rig.counter("tensors", "rows"), 10U);
  EXPECT_EQ(rig.counter("tensors", "batches"), 3U);
}

TEST(TensorGenerator, DropsTheRemainderIfAsked) {
  LaneRig rig("drop_remainder: true");
  describe_generator(rig, 4);
  for (std::uint64_t id = 0; id < 10; ++id) rig.feed("frames", frame(id));
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(row_counts(rig.batches()), ElementsAre(4, 4));
  EXPECT_EQ(rig.counter("tensors", "rows_dropped"), 2U);
}

TEST(TensorGenerator, EndsWithoutABatchIfNothingCame) {
  LaneRig rig;
  describe_generator(rig, 4);
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.batches(), IsEmpty());
}

// Batches in different slots as long as somebody holds them, also if several are made in one round.
TEST(TensorGenerator, NeverWritesIntoASlotThatIsHeld) {
  for (const std::uint32_t batch_size : {1U, 3U, 33U}) {
    LaneRig rig("feed_output { slots: 4 }");
    describe_generator(rig, batch_size);
    rig.hold_batches(true);
    for (std::uint64_t id = 0; id < 6 * batch_size; ++id) rig.feed("frames", frame(id));
    rig.finish("frames");
    rig.run();
    EXPECT_THAT(rig.batches(), SizeIs(4)) << "batches of " << batch_size;
    std::vector<std::uint32_t> slots;
    for (const RigBatch& batch : rig.batches()) slots.push_back(batch.slot);
    EXPECT_THAT(sorted(slots), ElementsAre(0, 1, 2, 3)) << "batches of " << batch_size;
    rig.hold_batches(false);
    rig.run();
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    EXPECT_EQ(ids_of(rig.batches()), seen_ids(0, 6 * batch_size)) << "batches of " << batch_size;
  }
}

TEST(TensorGenerator, GivesTheSameBatchesFromAnyNumberOfLanes) {
  const auto run = [](std::uint32_t lanes, std::uint64_t seed, double restarts) {
    LaneRig rig("feed_output { slots: 6 }");
    describe_generator(rig, 5, fmt::format("threads: {}", lanes));
    for (std::uint64_t id = 0; id < 73; ++id) rig.feed("frames", frame(id));
    rig.finish("frames");
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    std::vector<std::vector<std::uint64_t>> batches;
    std::vector<std::uint64_t> tokens;
    for (const RigBatch& batch : rig.batches()) {
      batches.push_back(ids_of(batch));
      tokens.push_back(batch.token[0]);
    }
    return std::pair(batches, tokens);
  };
  const auto one = run(1, 0, 0);
  ASSERT_THAT(one.first, SizeIs(15));
  EXPECT_EQ(one.first.back().size(), 3U);
  for (const std::uint32_t lanes : {1U, 2U, 3U}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      ASSERT_EQ(run(lanes, seed, seed % 2 == 0 ? 0.3 : 0), one) << lanes << " lanes, seed " << seed;
    }
  }
}

TEST(TensorGenerator, SkipsFramesThatCannotBeExpanded) {
  LaneRig rig;
  describe_generator(rig, 2);
  std::string contradiction = pack_text(lc0_record(1));
  contradiction[8] = 7;  // version 7 in the head of what was version 6
  std::string other_format = lc0_record(1);
  other_format[4] = 99;
  rig.feed("frames", frame(0));
  rig.feed("frames", {.bytes = "no frame at all", .tag = {7, 33}});
  rig.feed("frames", {.bytes = contradiction});
  rig.feed("frames", {.bytes = pack_text(other_format)});
  rig.feed("frames", {.bytes = ""});
  rig.feed("frames", frame(1));
  rig.finish("frames");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  ASSERT_THAT(row_counts(rig.batches()), ElementsAre(2));
  EXPECT_EQ(ids_of(rig.batches()), seen_ids(0, 2));
  EXPECT_EQ(rig.counter("tensors", "frames_skipped"), 4U);
  EXPECT_THAT(rig.log("frames_skipped"), ::testing::Not(IsEmpty()));
}

TEST(TensorGenerator, GivesTheBytesOfOtherFormatsAsLczeroTrainingDoesWhenAsked) {
  std::string record = lc0_record(1);
  record[4] = 3;                                               // input_format
  record[formats::v6::kSideToMove] = static_cast<char>(0x80);  // en passant on file h
  const auto plane_108 = [&record](const std::string& settings) {
    LaneRig rig;
    describe_generator(rig, 1, settings);
    rig.feed("frames", {.bytes = pack_text(record)});
    rig.finish("frames");
    rig.run();
    std::vector<float> plane(64);
    std::memcpy(plane.data(), rig.batches().at(0).bytes.data() + 108 * 64 * 4, 64 * 4);
    return plane;
  };
  std::vector<float> one_square(64);
  one_square[63] = 1;
  EXPECT_EQ(plane_108(""), one_square);
  EXPECT_EQ(plane_108("as_lczero_training: true"), std::vector<float>(64, 128));
  LaneRig rig;
  EXPECT_THROW(describe_generator(rig, 1, "as_lczero_training: true planes: PLANES_BITS"), Error);
}

// Rows are dealt out one by one, which works behind a single lane only: behind several, or behind
// games, lanes would wait for each other for good. Said before it starts.
TEST(TensorGeneratorLanes, AreRefusedBehindStagesThatDoNotDealOutRows) {
  const auto add = [](const std::string& feed, const std::string& before, int threads) {
    LaneRig rig(feed);
    rig.add_source("chunks");
    rig.add_stage(before);
    rig.add_stage(
        fmt::format("name: 'tensors' tensor_generator {{ input: 'before' threads: {} }}", threads));
  };
  const std::string one_sampler =
      "name: 'before' shuffling_frame_sampler { input: 'chunks' reservoir_size_per_thread: 9 }";
  const std::string two_samplers =
      "name: 'before' shuffling_frame_sampler { input: 'chunks' reservoir_size_per_thread: 9 "
      "threads: 2 }";
  const std::string unpacker =
      "name: 'before' chunk_unpacker { input: 'chunks' position_sampling_rate: 1 }";
  EXPECT_NO_THROW(add("", one_sampler, 3));
  EXPECT_NO_THROW(add("", two_samplers, 1));
  EXPECT_NO_THROW(add("", unpacker, 1));
  EXPECT_NO_THROW(add("feed_output { dispatch: RELAXED }", two_samplers, 2));
  EXPECT_THROW(add("", two_samplers, 2), Error);
  EXPECT_THROW(add("", unpacker, 2), Error);
}

}  // namespace
}  // namespace ringfeed
