// The specification of workers/lc0/chunk_source_splitter.h.
#include "workers/lc0/chunk_source_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::uint32_t> indices(const SeenSource& source) {
  std::vector<std::uint32_t> all;
  for (const ChunkPlace& place : source.places) all.push_back(place.index);
  return all;
}

// Where the chunks fall is part of what users keep: a validation set must stay one for ever.
TEST(SplitOf, IsFixed) {
  std::string dealt;
  for (std::uint64_t i = 0; i < 64; ++i) {
    dealt +=
        static_cast<char>('0' + split_of(0, "training-run1-test80-20240101-0017.tar", i, {9, 1}));
  }
  EXPECT_EQ(dealt, "0000000000000000000000000000000010010000000000010000000100000000");
  std::string other;
  for (std::uint64_t i = 0; i < 64; ++i) {
    other +=
        static_cast<char>('0' + split_of(1, "training-run1-test80-20240101-0017.tar", i, {9, 1}));
  }
  EXPECT_NE(dealt, other) << "another key deals in another way";
}

TEST(SplitOf, GivesEachItsShare) {
  const std::vector<std::uint64_t> weights = {1, 2, 5};
  std::vector<double> got(3);
  for (std::uint64_t i = 0; i < 80'000; ++i) {
    got[split_of(7, "file" + std::to_string(i % 100), i / 100, weights)] += 1;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const double share = static_cast<double>(weights[i]) / 8;
    EXPECT_NEAR(got[i] / 80'000, share, 4 * std::sqrt(share * (1 - share) / 80'000)) << i;
  }
}

struct Splitter {
  explicit Splitter(const std::string& own) : rig("epochs: 1") {
    rig.add_source("sources", 1, {.capacity = 64, .bytes = 1 << 18});
    rig.add_stage("name: 'splitter' chunk_source_splitter { input: 'sources' " + own + " }");
    rig.add_sink("train", "splitter.train");
    rig.add_sink("test", "splitter.test");
    rig.build();
  }
  static std::vector<SeenSource> seen(const std::vector<RigRecord>& records) {
    std::vector<SeenSource> sources;
    for (const RigRecord& record : records) {
      if (record.user == kFileRecord) sources.push_back(see_source(record));
    }
    return sources;
  }
  LaneRig rig;
};

const char* const kShares = "outputs { name: 'train' weight: 3 } outputs { name: 'test' }";

TEST(Splitter, DealsOutEveryChunkOnceAndTheMarkerToAll) {
  Splitter splitter(kShares);
  const std::vector<ChunkPlace> places(1000, raw_place(0, 9));
  splitter.rig.feed("sources", source_record("/d/a.tar", places));
  splitter.rig.feed("sources", source_record("/d/a.tar", places, 1000));
  splitter.rig.feed("sources", scan_complete());
  splitter.rig.finish("sources");
  splitter.rig.run();
  std::set<std::uint32_t> together;
  std::size_t count = 0;
  for (const char* sink : {"train", "test"}) {
    EXPECT_EQ(splitter.rig.got(sink).back().user, kScanCompleteRecord);
    for (const SeenSource& source : Splitter::seen(splitter.rig.got(sink))) {
      EXPECT_EQ(source.path, "/d/a.tar");
      const std::vector<std::uint32_t> mine = indices(source);
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
      together.insert(mine.begin(), mine.end());
      count += mine.size();
    }
  }
  EXPECT_EQ(count, 2000U);
  EXPECT_THAT(together, SizeIs(2000));
  EXPECT_NEAR(static_cast<double>(splitter.rig.counter("splitter", "chunks_train")), 1500, 80);
  EXPECT_TRUE(splitter.rig.all_finished());
}

