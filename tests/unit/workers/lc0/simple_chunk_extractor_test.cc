// The specification of workers/lc0/simple_chunk_extractor.h.
#include "workers/lc0/simple_chunk_extractor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

struct Extractor {
  explicit Extractor(const std::string& own = "", const std::string& feed = "epochs: 1")
      : rig(feed) {
    rig.add_source("sources", 1, {.capacity = 64, .bytes = 1 << 18});
    rig.add_stage("name: 'extract' simple_chunk_extractor { input: 'sources' " + own + " }");
    rig.add_sink("out", "extract");
    rig.build();
  }
  void add(const std::string& name, std::uint64_t first_id, std::uint64_t chunks) {
    rig.feed("sources", write_source(directory, name, first_id, chunks));
  }
  [[nodiscard]] std::vector<std::uint64_t> ids() const {
    std::vector<std::uint64_t> all;
    for (const RigRecord& record : rig.got("out")) {
      const SeenChunk chunk = see_chunk(record);
      EXPECT_EQ(chunk.uses, 0);
      all.insert(all.end(), chunk.ids.begin(), chunk.ids.end());
    }
    return all;
  }
  TempDir directory;
  LaneRig rig;
};

TEST(Extractor, GivesEachChunkOnceSourceBySource) {
  Extractor extractor;
  extractor.add("b", 0, 20);
  extractor.rig.feed("sources", scan_complete());
  extractor.add("a", 20, 30);
  extractor.rig.finish("sources");
  extractor.rig.run();
  const std::vector<std::uint64_t> ids = extractor.ids();
  ASSERT_EQ(ids.size(), 50U);
  const std::vector<std::uint64_t> first(ids.begin(), ids.begin() + 20);
  EXPECT_EQ(sorted(first), numbers(0, 20)) << "in the order in which sources come";
  EXPECT_NE(first, numbers(0, 20)) << "and in random order inside of each";
  EXPECT_EQ(sorted(ids), numbers(0, 50));
  EXPECT_EQ(extractor.rig.counter("extract", "sources_processed"), 2U);
  EXPECT_EQ(extractor.rig.counter("extract", "chunks_processed"), 50U);
  EXPECT_TRUE(extractor.rig.all_finished());
}

TEST(Extractor, GivesTheSameOrderWithAnyNumberOfLanesAndRestarts) {
  const auto ids = [](const std::string& own, double probability) {
    Extractor extractor(own);
    for (std::uint64_t i = 0; i < 8; ++i) extractor.add(fmt::format("f{}", i), 10 * i, 10);
    extractor.rig.finish("sources");
    std::mt19937_64 random(3);
    extractor.rig.run_with_restarts(random, probability);
    EXPECT_TRUE(extractor.rig.all_finished());
    return extractor.ids();
  };
  const std::vector<std::uint64_t> expected = ids("", 0);
  EXPECT_EQ(sorted(expected), numbers(0, 80));
  EXPECT_EQ(ids("threads: 3", 0), expected);
  EXPECT_EQ(ids("threads: 2", 0.3), expected);
}

TEST(Extractor, CountsWhatCannotBeUsedAndGoesOn) {
  Extractor extractor;
  extractor.add("a", 0, 3);
  const std::string path = extractor.directory.write("bad", "no records at all");
  extractor.rig.feed("sources", source_record(path, {raw_place(0, 17)}));
  extractor.add("c", 3, 3);
  extractor.rig.finish("sources");
  extractor.rig.run();
  EXPECT_EQ(sorted(extractor.ids()), numbers(0, 6));
  EXPECT_EQ(extractor.rig.counter("extract.read", "skipped_record"), 1U);
}

TEST(Extractor, ReadsPaddedGamesAndCountsRubbishBehindThem) {
  Extractor extractor;
  const std::string padded = gzip_text(game(0, 3)) + std::string(600, '\0');
  for (const std::string& bytes : {padded, padded + gzip_text(game(3, 3)) + "rubbish"}) {
    ChunkPlace place = raw_place(0, bytes.size());
    place.flags = kChunkGzip;
    const std::string path = extractor.directory.write(fmt::format("{}.gz", bytes.size()), bytes);
    extractor.rig.feed("sources", source_record(path, {place}));
  }
  extractor.rig.finish("sources");
  extractor.rig.run();
  EXPECT_THAT(sorted(extractor.ids()), ::testing::ElementsAre(0, 0, 1, 1, 2, 2, 3, 4, 5));
  EXPECT_EQ(extractor.rig.counter("extract.read", "skipped_trailing"), 1U);
}

// The chunks of a source that have been given are counted in the stage's state.
TEST(Extractor, GoesOnWithTheNextSourceWhenItsCountIsDamaged) {
  Extractor extractor;
  extractor.rig.damage_state_word("extract", 0, 11);
  extractor.add("damaged", 0, 10);
  extractor.add("whole", 10, 10);
  extractor.rig.finish("sources");
  extractor.rig.run();
  EXPECT_EQ(sorted(extractor.ids()), numbers(10, 20));
  EXPECT_TRUE(extractor.rig.all_finished());
}

TEST(Extractor, PutsOutFramesItselfWhereItIsTold) {
  const auto ids = [](const std::string& own, double restarts) {
    Extractor extractor(own);
    extractor.add("a", 0, 30);
    extractor.add("b", 30, 30);
    extractor.rig.finish("sources");
    std::mt19937_64 random(1);
    extractor.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(extractor.rig.all_finished());
    std::vector<std::uint64_t> all;
    for (const RigRecord& record : extractor.rig.got("out")) all.push_back(frame_id(record.bytes));
    EXPECT_EQ(extractor.rig.counter("extract.read", "frames"), all.size());
    return all;
  };
  const std::vector<std::uint64_t> undisturbed = ids("frames { }", 0);
  EXPECT_EQ(sorted(undisturbed), numbers(0, 60));
  EXPECT_EQ(ids("frames { } threads: 3 queue_capacity: 1", 0), undisturbed);
  EXPECT_EQ(ids("frames { } queue_capacity: 2", 0.2), undisturbed);
}

// As a pool's readers do (position_choice.h).
TEST(Extractor, PassesOnOnlyWhatTheUnpackerWants) {
  LaneRig rig("epochs: 1");
  const TempDir directory;
  rig.add_source("sources", 1, {.capacity = 64, .bytes = 1 << 18});
  rig.add_stage("name: 'extract' simple_chunk_extractor { input: 'sources' queue_bytes: 262144 }");
  rig.add_stage("name: 'unpacker' chunk_unpacker { input: 'extract' position_count: 1 }");
  rig.add_sink("out", "unpacker");
  rig.build();
  const std::string path = directory.write("long", game(0, 200));
  ChunkPlace place = raw_place(0, 200 * formats::kV6RecordBytes);
  place.frames = 200;
  rig.feed("sources", source_record(path, {place}));
  rig.finish("sources");
  rig.run();
  EXPECT_EQ(rig.got("out").size(), 1U);
}

}  // namespace
}  // namespace ringfeed
