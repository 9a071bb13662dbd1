// The specification of workers/lc0/chunk_rescorer.h; what the numbers become:
// tests/unit/workers/lc0/lc0_rescore_test.cc, and tests/e2e/lc0/test_rescoring.py by another
// program.
#include "workers/lc0/chunk_rescorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace v6 = formats::v6;

using Records = std::vector<std::vector<std::byte>>;

template <typename T>
T field(const std::vector<std::byte>& record, std::size_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof value);
  return value;
}

void describe_rescorer(LaneRig& rig, const std::string& settings = "", std::uint32_t sinks = 1) {
  rig.add_source("chunks", 1, {.capacity = 64, .bytes = 4 << 20});
  rig.add_stage(fmt::format("name: 'rescorer' chunk_rescorer {{ input: 'chunks' {} }}", settings));
  rig.add_sink("out", "rescorer", sinks);
  rig.build();
}

RigRecord rescored(const RigRecord& chunk, const std::string& settings = "") {
  LaneRig rig;
  describe_rescorer(rig, settings);
  rig.feed("chunks", chunk);
  rig.finish("chunks");
  rig.run();
  RF_CHECK(rig.got("out").size() == 1, rig.got("out").size());
  return rig.got("out")[0];
}

// ---- what comes out

TEST(ChunkRescorer, MakesVersion7OfVersion6) {
  for (const SampleGame& game : kSampleGames) {
    const RigRecord chunk = chunk_of_records(77, 5, sample_records(game));
    const RigRecord out = rescored(chunk);
    EXPECT_EQ(out.tag[0], 77U);
    EXPECT_EQ(out.tag[1], 5U);
    EXPECT_EQ(out.bytes.substr(0, sizeof(ChunkRecord)), chunk.bytes.substr(0, sizeof(ChunkRecord)));
    const Records before = records_of_chunk(chunk);
    const Records after = records_of_chunk(out);
    ASSERT_EQ(after.size(), before.size());
    double q = 0;
    double d = 0;
    for (std::size_t i = after.size(); i-- > 0;) {
      ASSERT_THAT(after[i], SizeIs(formats::kV7RecordBytes));
      EXPECT_EQ(field<std::uint32_t>(after[i], v6::kVersion), 7U);
      // Nothing else has changed, no bit of the policy.
      EXPECT_EQ(std::memcmp(after[i].data() + 4, before[i].data() + 4, v6::kQSt - 4), 0) << i;
      // The formula turned around: in the mover's view of each record.
      const double root_q = field<float>(before[i], v6::kRootQ);
      const double root_d = field<float>(before[i], v6::kRootD);
      const bool last = i + 1 == after.size();
      q = last ? root_q : -q * 5 / 6 + root_q / 6;
      d = last ? root_d : d * 5 / 6 + root_d / 6;
      EXPECT_NEAR(field<float>(after[i], v6::kQSt), q, 1e-6) << i;
      EXPECT_NEAR(field<float>(after[i], v6::kDSt), d, 1e-6) << i;
      const auto played = [&](std::size_t at) {
        return at < before.size() ? field<std::uint16_t>(before[at], v6::kPlayedIdx) : 65535;
      };
      EXPECT_EQ(field<std::uint16_t>(after[i], v6::kOppPlayedIdx), played(i + 1));
      EXPECT_EQ(field<std::uint16_t>(after[i], v6::kNextPlayedIdx), played(i + 2));
      for (std::size_t at = 8364; at < formats::kV7RecordBytes; ++at) {
        EXPECT_EQ(after[i][at], std::byte{0}) << "reserved";
      }
    }
  }
}

// The records of a version, each with its number in what all versions have.
Bytes records_of_version(std::uint32_t version, std::size_t count) {
  const std::size_t bytes = formats::frame_bytes_of_version(version);
  const std::size_t shift = version < 5 ? 4 : 0;
  Bytes records(count * bytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* record = records.data() + i * bytes;
    std::memcpy(record, &version, 4);
    if (version >= 5) record[4] = std::byte{1};
    for (std::size_t move = 0; move < formats::kPolicyMoves; ++move) {
      const float illegal = version == 3 ? 0.0F : -1.0F;
      const float value = move == 3 ? 0.75F : move == 9 ? 0.25F : move == 12 ? 0.0F : illegal;
      std::memcpy(record + v6::kPolicy - shift + 4 * move, &value, 4);
    }
    record[v6::kPlanes - shift] = static_cast<std::byte>(i + 1);
    if (version < 6) record[v6::kInvarianceInfo + 1 - shift] = std::byte{1};  // the result
    if (version >= 4) {
      const float root_q = i % 2 == 0 ? 0.5F : -0.5F;
      std::memcpy(record + v6::kRootQ - shift, &root_q, 4);
    }
    if (version == 7) {
      const float q_st = 0.125F;
      std::memcpy(record + v6::kQSt, &q_st, 4);
    }
  }
  return records;
}

