// The specification of workers/lc0/chunk_validator.h; what each check finds:
// tests/unit/workers/lc0/lc0_validate_test.cc.
#include "workers/lc0/chunk_validator.h"

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

void describe_validator(LaneRig& rig, const std::string& settings = "", std::uint32_t sinks = 1) {
  rig.add_source("chunks", 1, {.capacity = 64, .bytes = 4 << 20});
  rig.add_stage(
      fmt::format("name: 'validator' chunk_validator {{ input: 'chunks' {} }}", settings));
  rig.add_sink("out", "validator", sinks);
  rig.build();
}

// Ten records of a real game; the first is the sample's first.
Bytes ten_records(std::size_t game = 0) {
  Bytes records = sample_records(kSampleGames[game]);
  records.resize(10 * formats::kV6RecordBytes);
  return records;
}
template <typename T>
void put(Bytes& records, std::size_t frame, std::size_t offset, T value) {
  std::memcpy(records.data() + frame * formats::kV6RecordBytes + offset, &value, sizeof value);
}
float probability(const Bytes& records, std::size_t frame, std::size_t move) {
  float value = 0;
  std::memcpy(&value, records.data() + frame * formats::kV6RecordBytes + v6::kPolicy + 4 * move, 4);
  return value;
}
// The first move that is marked illegal, or is not.
std::uint16_t first_move(const Bytes& records, std::size_t frame, bool illegal) {
  std::uint16_t move = 0;
  while ((probability(records, frame, move) < 0) != illegal) ++move;
  return move;
}

TEST(ChunkValidator, PassesRealGamesOnUnchanged) {
  LaneRig rig;
  describe_validator(rig, "queue_capacity: 64");
  std::vector<std::string> expected;
  std::uint64_t frames = 0;
  for (const SampleGame& game : kSampleGames) {
    RigRecord chunk = chunk_of_records(game.frame_count, 3, sample_records(game));
    expected.push_back(chunk.bytes);
    frames += game.frame_count;
    rig.feed("chunks", std::move(chunk));
  }
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out")), expected);
  EXPECT_EQ(rig.got("out")[1].tag[0], kSampleGames[1].frame_count);
  EXPECT_EQ(rig.got("out")[1].tag[1], 3U);
  EXPECT_EQ(rig.counter("validator", "chunks"), 4U);
  EXPECT_EQ(rig.counter("validator", "frames"), frames);
  EXPECT_THAT(rig.log(), IsEmpty());
}

TEST(ChunkValidator, TakesEveryVersion) {
  for (const std::uint32_t version : {3U, 4U, 5U, 7U}) {
    const Bytes real = ten_records();
    const std::size_t bytes = formats::frame_bytes_of_version(version);
    const std::size_t shift = version < 5 ? 4 : 0;
    Bytes records(10 * bytes);
    for (std::size_t i = 0; i < 10; ++i) {
      const std::byte* from = real.data() + i * formats::kV6RecordBytes;
      std::byte* to = records.data() + i * bytes;
      std::memcpy(to, &version, 4);
      const std::size_t size = std::min(bytes, formats::kV6RecordBytes);
      std::memcpy(to + 4, from + 4 + shift, size - 4 - (version < 5 ? 0 : shift));
      for (std::size_t move = 0; version == 3 && move < formats::kPolicyMoves; ++move) {
        if (probability(real, i, move) < 0) std::memset(to + v6::kPolicy - 4 + 4 * move, 0, 4);
      }
      if (version < 6) to[v6::kInvarianceInfo + 1 - shift] = std::byte{0};
    }
    LaneRig rig;
    describe_validator(rig);
    const RigRecord chunk = chunk_of_records(1, 0, records, version);
    rig.feed("chunks", chunk);
    rig.finish("chunks");
    rig.run();
    EXPECT_THAT(texts(rig.got("out")), ElementsAre(chunk.bytes))
        << version << (rig.log().empty() ? "" : rig.log()[0]);
  }
}

// ---- each check

struct Check {
  const char* name;
  void (*damage)(Bytes&);
  friend void PrintTo(const Check& check, std::ostream* out) { *out << check.name; }
};
class EachCheck : public ::testing::TestWithParam<Check> {};

