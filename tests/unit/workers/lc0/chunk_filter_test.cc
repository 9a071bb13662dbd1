// The specification of workers/lc0/chunk_filter.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Filter {
  explicit Filter(const std::string& own) : rig("epochs: 1") {
    rig.add_source("sources", 1, {.capacity = 64, .bytes = 1 << 18});
    rig.add_stage("name: 'filter' chunk_filter { input: 'sources' " + own + " }");
    rig.add_sink("out", "filter");
    rig.build();
  }
  void feed(const std::string& path, std::size_t chunks = 1, std::uint64_t first_chunk = 0) {
    rig.feed("sources",
             source_record(path, std::vector<ChunkPlace>(chunks, raw_place(0, 9)), first_chunk));
  }
  void run() {
    rig.finish("sources");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  std::vector<std::string> paths() {
    std::vector<std::string> all;
    for (const RigRecord& record : rig.got("out")) {
      all.push_back(record.user == kScanCompleteRecord ? "" : see_source(record).path);
    }
    return all;
  }
  LaneRig rig;
};

std::vector<std::string> passed(const std::string& own, const std::vector<std::string>& paths) {
  Filter filter(own);
  for (const std::string& path : paths) filter.feed(path);
  filter.run();
  return filter.paths();
}

TEST(ChunkFilter, PassesOnTheFilesThatAPatternFits) {
  const std::vector<std::string> paths = {"/d/run1.tar", "/d/run2.tar", "/d/run1.gz", "/d/x"};
  EXPECT_THAT(passed("include: '*.tar'", paths), ElementsAre("/d/run1.tar", "/d/run2.tar"));
  EXPECT_THAT(passed("include: 'run1.*' include: 'x'", paths),
              ElementsAre("/d/run1.tar", "/d/run1.gz", "/d/x"));
  EXPECT_THAT(passed("include: 'run[2-9].t?r'", paths), ElementsAre("/d/run2.tar"));
}

TEST(ChunkFilter, ExcludeWins) {
  const std::vector<std::string> paths = {"/d/run1.tar", "/d/run2.tar", "/d/run1.gz"};
  EXPECT_THAT(passed("exclude: 'run1*'", paths), ElementsAre("/d/run2.tar"));
  EXPECT_THAT(passed("include: '*.tar' exclude: 'run1*'", paths), ElementsAre("/d/run2.tar"));
}

// A pattern is of the name alone: the same files elsewhere are the same choice.
TEST(ChunkFilter, DoesNotLookAtDirectories) {
  EXPECT_THAT(passed("include: 'a*'", {"/a/b.tar", "/b/a.tar", "/b/c/a.tar"}),
              ElementsAre("/b/a.tar", "/b/c/a.tar"));
}

TEST(ChunkFilter, PassesOnTheMarkAndCountsWhatItLeavesOut) {
  Filter filter("include: '*.tar'");
  filter.feed("/d/a.tar", 20);
  filter.feed("/d/b.gz", 3);
  // A huge tar comes in parts: one file.
  filter.feed("/d/c.dat", 10);
  filter.feed("/d/c.dat", 10, 10);
  filter.rig.feed("sources", scan_complete());
  filter.run();
  EXPECT_THAT(filter.paths(), ElementsAre("/d/a.tar", ""));
  EXPECT_EQ(filter.rig.counter("filter", "chunks"), 20U);
  EXPECT_EQ(filter.rig.counter("filter", "files_left_out"), 2U);
}

TEST(ChunkFilter, PassesASourceOnAsItIs) {
  Filter filter("exclude: 'x'");
  const RigRecord source = source_record("/d/a.tar", std::vector<ChunkPlace>(50, raw_place(7, 9)));
  filter.rig.feed("sources", source);
  // What a splitter before it has left nothing of.
  const RigRecord empty = source_record("/d/b.tar", {});
  filter.rig.feed("sources", empty);
  filter.run();
  EXPECT_THAT(texts(filter.rig.got("out")), ElementsAre(source.bytes, empty.bytes));
}

// What the loader lists in one record may be more than these queues take.
TEST(ChunkFilter, CutsASourceThatItsQueueDoesNotTakeWhole) {
  for (const double restarts : {0.0, 0.4}) {
    Filter filter("include: '*' queue_bytes: 65536");
    filter.feed("/d/a.tar", 3000);
    filter.feed("/d/b.tar");
    filter.rig.finish("sources");
    std::mt19937_64 random(5);
    filter.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(filter.rig.all_finished());
    std::uint64_t next = 0;
    for (const RigRecord& record : filter.rig.got("out")) {
      const SeenSource part = see_source(record);
      if (part.path != "/d/a.tar") continue;
      EXPECT_EQ(part.first_chunk, next);
      for (const ChunkPlace& place : part.places) EXPECT_EQ(place.index, next++);
    }
    EXPECT_EQ(next, 3000U);
    EXPECT_EQ(filter.paths().back(), "/d/b.tar");
  }
}

TEST(ChunkFilter, RefusesWhatCannotBe) {
  const auto refused = [](const std::string& own) -> std::string {
    try {
      LaneRig rig;
      rig.add_stage("name: 'f' chunk_filter { input: 'x' " + own + " }");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(refused(""), HasSubstr("neither include nor exclude"));
  EXPECT_THAT(refused("include: ''"), HasSubstr("include[0]: \"\" cannot match a file name"));
  EXPECT_THAT(refused("exclude: 'a' exclude: 'b/*'"),
              HasSubstr("exclude[1]: \"b/*\" cannot match a file name"));
  EXPECT_THAT(refused("include: 'a' overflow_behavior: DROP_NEW"), HasSubstr("use BLOCK"));
  EXPECT_EQ(refused("include: 'a'"), "");
}

}  // namespace
}  // namespace ringfeed