TEST(ChunkRescorer, LeavesOtherVersionsWhatTheyAre) {
  for (const std::uint32_t version : {3U, 4U, 5U, 7U}) {
    const RigRecord out = rescored(chunk_of_records(1, 0, records_of_version(version, 3), version),
                                   "policy_offset: 0.25");
    const auto first = std::as_bytes(std::span(out.bytes)).subspan(chunk_head_bytes({}));
    EXPECT_EQ(formats::view_packed(first)->origin, version == 5 ? 7U : version);
    const Records records = records_of_chunk(out);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::vector<std::byte>& record = records[i];
      EXPECT_EQ(field<std::uint32_t>(record, v6::kVersion), version >= 5 ? 7U : 6U);
      EXPECT_EQ(field<std::uint64_t>(record, v6::kPlanes), i + 1);
      EXPECT_EQ(field<float>(record, v6::kPliesLeft), static_cast<float>(3 - i)) << "filled";
      const float sum = version == 3 ? 1.5F : 1.75F;
      EXPECT_FLOAT_EQ(field<float>(record, v6::kPolicy + 12), 1.0F / sum);
      EXPECT_FLOAT_EQ(field<float>(record, v6::kPolicy + 36), 0.5F / sum);
      EXPECT_FLOAT_EQ(field<float>(record, v6::kPolicy + 48), version == 3 ? 0 : 0.25F / sum);
      EXPECT_EQ(field<float>(record, v6::kPolicy), version == 3 ? 0 : -1);
      const float q_st = i % 2 == 0 ? 0.5F : -0.5F;
      EXPECT_NEAR(field<float>(record, v6::kQSt),
                  version == 5   ? q_st
                  : version == 7 ? 0.125
                                 : 0,
                  1e-6);
      if (version == 5) {
        EXPECT_EQ(field<std::uint16_t>(record, v6::kOppPlayedIdx), 65535);
      }
    }
  }
}

TEST(ChunkRescorer, CountsWhatItDoes) {
  LaneRig rig;
  describe_rescorer(rig, "policy_offset: -1 deblunder_threshold: 0.05 deblunder_width: 0.02");
  rig.feed("chunks", chunk_of_records(1, 0, sample_records(kSampleGames[1])));
  rig.feed("chunks", chunk_of_records(2, 0, records_of_version(4, 6), 4));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(rig.counter("rescorer", "chunks"), 2U);
  EXPECT_EQ(rig.counter("rescorer", "frames"), 95U);
  EXPECT_EQ(rig.counter("rescorer", "plies_left_filled"), 6U);
  EXPECT_EQ(rig.counter("rescorer", "policies_kept"), 95U) << "nothing would have been left";
  EXPECT_EQ(rig.counter("rescorer", "chunks_deblundered"), 1U);
  EXPECT_GT(rig.counter("rescorer", "blunders"), 0U);
}

TEST(ChunkRescorer, GivesTheSameWithLanesAndRestarts) {
  std::vector<RigRecord> chunks;
  for (std::uint64_t i = 0; i < 10; ++i) {
    Bytes records = sample_records(kSampleGames[i % 4]);
    records.resize((5 + i) * formats::kV6RecordBytes);
    chunks.push_back(chunk_of_records(i, 0, records));
  }
  const auto run = [&chunks](const std::string& lanes, double restarts) {
    LaneRig rig;
    describe_rescorer(rig, "policy_temperature: 1.5 queue_capacity: 2 " + lanes);
    for (const RigRecord& chunk : chunks) rig.feed("chunks", chunk);
    rig.finish("chunks");
    std::mt19937_64 random(8);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    EXPECT_EQ(rig.counter("rescorer", "chunks"), 10U);
    return texts(rig.got("out"));
  };
  const std::vector<std::string> alone = run("", 0);
  EXPECT_THAT(alone, SizeIs(10));
  EXPECT_EQ(run("threads: 3", 0), alone);
  EXPECT_EQ(run("threads: 2", 0.4), alone);
}

TEST(ChunkRescorer, SkipsAChunkThatContradictsItself) {
  const RigRecord whole = chunk_of_records(1, 0, records_of_version(6, 3));
  LaneRig rig;
  describe_rescorer(rig);
  rig.feed("chunks", {.bytes = whole.bytes.substr(0, whole.bytes.size() - 16)});
  rig.feed("chunks", {.bytes = "x"});
  rig.feed("chunks", whole);
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), SizeIs(1));
  EXPECT_EQ(rig.counter("rescorer", "chunks_damaged"), 2U);
}