TEST_P(EachCheck, CountsWhatItRejectsAndCanBeSwitchedOff) {
  Bytes damaged = ten_records();
  GetParam().damage(damaged);
  const std::string counter = fmt::format("rejected_{}", GetParam().name);
  const RigRecord before = chunk_of_records(1, 0, ten_records(1));
  const RigRecord bad = chunk_of_records(0xABCDEF, 0, damaged);
  const RigRecord after = chunk_of_records(3, 0, ten_records(2));
  for (const bool on : {true, false}) {
    LaneRig rig;
    describe_validator(rig, fmt::format("queue_capacity: 64 check_{}: {}", GetParam().name, on));
    for (const RigRecord& chunk : {before, bad, after}) rig.feed("chunks", chunk);
    rig.finish("chunks");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    EXPECT_EQ(rig.counter("validator", counter), on ? 1U : 0U);
    if (on) {
      EXPECT_THAT(texts(rig.got("out")), ElementsAre(before.bytes, after.bytes));
      ASSERT_THAT(rig.log(), SizeIs(1));
      EXPECT_THAT(rig.log()[0], HasSubstr(fmt::format("skipped stage=validator reason={} count=1 "
                                                      "chunk=0000000000abcdef position=",
                                                      counter)));
    } else {
      EXPECT_THAT(texts(rig.got("out")), ElementsAre(before.bytes, bad.bytes, after.bytes))
          << (rig.log().empty() ? "" : rig.log()[0]);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Switches, EachCheck,
    ::testing::Values(
        Check{"input_format",
              [](Bytes& records) { put(records, 4, v6::kInputFormat, std::uint32_t{2}); }},
        Check{"values", [](Bytes& records) { put(records, 4, v6::kBestD, 1.5F); }},
        Check{"orig_values", [](Bytes& records) { put(records, 4, v6::kOrigQ, -1.5F); }},
        Check{"castling",
              [](Bytes& records) { put(records, 4, v6::kCastlingThemOo, std::uint8_t{4}); }},
        Check{"side_to_move",
              [](Bytes& records) { put(records, 4, v6::kSideToMove, std::uint8_t{4}); }},
        Check{"result", [](Bytes& records) { put(records, 4, v6::kResultQ, -3.0F); }},
        Check{"rule50", [](Bytes& records) { put(records, 4, v6::kRule50, std::uint8_t{200}); }},
        Check{"probabilities",
              [](Bytes& records) {
                put(records, 4, v6::kPolicy + 4U * first_move(records, 4, true), -2.0F);
              }},
        Check{"probability_sum",
              [](Bytes& records) {
                put(records, 4, v6::kPolicy + 4U * first_move(records, 4, false), 1.0F);
              }},
        Check{"move_indices",
              [](Bytes& records) { put(records, 4, v6::kBestIdx, first_move(records, 4, true)); }},
        Check{"transitions",
              [](Bytes& records) {
                records.erase(records.begin(),
                              records.begin() + std::ptrdiff_t{5 * formats::kV6RecordBytes});
                const Bytes again = ten_records();
                records.insert(records.end(), again.begin(), again.end());
              }},
        Check{
            "played_moves",
            [](Bytes& records) { put(records, 4, v6::kPlayedIdx, first_move(records, 4, false)); }},
        Check{"move_legality",
              [](Bytes& records) {
                const std::uint16_t move = first_move(records, 9, true);
                put(records, 9, v6::kPlayedIdx, move);
                put(records, 9, v6::kPolicy + 4U * move, 0.0F);
              }}),
    [](const auto& param) { return param.param.name; });

// ---- the stage

TEST(ChunkValidator, KeepsTheTurnsOfWhatItRejects) {
  Bytes damaged = ten_records();
  put(damaged, 0, v6::kRule50, std::uint8_t{200});
  LaneRig rig;
  describe_validator(rig, "queue_capacity: 64 threads: 3", 2);
  std::vector<std::vector<std::string>> expected(2);
  for (std::uint64_t unit = 0; unit < 12; ++unit) {
    const bool bad = unit % 5 == 1;
    RigRecord chunk = chunk_of_records(unit, 0, bad ? damaged : ten_records(unit % 4));
    if (!bad) expected[unit % 2].push_back(chunk.bytes);
    rig.feed("chunks", std::move(chunk));
  }
  rig.finish("chunks");
  std::mt19937_64 random(1);
  rig.run_with_restarts(random, 0.3);
  EXPECT_TRUE(rig.all_finished());
  EXPECT_EQ(texts(rig.got("out", 0)), expected[0]);
  EXPECT_EQ(texts(rig.got("out", 1)), expected[1]);
  EXPECT_EQ(rig.counter("validator", "rejected_rule50"), 3U);
}

TEST(ChunkValidator, SaysWhatItRejectsNowAndThen) {
  Bytes damaged = ten_records();
  put(damaged, 6, v6::kRule50, std::uint8_t{200});
  LaneRig rig;
  describe_validator(rig);
  for (std::uint64_t i = 0; i < 20; ++i) rig.feed("chunks", chunk_of_records(i, 0, damaged));
  rig.finish("chunks");
  rig.run();
  EXPECT_EQ(rig.counter("validator", "rejected_rule50"), 20U);
  EXPECT_THAT(rig.log(), SizeIs(5)) << "1, 2, 4, 8, 16";
  EXPECT_THAT(rig.log()[4], HasSubstr("count=16 chunk=000000000000000f position=6: rule50_count is "
                                      "200"));
}

TEST(ChunkValidator, SkipsAChunkThatContradictsItself) {
  const RigRecord whole = chunk_of_records(1, 0, ten_records());
  std::vector<RigRecord> damaged = {{.bytes = ""}, {.bytes = whole.bytes.substr(0, 10)}};
  damaged.push_back({.bytes = whole.bytes.substr(0, whole.bytes.size() - 16)});
  damaged.push_back({.bytes = whole.bytes + std::string(16, 'x')});
  damaged.push_back(whole);
  damaged.back().bytes[8] = 11;  // one frame more than there are
  damaged.push_back(whole);
  damaged.back().bytes[14] = 1;  // listed: of some frames no move can be told
  damaged.push_back(whole);
  damaged.back().bytes[chunk_head_bytes({}) + 7] = 5;  // another version than the others
  LaneRig rig;
  describe_validator(rig, "queue_capacity: 64");
  for (const RigRecord& record : damaged) rig.feed("chunks", record);
  rig.feed("chunks", whole);
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(texts(rig.got("out")), ElementsAre(whole.bytes));
  EXPECT_EQ(rig.counter("validator", "chunks_damaged"), damaged.size());
}

TEST(ChunkValidator, SkipsAChunkThatDoesNotFitItsOutput) {
  LaneRig rig;
  describe_validator(rig, "queue_bytes: 65536");
  rig.feed("chunks", chunk_of_records(1, 0, sample_records(kSampleGames[1])));
  rig.feed("chunks", chunk_of_records(2, 0, ten_records()));
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  EXPECT_THAT(rig.got("out"), SizeIs(1));
  EXPECT_EQ(rig.counter("validator", "skipped_too_large"), 1U);
  ASSERT_THAT(rig.log(), SizeIs(1));
  EXPECT_THAT(rig.log()[0], HasSubstr("raise queue_bytes of stage 'validator' to at least 262144"));
}

// What is in the files does not bring it down: noise in all places that a chunk leaves to chance.
TEST(ChunkValidator, SurvivesNoise) {
  std::mt19937_64 random(9);
  LaneRig rig;
  describe_validator(rig, "queue_capacity: 64");
  constexpr std::uint64_t kChunks = 60;
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    RigRecord chunk = chunk_of_records(i, 0, ten_records(i % 4));
    for (std::uint64_t changes = 1 + random() % 400; changes > 0; --changes) {
      chunk.bytes[random() % chunk.bytes.size()] = static_cast<char>(random());
    }
    rig.feed("chunks", std::move(chunk));
    if (i % 16 == 15) rig.run();
  }
  rig.finish("chunks");
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  std::uint64_t seen =
      rig.counter("validator", "chunks") + rig.counter("validator", "chunks_damaged");
  for (std::size_t flaw = 1; flaw < formats::kFlaws; ++flaw) {
    seen += rig.counter(
        "validator",
        fmt::format("rejected_{}", formats::flaw_name(static_cast<formats::Flaw>(flaw))));
  }
  EXPECT_EQ(seen, kChunks) << "each of them passed or counted";
}

}  // namespace
}  // namespace ringfeed