// A file's share is the same in another directory, beside other files, and in parts of another
// size.
TEST(Splitter, DependsOnNameAndNumberAlone) {
  const auto share = [](const std::vector<RigRecord>& records) {
    Splitter splitter(kShares);
    for (const RigRecord& record : records) splitter.rig.feed("sources", record);
    splitter.rig.finish("sources");
    splitter.rig.run();
    std::vector<std::uint32_t> all;
    for (const SeenSource& source : Splitter::seen(splitter.rig.got("test"))) {
      if (!source.path.ends_with("b.tar")) continue;
      const std::vector<std::uint32_t> mine = indices(source);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    return all;
  };
  const std::vector<ChunkPlace> ten(10, raw_place(0, 9));
  const std::vector<ChunkPlace> thirty(30, raw_place(0, 9));
  const std::vector<std::uint32_t> one = share({source_record("/d/b.tar", thirty)});
  EXPECT_EQ(one, share({source_record("/e/a.tar", ten), source_record("/f/b.tar", ten),
                        source_record("/f/b.tar", ten, 10), source_record("/f/b.tar", ten, 20)}));
  EXPECT_FALSE(one.empty());
}

// The first part of a file comes to every output: a pool behind it drops what the file had before.
TEST(Splitter, TellsEveryOutputOfARewrittenFile) {
  Splitter splitter("outputs { name: 'train' weight: 1000000 } outputs { name: 'test' }");
  splitter.rig.feed("sources", source_record("/d/a.gz", {raw_place(0, 9)}));
  splitter.rig.feed("sources", source_record("/d/a.gz", {raw_place(9, 9)}, 1));
  splitter.rig.finish("sources");
  splitter.rig.run();
  EXPECT_THAT(Splitter::seen(splitter.rig.got("train")), SizeIs(2));
  const std::vector<SeenSource> test = Splitter::seen(splitter.rig.got("test"));
  ASSERT_THAT(test, SizeIs(1));
  EXPECT_THAT(test[0].places, IsEmpty());
}

// What the loader lists in one record may be more than these queues take.
TEST(Splitter, CutsASourceThatItsQueuesDoNotTakeWhole) {
  Splitter splitter(std::string(kShares) + " queue_bytes: 65536");
  splitter.rig.feed("sources",
                    source_record("/d/a.tar", std::vector<ChunkPlace>(3000, raw_place(0, 9))));
  splitter.rig.feed("sources", source_record("/d/b.tar", {raw_place(0, 9)}));
  splitter.rig.finish("sources");
  splitter.rig.run();
  std::set<std::uint32_t> together;
  for (const char* sink : {"train", "test"}) {
    std::size_t first_parts = 0;
    for (const SeenSource& source : Splitter::seen(splitter.rig.got(sink))) {
      if (source.path != "/d/a.tar") continue;
      first_parts += source.first_chunk == 0 ? 1 : 0;
      const std::vector<std::uint32_t> mine = indices(source);
      together.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(first_parts, 1U) << "a second one would drop what came before";
  }
  EXPECT_THAT(together, SizeIs(3000));
  EXPECT_TRUE(splitter.rig.all_finished());
}

TEST(Splitter, RefusesOutputsThatCannotBe) {
  const auto refused = [](const std::string& own) -> std::string {
    try {
      LaneRig rig;
      rig.add_stage("name: 's' chunk_source_splitter { input: 'x' " + own + " }");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(refused(""), HasSubstr("there is none"));
  EXPECT_THAT(refused("outputs { }"), HasSubstr("it has no name"));
  EXPECT_THAT(refused("outputs { name: 'a.b' }"), HasSubstr("cannot be the name"));
  EXPECT_THAT(refused("outputs { name: 'a' } outputs { name: 'a' }"), HasSubstr("already"));
  EXPECT_THAT(refused("outputs { name: 'a' } overflow_behavior: DROP_NEW"), HasSubstr("use BLOCK"));
  std::string many;
  for (int i = 0; i < 17; ++i) many += fmt::format("outputs {{ name: 'o{}' }} ", i);
  EXPECT_THAT(refused(many), HasSubstr("at most 16 are possible"));
}

TEST(Splitter, DealsTheSameWhereverItIsRestarted) {
  const auto all = [](double probability) {
    Splitter splitter(kShares);
    for (int i = 0; i < 40; ++i) {
      splitter.rig.feed("sources", source_record(fmt::format("/d/{}.tar", i),
                                                 std::vector<ChunkPlace>(20, raw_place(0, 9))));
    }
    splitter.rig.finish("sources");
    std::mt19937_64 random(5);
    splitter.rig.run_with_restarts(random, probability);
    return std::pair(splitter.rig.got("train"), splitter.rig.got("test"));
  };
  EXPECT_EQ(all(0), all(0.4));
}

}  // namespace
}  // namespace ringfeed