TEST(ChunkRescorer, SkipsAChunkThatDoesNotFitItsOutput) {
  LaneRig rig;
  describe_rescorer(rig, "queue_bytes: 65536");
  rig.feed("chunks", chunk_of_records(1, 0, sample_records(kSampleGames[3])));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), IsEmpty());
  EXPECT_EQ(rig.counter("rescorer", "skipped_too_large"), 1U);
  ASSERT_THAT(rig.log(), SizeIs(1));
  EXPECT_THAT(rig.log()[0], HasSubstr("raise queue_bytes of stage 'rescorer'"));
}

TEST(ChunkRescorer, SurvivesNoise) {
  std::mt19937_64 random(19);
  LaneRig rig;
  describe_rescorer(rig,
                    "queue_capacity: 64 policy_temperature: 0.5 policy_offset: 0.1 "
                    "deblunder_threshold: 0.1 deblunder_width: 0");
  constexpr std::uint64_t kChunks = 60;
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    Bytes records = sample_records(kSampleGames[i % 4]);
    records.resize(6 * formats::kV6RecordBytes);
    RigRecord chunk = chunk_of_records(i, 0, records);
    for (std::uint64_t changes = 1 + random() % 400; changes > 0; --changes) {
      chunk.bytes[random() % chunk.bytes.size()] = static_cast<char>(random());
    }
    rig.feed("chunks", std::move(chunk));
    if (i % 16 == 15) rig.run();
  }
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(rig.counter("rescorer", "chunks") + rig.counter("rescorer", "chunks_damaged"), kChunks);
}

// ---- between pool and unpacker

// The positions that come out of the unpacker: identity of the chunk and number in it.
std::vector<std::array<std::uint64_t, 2>> positions_between(const std::string& choice,
                                                            bool between) {
  TempDir directory;
  for (const SampleGame& game : kSampleGames) {
    const Bytes records = sample_records(game);
    const std::string text(reinterpret_cast<const char*>(records.data()), records.size());
    directory.write(fmt::format("{}.gz", game.frame_count), gzip_text(text));
  }
  LaneRig rig("epochs: 4 seed: 12");
  rig.add_stage(
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory.path()));
  rig.add_stage("name: 'loader' chunk_source_loader { input: 'provider' }");
  rig.add_stage("name: 'pool' shuffling_chunk_pool { input: 'loader' chunk_pool_size: 9 }");
  if (between) {
    rig.add_stage("name: 'validator' chunk_validator { input: 'pool' threads: 2 }");
    rig.add_stage(
        "name: 'rescorer' chunk_rescorer { input: 'validator' policy_temperature: 2 "
        "deblunder_threshold: 0.1 deblunder_width: 0.05 }");
  }
  rig.add_stage(fmt::format("name: 'unpacker' chunk_unpacker {{ input: '{}' {} }}",
                            between ? "rescorer" : "pool", choice));
  rig.add_sink("out", "unpacker");
  rig.build();
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  std::vector<std::array<std::uint64_t, 2>> all;
  for (const RigRecord& frame : rig.got("out")) all.push_back({frame.tag[0], frame.tag[1]});
  return all;
}

TEST(ChunkRescorer, LeavesTheUnpackersChoiceAsItIs) {
  for (const char* choice :
       {"position_sampling_rate: 1", "position_sampling_rate: 0.1", "position_count: 3",
        "position_count: 2 position_sampling { diff_focus_q_weight: 6 diff_focus_pol_scale: 3.5 "
        "}"}) {
    const auto plain = positions_between(choice, false);
    EXPECT_FALSE(plain.empty());
    EXPECT_EQ(positions_between(choice, true), plain) << choice;
  }
}

// ---- settings

std::string problem(const std::string& settings) {
  LaneRig rig;
  rig.add_source("chunks");
  try {
    rig.add_stage(
        fmt::format("name: 'rescorer' chunk_rescorer {{ input: 'chunks' {} }}", settings));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChunkRescorerSettings, HaveNoEndgameTables) {
  for (const char* paths : {"syzygy_paths: '/tables'", "gaviota_paths: '/tables'"}) {
    EXPECT_THAT(problem(paths), HasSubstr("endgame tables are not supported")) << paths;
  }
  EXPECT_EQ(problem("syzygy_paths: ''"), "");
}

TEST(ChunkRescorerSettings, HaveBothNumbersOfDeblunderingOrNone) {
  EXPECT_THAT(problem("deblunder_threshold: 0.1"), HasSubstr("without deblunder_width"));
  EXPECT_THAT(problem("deblunder_width: 0.1"), HasSubstr("without deblunder_threshold"));
  EXPECT_EQ(problem("deblunder_threshold: 0.1 deblunder_width: 0.06"), "");
  EXPECT_EQ(problem(""), "");
}

}  // namespace
}  // namespace ringfeed
