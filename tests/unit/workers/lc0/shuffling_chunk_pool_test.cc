// The specification of workers/lc0/shuffling_chunk_pool.h.
#include "workers/lc0/shuffling_chunk_pool.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "proto/control.pb.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"
#include "workers/kit/sort_key.h"
#include "workers/lc0/weighed_games.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

// sources -> pool -> out. Chunks are files' raw records, one each, told apart by their numbers.
struct Pool {
  explicit Pool(const std::string& feed, std::uint64_t size, const std::string& settings = "",
                std::uint32_t source_lanes = 1)
      : rig(feed) {
    rig.add_source("sources", source_lanes, {.capacity = 16, .bytes = 1 << 18});
    rig.add_stage(
        fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'sources' chunk_pool_size: {} "
                    "queue_bytes: 262144 {} }}",
                    size, settings));
    rig.add_sink("out", "pool");
    rig.build();
  }
  void add(const std::string& name, std::uint64_t first_id, std::uint64_t chunks) {
    rig.feed("sources", write_source(directory, name, first_id, chunks));
  }
  void complete_scan() { rig.feed("sources", scan_complete()); }
  void finish() {
    rig.finish("sources");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  // There are no files but those that were added: everything that comes of them.
  void scan_and_finish() {
    complete_scan();
    finish();
  }
  // The same while lanes die. Before each round one does with the probability `restarts`.
  std::vector<SeenChunk> scan_and_finish_with(std::uint64_t seed, double restarts) {
    complete_scan();
    rig.finish("sources");
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    return chunks();
  }
  [[nodiscard]] std::vector<SeenChunk> chunks() const {
    std::vector<SeenChunk> all;
    for (const RigRecord& record : rig.got("out")) all.push_back(see_chunk(record));
    return all;
  }
  // The first record of each chunk, in order of arrival.
  [[nodiscard]] std::vector<std::uint64_t> ids() const {
    std::vector<std::uint64_t> all;
    for (const SeenChunk& chunk : chunks()) all.push_back(chunk.ids.front());
    return all;
  }
  // Takes `count` chunks more.
  std::vector<std::uint64_t> take(std::uint64_t count) {
    const std::size_t before = ids().size();
    rig.allow("out", count);
    rig.run();
    const std::vector<std::uint64_t> all = ids();
    EXPECT_EQ(all.size(), before + count);
    return {all.begin() + static_cast<std::ptrdiff_t>(before), all.end()};
  }

  TempDir directory;
  LaneRig rig;
};

// The numbers from `first` to `last`, each `times` times, in their order.
std::vector<std::uint64_t> repeated(std::uint64_t first, std::uint64_t last, int times) {
  std::vector<std::uint64_t> all;
  for (const std::uint64_t id : numbers(first, last)) all.insert(all.end(), times, id);
  return all;
}

// ---- the window

TEST(PoolWindow, GivesEachChunkOnceInAFinitePass) {
  Pool pool("epochs: 1", 100);
  pool.add("a", 0, 10);
  pool.add("b", 10, 1);
  pool.add("c", 11, 19);
  pool.scan_and_finish();
  EXPECT_EQ(sorted(pool.ids()), numbers(0, 30));
  EXPECT_NE(pool.ids(), numbers(0, 30)) << "in a random order";
  EXPECT_EQ(pool.rig.counter("pool.read", "chunks_read"), 30U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_total"), 30U);
}

// 30 chunks in two files, a window of 20: the newest 20, though half of the older file stays.
TEST(PoolWindow, IsTheNewestChunks) {
  Pool pool("epochs: 1", 20);
  pool.add("2024-01", 0, 15);
  pool.add("2024-02", 15, 15);
  pool.scan_and_finish();
  EXPECT_EQ(sorted(pool.ids()), numbers(10, 30));
  EXPECT_EQ(pool.rig.counter("pool", "sources_kept"), 2U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_kept"), 30U) << "of both of them";
  EXPECT_EQ(pool.rig.counter("pool", "chunks_in_window"), 20U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_outside_window"), 10U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_total"), 20U) << "ever in the window";
}

// What comes later pushes out as much as is too much, and of a large file only its end comes in.
TEST(PoolWindow, CountsWhatEntersAndWhatLeaves) {
  Pool pool("", 60, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  const auto entered_and_left = [&pool] {
    pool.rig.run();
    return std::pair(pool.rig.counter("pool", "chunks_total"),
                     pool.rig.counter("pool", "chunks_outside_window"));
  };
  using Counted = std::pair<std::uint64_t, std::uint64_t>;
  pool.add("0", 0, 7);  // is never looked at: the newer files fill the window
  pool.add("1", 7, 40);
  pool.add("2", 47, 40);
  pool.complete_scan();
  EXPECT_EQ(entered_and_left(), Counted(60, 27));
  pool.add("3", 87, 60);
  EXPECT_EQ(entered_and_left(), Counted(120, 87));
  pool.rig.restart_all();
  pool.add("4", 147, 100);
  EXPECT_EQ(entered_and_left(), Counted(180, 187));
}

// New is what has the larger file name, whatever the order of arrival and the directory.
TEST(PoolWindow, IsTheSameForEveryOrderOfArrival) {
  std::map<std::string, std::uint64_t> files = {
      {"z/a", 0}, {"y/b", 10}, {"x/c", 20}, {"w/d", 30}, {"v/e", 40}};
  std::vector<std::string> names = {"z/a", "y/b", "x/c", "w/d", "v/e"};
  std::vector<std::uint64_t> expected;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Pool pool("epochs: 2 seed: 4", 25);
    for (const std::string& name : names) pool.add(name, files[name], 10);
    pool.scan_and_finish();
    EXPECT_EQ(sorted(pool.ids()), repeated(25, 50, 2));
    if (expected.empty()) expected = pool.ids();
    EXPECT_EQ(pool.ids(), expected) << "order " << seed;
    EXPECT_EQ(pool.rig.counter("pool", "chunks_outside_window"), 25U);
    std::mt19937_64 random(seed);
    std::shuffle(names.begin(), names.end(), random);
  }
}

TEST(PoolWindow, DrawsNothingBeforeTheScanIsComplete) {
  Pool pool("", 20);
  pool.add("a", 0, 10);
  pool.rig.run();
  EXPECT_THAT(pool.ids(), IsEmpty());
  pool.complete_scan();
  EXPECT_EQ(sorted(pool.take(10)), numbers(0, 10));
}

// New files join the pass under way and push the oldest out.
TEST(PoolWindow, MovesUpWithNewFiles) {
  Pool pool("", 20, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 10);
  pool.add("b", 10, 10);
  pool.complete_scan();
  pool.rig.run();
  pool.add("c", 20, 10);
  pool.rig.run();
  EXPECT_EQ(pool.rig.counter("pool", "chunks_in_window"), 20U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_kept"), 20U) << "the oldest file is out";
  EXPECT_EQ(pool.rig.counter("pool", "chunks_total"), 30U);
  // Up to 64 tasks were drawn ahead, so all that may come of the first file is what was drawn then.
  const std::vector<std::uint64_t> later = pool.take(400);
  const std::vector<std::uint64_t> last(later.end() - 200, later.end());
  std::map<std::uint64_t, int> times;
  for (const std::uint64_t id : last) ++times[id];
  EXPECT_EQ(times.size(), 20U);
  for (const auto& [id, count] : times) {
    EXPECT_GE(id, 10U);
    EXPECT_GE(count, 9);
    EXPECT_LE(count, 11);
  }
}

// ---- passes

TEST(PoolPasses, RepeatNothingWithinAPassAndCountTheUses) {
  Pool pool("epochs: 4", 100);
  pool.add("a", 0, 25);
  pool.scan_and_finish();
  const std::vector<SeenChunk> chunks = pool.chunks();
  ASSERT_THAT(chunks, SizeIs(100));
  std::set<std::vector<std::uint64_t>> orders;
  for (std::size_t pass = 0; pass < 4; ++pass) {
    std::vector<std::uint64_t> ids;
    for (std::size_t i = 25 * pass; i < 25 * (pass + 1); ++i) {
      ids.push_back(chunks[i].ids.front());
      EXPECT_EQ(chunks[i].uses, pass) << "uses before this one";
    }
    EXPECT_EQ(sorted(ids), numbers(0, 25)) << "pass " << pass;
    orders.insert(ids);
  }
  EXPECT_THAT(orders, SizeIs(4)) << "another order each time";
  EXPECT_EQ(pool.rig.counter("pool", "reshuffles"), 3U);
}

TEST(PoolPasses, GoOnForEverInAnEndlessRun) {
  Pool pool("", 10);
  pool.add("a", 0, 3);
  pool.complete_scan();
  const std::vector<std::uint64_t> drawn = pool.take(300);
  for (std::uint64_t id = 0; id < 3; ++id) {
    EXPECT_EQ(std::count(drawn.begin(), drawn.end(), id), 100);
  }
}

TEST(PoolPasses, GiveChunksTheSameIdentityInEveryRunAndDirectory) {
  std::vector<std::map<std::uint64_t, std::uint64_t>> runs;
  for (int run = 0; run < 2; ++run) {
    Pool pool(fmt::format("epochs: 1 seed: {}", run), 100);  // a new directory each time
    pool.add("a", 0, 10);
    pool.add("b", 10, 10);
    pool.scan_and_finish();
    std::map<std::uint64_t, std::uint64_t> identities;
    for (const SeenChunk& chunk : pool.chunks()) identities[chunk.identity] = chunk.ids.front();
    EXPECT_THAT(identities, SizeIs(20)) << "no two alike";
    runs.push_back(identities);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// Also when loaders run beside each other without an order: a file that comes after the marker
// belongs to the scan all the same.
TEST(PoolPasses, UseEveryFileOfAFiniteRunWhateverTheMarkerOvertook) {
  Pool pool("epochs: 2 feed_output { dispatch: RELAXED }", 100, "", 2);
  pool.add("a", 0, 5);
  pool.complete_scan();  // of lane 1
  pool.rig.round(pool.rig.lanes_of("sources")[1]);
  pool.rig.round(pool.rig.lanes_of("pool").front());
  pool.rig.run();
  pool.add("b", 5, 5);
  pool.finish();
  EXPECT_EQ(sorted(pool.ids()), repeated(0, 10, 2));
}

// ---- replaced files

TEST(PoolReplaced, WhileScanningOnlyTheNewContentIsKept) {
  Pool pool("epochs: 1", 100);
  pool.add("a", 0, 10);
  pool.add("b", 100, 5);
  pool.add("a", 200, 3);
  pool.scan_and_finish();
  EXPECT_EQ(sorted(pool.ids()),
            (std::vector<std::uint64_t>{100, 101, 102, 103, 104, 200, 201, 202}));
}

// Written anew under the same name (rename), while the reading lane has the old file open. What was
// drawn before still names places of the old file; what is drawn afterwards is the new one.
TEST(PoolReplaced, WhileDrawingTheNewContentIsRead) {
  Pool pool("", 100, "queue_capacity: 1");
  pool.add("a", 0, 10);
  pool.complete_scan();
  pool.take(15);
  std::filesystem::rename(pool.directory.path("a"), pool.directory.path("was-a"));
  pool.add("a", 200, 4);
  const std::vector<std::uint64_t> drawn = pool.take(300);
  std::map<std::uint64_t, int> times;
  for (auto id = drawn.end() - 100; id != drawn.end(); ++id) ++times[*id];
  EXPECT_THAT(times, SizeIs(4));
  for (const std::uint64_t id : numbers(200, 204)) EXPECT_NEAR(times[id], 25, 1) << id;
}

// ---- chunks that cannot be used

struct BadChunk {
  const char* reason;
  ChunkPlace place;
  std::string file = {};  // content; a directory if empty, absent if "absent"
  friend void PrintTo(const BadChunk& bad, std::ostream* out) { *out << bad.reason; }
};

class PoolBad : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<BadChunk> kinds() {
    const std::string gzip = gzip_text(game(900, 2));
    const auto whole = [](const std::string& file, std::uint16_t flags) {
      return ChunkPlace{.offset = 0,
                        .bytes = static_cast<std::uint32_t>(file.size()),
                        .index = 0,
                        .frames = 2,
                        .uses = 0,
                        .flags = flags};
    };
    std::string damaged = gzip;
    damaged[gzip.size() / 2] = static_cast<char>(damaged[gzip.size() / 2] ^ 0x55);
    std::string bad_sum = gzip;
    bad_sum[gzip.size() - 6] = static_cast<char>(bad_sum[gzip.size() - 6] ^ 1);
    std::string version_4 = game(900, 2);
    version_4[0] = 4;
    std::string other_format = game(900, 2);
    other_format[4] = 3;
    const std::string odd = game(900, 2) + "x";
    const std::string huge = game(900, 200);
    return {
        {"skipped_vanished", whole(gzip, kChunkGzip), "absent"},
        {"skipped_unreadable", whole(gzip, kChunkGzip), ""},
        {"skipped_unreadable", whole(gzip, kChunkGzip), "fifo"},
        {"skipped_damaged", whole(damaged, kChunkGzip), damaged},
        {"skipped_damaged", whole(bad_sum, kChunkGzip), bad_sum},
        {"skipped_damaged", whole(gzip, kChunkGzip), gzip.substr(0, gzip.size() - 9)},
        {"skipped_damaged",
         {.offset = 0, .bytes = ~0U, .index = 0, .frames = 1, .uses = 0, .flags = 0},
         odd},
        {"skipped_empty",
         {.offset = 0, .bytes = 0, .index = 0, .frames = 0, .uses = 0, .flags = 0},
         odd},
        {"skipped_empty", whole(gzip_text(""), kChunkGzip), gzip_text("")},
        {"skipped_record", whole(odd, 0), odd},
        {"skipped_record", whole(version_4, 0), version_4},
        {"skipped_record", whole(other_format, 0), other_format},
        {"skipped_too_large", whole(huge, 0), huge},
    };
  }
};

// It is counted by its reason, logged with its path, drops out of the window, and everything around
// it is delivered.
TEST_P(PoolBad, IsSkippedOnceAndForAll) {
  const BadChunk bad = kinds()[static_cast<std::size_t>(GetParam())];
  Pool pool("epochs: 3", 100);
  pool.add("a", 0, 5);
  const std::string path = pool.directory.path("bad");
  if (bad.file.empty()) {
    std::filesystem::create_directory(path);
  } else if (bad.file == "fifo") {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  } else if (bad.file != "absent") {
    pool.directory.write("bad", bad.file);
  }
  pool.rig.feed("sources", source_record(path, {bad.place}));
  pool.add("c", 5, 5);
  pool.scan_and_finish();
  std::map<std::uint64_t, int> times;
  for (const std::uint64_t id : pool.ids()) ++times[id];
  EXPECT_THAT(times, SizeIs(10));
  for (const auto& [id, count] : times) EXPECT_EQ(count, 3) << id;
  const std::uint64_t skipped = pool.rig.counter("pool.read", bad.reason);
  EXPECT_GE(skipped, 1U) << bad.reason;
  EXPECT_EQ(pool.rig.counter("pool", "chunks_dropped"), 1U);
  EXPECT_THAT(pool.rig.log(bad.reason), Contains(HasSubstr(path)));
}
INSTANTIATE_TEST_SUITE_P(Kinds, PoolBad, ::testing::Range(0, 13));

// A chunk is not given up because the process has no descriptor left.
TEST(PoolRead, WaitsForADescriptor) {
  Pool pool("epochs: 1", 100);
  pool.add("a", 0, 5);
  pool.add("b", 5, 5);
  pool.complete_scan();
  pool.rig.finish("sources");
  {
    const NoDescriptors none;
    pool.rig.run();
  }
  EXPECT_THAT(pool.ids(), IsEmpty());
  EXPECT_THAT(pool.rig.log("no_descriptor"), Not(IsEmpty()));
  pool.finish();
  EXPECT_EQ(sorted(pool.ids()), numbers(0, 10));
  EXPECT_EQ(pool.rig.counter("pool", "chunks_dropped"), 0U);
}

TEST(PoolRead, AcceptsWhatTheTrailerClaimsTooLittle) {
  Pool pool("epochs: 1", 100);
  const std::string gzip = gzip_text(game(40, 20));
  const std::string path = pool.directory.write("a", gzip);
  pool.rig.feed("sources", source_record(path, {{.offset = 0,
                                                 .bytes = static_cast<std::uint32_t>(gzip.size()),
                                                 .index = 0,
                                                 .frames = 1,
                                                 .uses = 0,
                                                 .flags = kChunkGzip}}));
  pool.scan_and_finish();
  ASSERT_THAT(pool.chunks(), SizeIs(1));
  EXPECT_EQ(pool.chunks().front().ids, numbers(40, 60));
}

TEST(PoolRead, ReadsFromTheMiddleOfAFileAndKeepsManyOpen) {
  Pool pool("epochs: 2", 1000);
  for (std::uint64_t file = 0; file < 200; ++file) {
    pool.add(fmt::format("{:03}", file), 2 * file, 2);
  }
  pool.scan_and_finish();
  EXPECT_EQ(sorted(pool.ids()), repeated(0, 400, 2));
}

// ---- nothing to draw

TEST(PoolEmpty, WaitsAndSaysSoWhenNothingCanBeUsed) {
  Pool pool("", 10);
  pool.rig.feed("sources", source_record("/nowhere/at/all", {raw_place(0, 10), raw_place(10, 10)}));
  pool.complete_scan();
  pool.rig.run();  // returns: nothing moves any more
  EXPECT_THAT(pool.rig.note("pool"), HasSubstr("waiting"));
  EXPECT_THAT(pool.rig.log("window_unusable"), SizeIs(1));
  const std::uint64_t draws = pool.rig.counter("pool", "draws");
  EXPECT_LE(draws, 100U);
  pool.rig.run();
  EXPECT_EQ(pool.rig.counter("pool", "draws"), draws) << "does not spin";
  pool.add("good", 70, 3);
  EXPECT_EQ(sorted(pool.take(3)), numbers(70, 73));
}

TEST(PoolEmpty, WaitsForTheFirstFile) {
  Pool pool("", 10);
  pool.complete_scan();
  pool.rig.run();
  EXPECT_THAT(pool.rig.note("pool"), HasSubstr("no chunks yet"));
  pool.add("first", 0, 2);
  EXPECT_EQ(sorted(pool.take(2)), numbers(0, 2));
}

TEST(PoolEmpty, EndsAFiniteRunAndSaysSo) {
  Pool pool("epochs: 5", 10);
  pool.scan_and_finish();
  EXPECT_THAT(pool.ids(), IsEmpty());
  EXPECT_THAT(pool.rig.log("no_chunks"), SizeIs(1));
}

TEST(PoolEmpty, EndsAFiniteRunOfNothingButBadChunks) {
  Pool pool("epochs: 5", 10);
  pool.rig.feed("sources", source_record("/nowhere/at/all", {raw_place(0, 9)}));
  pool.scan_and_finish();
  EXPECT_THAT(pool.ids(), IsEmpty());
  EXPECT_EQ(pool.rig.counter("pool", "chunks_dropped"), 1U);
}

TEST(PoolDrain, EndsAtOnce) {
  Pool pool("", 10);
  pool.add("a", 0, 5);
  pool.complete_scan();
  pool.take(20);
  pool.rig.want(shm::LaneDesire::kDrain);
  pool.rig.allow("out", 10'000);
  pool.finish();
  EXPECT_LT(pool.ids().size(), 200U) << "what was drawn is read and flows out, no more";
}

// ---- many sources

// A year of an endless run in small: 3000 files slide through a window of 500 chunks. The table of
// sources moves from bank to bank and stays of one size.
TEST(PoolTable, StaysOfOneSizeWhileTheWindowSlides) {
  Pool pool("", 500, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  const std::string one_file = pool.directory.write("data", game(0, 1));
  const std::vector<ChunkPlace> places(20, raw_place(0, formats::kV6RecordBytes));
  const auto add = [&](int file) {
    // The same file under many names.
    const std::string name =
        pool.directory.path(fmt::format("{:06}-{}", file, std::string(80, 'n')));
    std::filesystem::create_hard_link(one_file, name);
    pool.rig.feed("sources", source_record(name, places));
    if (file % 10 == 0) pool.rig.run();
  };
  for (int file = 0; file < 100; ++file) add(file);
  pool.complete_scan();
  pool.rig.run();
  for (int file = 100; file < 1500; ++file) add(file);
  const std::uint64_t halfway = pool.rig.arena_bytes("pool");
  for (int file = 1500; file < 3000; ++file) add(file);
  pool.rig.run();
  EXPECT_EQ(pool.rig.arena_bytes("pool"), halfway);
  EXPECT_EQ(pool.rig.counter("pool", "sources_kept"), 25U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_total"), 60'000U - 1'500U) << "1500 were too old";
  EXPECT_EQ(pool.rig.counter("pool", "chunks_outside_window"), 60'000U - 500U);
}

// 40,000 chunks do not fit the first bank.
TEST(PoolTable, GrowsWhileScanning) {
  Pool pool("epochs: 1", 100'000, "queue_capacity: 64");
  const std::string file = pool.directory.write("data", game(0, 1));
  const std::vector<ChunkPlace> places(1000, raw_place(0, formats::kV6RecordBytes));
  for (int name = 0; name < 60; ++name) {
    const std::string link = pool.directory.path(fmt::format("{:02}", name));
    std::filesystem::create_hard_link(file, link);
    pool.rig.feed("sources", source_record(link, places));
  }
  const std::uint64_t before = pool.rig.arena_bytes("pool");
  pool.complete_scan();
  pool.rig.allow("out", 0);
  pool.rig.finish("sources");
  std::mt19937_64 random(1);
  pool.rig.run_with_restarts(random, 0.05);
  EXPECT_GT(pool.rig.arena_bytes("pool"), before);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_total"), 60'000U);
  EXPECT_EQ(pool.rig.counter("pool", "sources_kept"), 60U);
}

// ---- restarts and lanes

TEST(PoolRestart, BetweenAnyTwoRoundsAndWithAnyLanesGivesTheSameChunks) {
  const auto run = [](int threads, std::uint64_t seed, double restarts) {
    Pool pool("epochs: 3 seed: 9", 30, fmt::format("threads: {} queue_capacity: 3", threads));
    pool.add("d", 40, 7);
    pool.add("a", 0, 10);
    pool.rig.feed("sources", source_record(pool.directory.path("gone"),
                                           std::vector<ChunkPlace>(3, raw_place(0, 9))));
    pool.add("c", 30, 10);
    pool.add("b", 10, 20);
    pool.add("c", 60, 8);
    return pool.scan_and_finish_with(seed, restarts);
  };
  const std::vector<SeenChunk> undisturbed = run(1, 0, 0);
  ASSERT_THAT(undisturbed, SizeIs(3 * 27)) << "three of the thirty cannot be read";
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_EQ(run(1 + static_cast<int>(seed % 3), seed, seed % 4 == 0 ? 0.0 : 0.2), undisturbed)
        << "seed " << seed;
  }
}

TEST(PoolSettings, ThatMeanNothingAloneAreRefused) {
  for (const char* setting :
       {"weighted_sampling_gamma: 1", "position_sampling {} hanse_sampling_threshold: 3",
        "store_directory: '/tmp/games'"}) {
    LaneRig rig;
    EXPECT_THROW(rig.add_stage(fmt::format(
                     "name: 'pool' shuffling_chunk_pool {{ input: 'sources' {} }}", setting)),
                 Error)
        << setting;
  }
}

TEST(PoolSettings, AnExponentWithoutItsThresholdIsWarnedOf) {
  const StageViews stages(
      "stages { name: 'pool' shuffling_chunk_pool { hanse_sampling_gamma: 1.5 } }");
  const std::vector<Problem> problems = shuffling_chunk_pool_type().problems(stages["pool"]);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_TRUE(problems.front().warning);
  EXPECT_THAT(problems.front().text,
              HasSubstr("hanse_sampling_gamma does nothing without hanse_sampling_threshold"));
}

// ---- sampling by the number of records

TEST(Acceptance, IsTheShareOfTheThresholdToThePowerOfGamma) {
  EXPECT_EQ(acceptance(50, 100, 1), 0.5);
  EXPECT_EQ(acceptance(100, 100, 1), 1.0);
  EXPECT_EQ(acceptance(500, 100, 3), 1.0);
  EXPECT_EQ(acceptance(50, 100, 2), 0.25);
  EXPECT_EQ(acceptance(50, 100, 0), 1.0);
}

// Chunks of 1 to 8 records in one file, each told by its first record.
RigRecord source_of_sizes(const TempDir& directory, std::uint64_t chunks) {
  std::string file;
  std::vector<ChunkPlace> places;
  for (std::uint64_t i = 0; i < chunks; ++i) {
    const std::string records = game(100 * i, 1 + i % 8);
    ChunkPlace place = raw_place(file.size(), records.size());
    place.frames = static_cast<std::uint32_t>(1 + i % 8);
    places.push_back(place);
    file += records;
  }
  directory.write("sizes.tar", file);
  return source_record(directory.path() + "/sizes.tar", places);
}

TEST(PoolHanse, AcceptsChunksByTheirRecords) {
  constexpr std::uint64_t kChunks = 80;
  constexpr std::uint64_t kPasses = 200;
  Pool pool(fmt::format("seed: 5 epochs: {}", kPasses), 1000, "hanse_sampling_threshold: 4");
  pool.rig.feed("sources", source_of_sizes(pool.directory, kChunks));
  pool.scan_and_finish();
  std::map<std::size_t, double> accepted;
  std::map<std::uint64_t, std::uint16_t> uses;
  for (const SeenChunk& chunk : pool.chunks()) {
    accepted[chunk.ids.size()] += 1;
    // Only a draw that was accepted is a use.
    EXPECT_EQ(chunk.uses, uses[chunk.identity]++);
  }
  for (std::size_t records = 1; records <= 8; ++records) {
    const double share = accepted[records] / (kChunks / 8 * kPasses);
    EXPECT_NEAR(share, std::min(1.0, static_cast<double>(records) / 4), 0.05) << records;
  }
  const std::uint64_t draws = pool.rig.counter("pool", "draws");
  EXPECT_EQ(draws, pool.chunks().size());
  EXPECT_EQ(draws + pool.rig.counter("pool", "hanse_rejected"), kChunks * kPasses);
  EXPECT_EQ(pool.rig.counter("pool.read", "chunks_read"), draws) << "nothing else is read";
}

TEST(PoolHanse, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Pool pool("seed: 5 epochs: 9", 60,
              "hanse_sampling_threshold: 6 hanse_sampling_gamma: 2.5 threads: 2");
    pool.rig.feed("sources", source_of_sizes(pool.directory, 70));
    return pool.scan_and_finish_with(seed, restarts);
  };
  const std::vector<SeenChunk> undisturbed = run(0, 0);
  EXPECT_LT(undisturbed.size(), 9 * 60U);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) ASSERT_EQ(run(seed, 0.2), undisturbed) << seed;
}

// A chunk that claims no records is drawn, so that its reader says what is wrong with it.
// 8 records of 100,000, to the power of 5: one draw in 10^20 would be accepted.
TEST(PoolHanse, SaysWhyAWholePassGivesNothing) {
  Pool pool("seed: 5", 60, "hanse_sampling_threshold: 100000 hanse_sampling_gamma: 5");
  pool.rig.feed("sources", source_of_sizes(pool.directory, 40));
  pool.complete_scan();
  pool.rig.allow("out", 10);
  ASSERT_TRUE(pool.rig.run_until([&] { return pool.rig.counter("pool", "gives_nothing") == 1; }));
  EXPECT_THAT(pool.rig.note("pool"), HasSubstr("none of the 40 chunks in the window was accepted"));
  EXPECT_THAT(pool.rig.note("pool"), HasSubstr("the longest, of 8 records"));
  // It goes on slowly: a run ends where it waits, after a pass.
  const std::uint64_t before = pool.rig.counter("pool", "reshuffles");
  for (int i = 0; i < 20; ++i) pool.rig.run();
  EXPECT_LE(pool.rig.counter("pool", "reshuffles"), before + 21);
  EXPECT_THAT(pool.rig.log("nothing_accepted"), SizeIs(Le(2U))) << "once, then again each tenfold";
  EXPECT_THAT(pool.ids(), IsEmpty());
  // A file with a chunk that is long enough is taken at once.
  std::string file = game(90000, 2);
  ChunkPlace place = raw_place(0, file.size());
  place.frames = 1'000'000;
  pool.directory.write("tall.tar", file);
  pool.rig.feed("sources", source_record(pool.directory.path("tall.tar"), {place}));
  ASSERT_TRUE(pool.rig.run_until([&] { return !pool.ids().empty(); }));
  EXPECT_EQ(pool.rig.counter("pool", "gives_nothing"), 0U);
}

// A pass that gives nothing for want of luck is over with the next chunk.
TEST(PoolHanse, SaysLittleOfPassesWithoutLuck) {
  Pool pool("seed: 5 epochs: 50", 60, "hanse_sampling_threshold: 100");
  pool.rig.feed("sources", source_of_sizes(pool.directory, 40));
  pool.scan_and_finish();
  EXPECT_THAT(pool.ids(), Not(IsEmpty()));
  // Of the 50 passes one in six has no luck.
  EXPECT_THAT(pool.rig.log("nothing_accepted").size(), Le(2U)) << "once, and again each tenfold";
  EXPECT_EQ(pool.rig.counter("pool", "gives_nothing"), 0U);
}

TEST(PoolHanse, AcceptsWhatClaimsNothing) {
  Pool pool("epochs: 1", 10, "hanse_sampling_threshold: 100");
  pool.directory.write("bad.gz", "not records");
  ChunkPlace place = raw_place(0, 11);
  place.frames = 0;
  pool.rig.feed("sources", source_record(pool.directory.path() + "/bad.gz", {place}));
  pool.scan_and_finish();
  EXPECT_EQ(pool.rig.counter("pool.read", "skipped_record"), 1U);
}

// ---- sampling by weight

// Every position weighs 1 (none of these records says what the search found), so a chunk of n
// weighs n: the share is n / 8 to the power of gamma, once the largest has been met.
TEST(PoolWeights, AcceptChunksByTheirShareOfTheLargest) {
  constexpr std::uint64_t kChunks = 80;
  constexpr std::uint64_t kPasses = 200;
  for (const double gamma : {1.0, 2.0}) {
    Pool pool(fmt::format("seed: 5 epochs: {}", kPasses), 1000,
              fmt::format("position_sampling {{ }} weighted_sampling_gamma: {}", gamma));
    pool.rig.feed("sources", source_of_sizes(pool.directory, kChunks));
    pool.scan_and_finish();
    std::map<std::size_t, double> accepted;
    std::map<std::uint64_t, std::uint16_t> uses;
    for (const SeenChunk& chunk : pool.chunks()) {
      accepted[chunk.ids.size()] += 1;
      EXPECT_EQ(chunk.uses, uses[chunk.identity]++);
    }
    for (std::size_t records = 1; records <= 8; ++records) {
      const double share = accepted[records] / (kChunks / 8 * kPasses);
      EXPECT_NEAR(share, std::pow(static_cast<double>(records) / 8, gamma), 0.05) << records;
    }
    const std::uint64_t draws = pool.rig.counter("pool", "draws");
    EXPECT_EQ(draws + pool.rig.counter("pool", "weighted_rejected"), kChunks * kPasses);
    EXPECT_EQ(pool.rig.counter("pool.weigh", "chunks_weighed"), kChunks) << "each of them once";
    EXPECT_EQ(pool.rig.counter("pool", "weights_known"), kChunks * (kPasses - 1));
    EXPECT_EQ(pool.rig.counter("pool", "chunk_weights"), kChunks * kPasses);
    EXPECT_EQ(pool.rig.counter("pool", "chunk_weight_sum_millionths"),
              kChunks * kPasses * 9 / 2 * 1'000'000);
    EXPECT_EQ(pool.rig.counter("pool", "chunk_weight_min_millionths"), 1'000'000U);
    EXPECT_EQ(pool.rig.counter("pool", "chunk_weight_max_millionths"), 8'000'000U);
  }
}

TEST(PoolWeights, GiveTheSameWhateverHappens) {
  const auto run = [](const char* settings, std::uint64_t seed, double restarts) {
    Pool pool("seed: 5 epochs: 9", 60,
              fmt::format("position_sampling {{ }} weighted_sampling_gamma: 0.7 {}", settings));
    pool.rig.feed("sources", source_of_sizes(pool.directory, 70));
    return pool.scan_and_finish_with(seed, restarts);
  };
  const std::vector<SeenChunk> undisturbed = run("", 0, 0);
  EXPECT_LT(undisturbed.size(), 9 * 60U);
  EXPECT_EQ(run("threads: 3", 0, 0), undisturbed);
  EXPECT_EQ(run("store_bytes: 16777216", 0, 0), undisturbed);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    ASSERT_EQ(run("threads: 2", seed, 0.2), undisturbed) << seed;
  }
}

// A chunk that is accepted when it has just been weighed is not read again; in later passes, when
// its weight is known, it is, unless it is one of those weighed last.
TEST(PoolWeights, ReadAChunkOnceForItsWeightAndItsFirstUse) {
  constexpr std::uint64_t kChunks = 400;
  constexpr std::uint64_t kKept = 2 * (WeighedGames::kAhead + WeighedGames::kUnderWay);
  Pool pool("seed: 5 epochs: 3", 1000, "position_sampling { } weighted_sampling_gamma: 0");
  pool.rig.feed("sources", source_of_sizes(pool.directory, kChunks));
  pool.scan_and_finish();
  EXPECT_EQ(pool.chunks().size(), 3 * kChunks) << "all are accepted";
  EXPECT_EQ(pool.rig.counter("pool.weigh", "chunks_weighed"), kChunks);
  EXPECT_EQ(pool.rig.counter("pool.read", "chunks_read"), 2 * (kChunks - kKept));
}

// A chunk that cannot be weighed is not used, and nothing waits for it.
TEST(PoolWeights, LeaveOutWhatCannotBeRead) {
  Pool pool("epochs: 3", 100, "position_sampling { } threads: 2");
  pool.add("a", 0, 10);
  const std::string path = pool.directory.write("bad.gz", "not records");
  pool.rig.feed("sources", source_record(path, {raw_place(0, 11)}));
  pool.add("c", 10, 10);
  pool.scan_and_finish();
  EXPECT_EQ(sorted(pool.ids()).size(), 60U) << "all weigh the same";
  EXPECT_EQ(pool.rig.counter("pool.weigh", "skipped_record"), 1U);
  EXPECT_EQ(pool.rig.counter("pool", "chunks_dropped"), 1U);
}

// In an endless run with nothing but such chunks the pool waits for new files.
TEST(PoolWeights, WaitForFilesWhereNothingCanBeUsed) {
  Pool pool("", 100, "position_sampling { }");
  const std::string path = pool.directory.write("bad.gz", "not records");
  pool.rig.feed("sources", source_record(path, {raw_place(0, 11)}));
  pool.complete_scan();
  pool.rig.run();
  EXPECT_THAT(pool.ids(), IsEmpty());
  EXPECT_THAT(pool.rig.note("pool"), HasSubstr("waiting for new files"));
  pool.add("good", 0, 3);
  EXPECT_THAT(pool.take(9), SizeIs(9));
}

// A game of which the search has found out more is drawn more often.
TEST(PoolWeights, AreThoseOfThePositions) {
  Pool pool(
      "seed: 2 epochs: 60", 100,
      "position_sampling { diff_focus_q_weight: 1 diff_focus_pol_scale: 0 diff_focus_tau: 9 }");
  std::string file;
  std::vector<ChunkPlace> places;
  for (std::uint64_t i = 0; i < 40; ++i) {
    std::string record = lc0_record(i);
    const float best_q = i % 2 == 0 ? 1.0F : 0.25F;
    const float orig_q = 0;
    const float policy_kld = 0;
    std::memcpy(record.data() + formats::v6::kBestQ, &best_q, sizeof best_q);
    std::memcpy(record.data() + formats::v6::kOrigQ, &orig_q, sizeof orig_q);
    std::memcpy(record.data() + formats::v6::kPolicyKld, &policy_kld, sizeof policy_kld);
    places.push_back(raw_place(file.size(), record.size()));
    file += record;
  }
  pool.rig.feed("sources", source_record(pool.directory.write("w", file), places));
  pool.scan_and_finish();
  double even = 0;
  double odd = 0;
  for (const std::uint64_t id : pool.ids()) (id % 2 == 0 ? even : odd) += 1;
  EXPECT_EQ(even, 20 * 60) << "the largest weight is always accepted";
  EXPECT_NEAR(odd / (20 * 60), 0.25, 0.06);
}

// ---- the store

using Positions = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // chunk, frame

// What comes out of the last of these stages, and how often the pool's store was of use.
Positions positions_of(const TempDir& directory, const std::vector<std::string>& stages,
                       const std::string& last, const std::string& pool, std::uint64_t seed,
                       double restarts, std::uint64_t* hits) {
  LaneRig rig("seed: 5 epochs: 12");
  rig.add_source("sources", 1, {.capacity = 16, .bytes = 1 << 18});
  for (const std::string& stage : stages) rig.add_stage(stage);
  rig.add_sink("out", last);
  rig.build();
  rig.feed("sources", source_of_sizes(directory, 40));
  rig.feed("sources", scan_complete());
  rig.finish("sources");
  std::mt19937_64 random(seed);
  rig.run_with_restarts(random, restarts);
  EXPECT_TRUE(rig.all_finished());
  if (hits != nullptr) *hits = rig.counter(pool + ".read", "store_hits");
  Positions all;
  for (const RigRecord& record : rig.got("out")) {
    const std::uint64_t id = frame_id(record.bytes);
    EXPECT_EQ(record.tag[1], id % 100) << "the position's number in its chunk";
    all.emplace_back(record.tag[0], id);
  }
  EXPECT_EQ(rig.counter(last == pool ? pool + ".read" : last, "frames"), all.size());
  return all;
}

// A pool whose reader knows that only some positions are wanted, and what comes out of the
// unpacker.
Positions unpacked(const TempDir& directory, const std::string& pool_settings,
                   const std::string& unpacker, std::uint64_t seed = 0, double restarts = 0,
                   std::uint64_t* hits = nullptr) {
  return positions_of(
      directory,
      {fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'sources' chunk_pool_size: 50 "
                   "queue_bytes: 1048576 {} }}",
                   pool_settings),
       fmt::format("name: 'unpacker' chunk_unpacker {{ input: 'pool' {} }}", unpacker)},
      "unpacker", "pool", seed, restarts, hits);
}

// The same of a pool that puts out frames itself. Choices are drawn from the stage's name: the
// unpacker's.
Positions framed(const TempDir& directory, const std::string& pool_settings,
                 const std::string& frames, std::uint64_t seed = 0, double restarts = 0,
                 std::uint64_t* hits = nullptr) {
  return positions_of(directory,
                      {fmt::format("name: 'unpacker' shuffling_chunk_pool {{ input: 'sources' "
                                   "chunk_pool_size: 50 frames {{ {} }} {} }}",
                                   frames, pool_settings)},
                      "unpacker", "unpacker", seed, restarts, hits);
}

const char* const kChoices[] = {
    "position_sampling_rate: 1", "position_sampling_rate: 0.25", "position_count: 1",
    "position_count: 9",  // more than the chunks have: some come twice in a use
    "position_count: 2 position_sampling { diff_focus_pol_scale: 1 }"};

TEST(PoolStore, ChangesNothingOfWhatComesOut) {
  const TempDir directory;
  for (const char* choice : kChoices) {
    const auto without = unpacked(directory, "", choice);
    ASSERT_FALSE(without.empty());
    for (const std::string& settings :
         {std::string("store_bytes: 16777216"), std::string("store_bytes: 16777216 threads: 3"),
          "store_bytes: 16777216 store_directory: '" + directory.path() + "/store'",
          std::string("threads: 2")}) {
      std::uint64_t hits = 0;
      ASSERT_EQ(unpacked(directory, settings, choice, 0, 0, &hits), without)
          << choice << " with " << settings;
      EXPECT_EQ(hits > 0, settings.find("store") != std::string::npos);
    }
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      ASSERT_EQ(unpacked(directory, "store_bytes: 16777216 threads: 2", choice, seed, 0.1), without)
          << choice << ", seed " << seed;
    }
    std::filesystem::remove_all(directory.path() + "/store");
  }
}

// Each use of a chunk gives the frames that an unpacker gives.
TEST(PoolFrames, AreThoseOfAnUnpacker) {
  const TempDir directory;
  for (const char* choice : kChoices) {
    auto theirs = unpacked(directory, "", choice);
    auto ours = framed(directory, "", choice);
    std::sort(theirs.begin(), theirs.end());
    std::sort(ours.begin(), ours.end());
    EXPECT_EQ(ours, theirs) << choice;
  }
}

// Also through a queue that no game fits, so that its frames go out over several steps.
TEST(PoolFrames, AreTheSameWhateverHappens) {
  const TempDir directory;
  for (const char* choice : kChoices) {
    const auto undisturbed = framed(directory, "", choice);
    ASSERT_FALSE(undisturbed.empty());
    for (const std::string& settings :
         {std::string("threads: 3"), std::string("queue_capacity: 1"),
          std::string("queue_capacity: 2 threads: 2"),
          std::string("store_bytes: 16777216 queue_capacity: 2"),
          "store_bytes: 16777216 store_directory: '" + directory.path() + "/store'"}) {
      std::uint64_t hits = 0;
      ASSERT_EQ(framed(directory, settings, choice, 0, 0, &hits), undisturbed)
          << choice << " with " << settings;
      EXPECT_EQ(hits > 0, settings.find("store") != std::string::npos);
    }
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      ASSERT_EQ(framed(directory, "queue_capacity: 2 threads: 2", choice, seed, 0.1), undisturbed)
          << choice << ", seed " << seed;
      ASSERT_EQ(framed(directory, "queue_capacity: 2 store_bytes: 16777216", choice, seed, 0.1),
                undisturbed)
          << choice << ", seed " << seed;
    }
    std::filesystem::remove_all(directory.path() + "/store");
  }
}

// Out of games that were kept because they had just been weighed.
TEST(PoolFrames, ComeOutOfWeighedGamesToo) {
  const TempDir directory;
  const auto run = [&](const std::string& settings, std::uint64_t seed, double restarts) {
    return framed(directory, "position_sampling { } weighted_sampling_gamma: 0.7 " + settings,
                  "position_sampling_rate: 0.5", seed, restarts);
  };
  const Positions undisturbed = run("", 0, 0);
  ASSERT_FALSE(undisturbed.empty());
  EXPECT_EQ(run("threads: 2 queue_capacity: 1", 0, 0), undisturbed);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    ASSERT_EQ(run("queue_capacity: 2", seed, 0.1), undisturbed) << seed;
  }
}

// A game that waits for room is not inflated again, and what a process has read is counted once.
TEST(PoolFrames, ReadAGameOnceHoweverManyStepsItTakes) {
  LaneRig rig("epochs: 2");
  const TempDir directory;
  rig.add_source("sources", 1, {.capacity = 16, .bytes = 1 << 18});
  rig.add_stage(
      "name: 'pool' shuffling_chunk_pool { input: 'sources' frames { } queue_capacity: 2 }");
  rig.add_sink("out", "pool");
  rig.build();
  const std::string path = directory.write("long", game(0, 200));
  ChunkPlace place = raw_place(0, 200 * formats::kV6RecordBytes);
  place.frames = 200;
  rig.feed("sources", source_record(path, {place}));
  rig.feed("sources", scan_complete());
  rig.finish("sources");
  rig.allow("out", 0);
  for (std::uint64_t allowed = 3; allowed < 400; allowed += 3) {
    rig.allow("out", 3);
    rig.run();
    // The file is not looked at in the middle of a game.
    if (allowed == 30) std::filesystem::rename(path, path + "-away");
    if (allowed == 150) std::filesystem::rename(path + "-away", path);
  }
  rig.allow("out", 400);
  rig.run();
  EXPECT_TRUE(rig.all_finished());
  std::vector<std::uint64_t> ids;
  for (const RigRecord& record : rig.got("out")) ids.push_back(frame_id(record.bytes));
  std::vector<std::uint64_t> expected = numbers(0, 200);
  expected.insert(expected.end(), expected.begin(), expected.begin() + 200);
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(rig.counter("pool.read", "chunks_read"), 2U);
}

// A file that goes away in the middle of a game, while the process dies: what is left of the game
// is refused, and the next begins with its first frame.
TEST(PoolFrames, OfAGameWhoseRestIsGone) {
  bool tried = false;
  for (int seed = 0; seed < 20 && !tried; ++seed) {
    LaneRig rig(fmt::format("seed: {} epochs: 1", seed));
    const TempDir directory;
    rig.add_source("sources", 1, {.capacity = 16, .bytes = 1 << 18});
    rig.add_stage(
        "name: 'pool' shuffling_chunk_pool { input: 'sources' frames { } queue_capacity: 2 }");
    rig.add_sink("out", "pool");
    rig.build();
    const std::string path = directory.write("long", game(0, 50));
    ChunkPlace place = raw_place(0, 50 * formats::kV6RecordBytes);
    place.frames = 50;
    rig.feed("sources", source_record(path, {place}));
    rig.feed("sources", write_source(directory, "next", 1000, 1));
    rig.feed("sources", scan_complete());
    rig.finish("sources");
    rig.allow("out", 1);
    rig.run();
    if (frame_id(rig.got("out").front().bytes) == 1000) continue;  // the other one came first
    tried = true;
    std::filesystem::remove(path);
    rig.restart_all();
    rig.allow("out", 1000);
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    std::vector<std::uint64_t> ids;
    for (const RigRecord& record : rig.got("out")) ids.push_back(frame_id(record.bytes));
    ASSERT_GT(ids.size(), 1U);
    EXPECT_LT(ids.size(), 51U);
    EXPECT_EQ(ids.back(), 1000U);
    ids.pop_back();
    EXPECT_EQ(ids, numbers(0, ids.size()));
    EXPECT_EQ(rig.counter("pool.read", "skipped_vanished"), 1U);
  }
  EXPECT_TRUE(tried);
}

// Frames that the unpacker would throw away are not even passed to it: a game of 200 positions goes
// through a ring that does not take it whole.
TEST(PoolReader, PassesOnOnlyWhatTheUnpackerWants) {
  const auto run = [](const char* choice) {
    LaneRig rig("epochs: 10");
    const TempDir directory;
    rig.add_source("sources", 1, {.capacity = 16, .bytes = 1 << 18});
    rig.add_stage("name: 'pool' shuffling_chunk_pool { input: 'sources' queue_bytes: 262144 }");
    rig.add_stage(fmt::format("name: 'unpacker' chunk_unpacker {{ input: 'pool' {} }}", choice));
    rig.add_sink("out", "unpacker");
    rig.build();
    directory.write("long", game(0, 200));
    ChunkPlace place = raw_place(0, 200 * formats::kV6RecordBytes);
    place.frames = 200;
    rig.feed("sources", source_record(directory.path() + "/long", {place}));
    rig.feed("sources", scan_complete());
    rig.finish("sources");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    std::vector<std::uint64_t> ids;
    for (const RigRecord& record : rig.got("out")) ids.push_back(frame_id(record.bytes));
    EXPECT_EQ(rig.counter("pool.read", "skipped_too_large"), ids.empty() ? 1U : 0U);
    return sorted(ids);
  };
  EXPECT_THAT(run("position_sampling_rate: 1"), IsEmpty());
  EXPECT_EQ(run("position_sampling_rate: 0.1"), numbers(0, 200)) << "ten uses of a tenth";
  EXPECT_EQ(run("position_count: 20"), numbers(0, 200));
}

// A file that was replaced, or has vanished, is noticed as without a store.
TEST(PoolStore, DoesNotHideThatAFileHasChanged) {
  Pool pool("", 10, "store_bytes: 16777216 queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 4);
  pool.complete_scan();
  EXPECT_EQ(sorted(pool.take(4)), numbers(0, 4));
  EXPECT_EQ(sorted(pool.take(4)), numbers(0, 4));
  EXPECT_GT(pool.rig.counter("pool.read", "store_hits"), 0U);
  std::filesystem::remove_all(pool.directory.path() + "/a");
  pool.rig.allow("out", 20);
  pool.rig.run();
  // Tasks that were on their way are refused one by one, then nothing is drawn any more.
  EXPECT_GE(pool.rig.counter("pool.read", "skipped_vanished"), 4U);
  EXPECT_THAT(pool.rig.log("window_unusable"), Not(IsEmpty()));
}

// ---- other limits of the window

// Chunks of 1 to 8 records (source_of_sizes); the window keeps the newest that fit.
struct Limits {
  const char* settings;
  std::uint64_t chunks;
};
class PoolLimits : public ::testing::TestWithParam<Limits> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, PoolLimits,
    ::testing::Values(Limits{"window_positions: 36", 8}, Limits{"window_positions: 35", 7},
                      Limits{"window_positions: 1", 1}, Limits{"window_positions: 7", 1},
                      Limits{"window_positions: 15", 2}, Limits{"window_bytes: 125340", 2},
                      Limits{"window_bytes: 125339", 1},
                      Limits{"window_positions: 100 chunk_pool_size: 3", 3},
                      Limits{"window_positions: 15 window_bytes: 1000000", 2}));

// The newest chunk has 8 records, the one before it 7, ...
TEST_P(PoolLimits, AreKeptByTheNewestChunks) {
  for (const bool later : {false, true}) {
    LaneRig rig("epochs: 1");
    const TempDir directory;
    rig.add_source("sources", 1, {.capacity = 16, .bytes = 1 << 18});
    rig.add_stage(fmt::format("name: 'pool' shuffling_chunk_pool {{ input: 'sources' {} }}",
                              GetParam().settings));
    rig.add_sink("out", "pool");
    rig.build();
    rig.feed("sources", source_of_sizes(directory, 16));
    if (later) rig.feed("sources", write_source(directory, "a-older-file", 5000, 10));
    rig.feed("sources", scan_complete());
    rig.finish("sources");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    std::vector<std::uint64_t> ids;
    for (const RigRecord& record : rig.got("out")) ids.push_back(see_chunk(record).ids.front());
    std::vector<std::uint64_t> expected;
    for (std::uint64_t i = 16 - GetParam().chunks; i < 16; ++i) expected.push_back(100 * i);
    EXPECT_EQ(sorted(ids), expected);
    EXPECT_EQ(rig.counter("pool", "chunks_in_window"), GetParam().chunks);
  }
}

// New files push the oldest chunks out, one by one, and lives do not lose count.
TEST(PoolLimits, MoveWithNewFiles) {
  Pool pool("", 100, "window_positions: 5 queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 4);
  pool.complete_scan();
  pool.rig.run();
  for (std::uint64_t file = 1; file < 20; ++file) {
    if (file % 3 == 0) pool.rig.restart_all();
    pool.add(fmt::format("b{:02}", file), 10 * file, 1 + file % 3);
    pool.rig.run();
    EXPECT_EQ(pool.rig.counter("pool", "chunks_in_window"), 5U) << file;
    EXPECT_EQ(pool.rig.counter("pool", "positions_in_window"), 5U);
    EXPECT_EQ(pool.rig.counter("pool", "bytes_in_window"), 5 * formats::kV6RecordBytes);
  }
}

TEST(PoolLimits, SayThatTheDefaultNumberOfChunksIsReachedFirst) {
  Pool pool("epochs: 1", 10, "window_positions: 1000");
  pool.add("a", 0, 20);
  pool.scan_and_finish();
  EXPECT_THAT(pool.rig.log("window_cut"), IsEmpty()) << "chunk_pool_size was given";
}

// ---- the order of files

TEST(SortKeys, AreComparedBytewiseOrByTheirNumbers) {
  const KeyLess bytewise(false);
  const KeyLess numeric(true);
  EXPECT_TRUE(bytewise("run10", "run9"));
  EXPECT_TRUE(numeric("run9", "run10"));
  EXPECT_FALSE(numeric("run10", "run9"));
  EXPECT_TRUE(numeric("a2b10", "a2b11"));
  EXPECT_TRUE(numeric("a2b10", "a10b1"));
  EXPECT_TRUE(numeric("a", "a1"));
  EXPECT_TRUE(numeric("a1", "b0"));
  EXPECT_TRUE(numeric("x99999999999999999999999999999998", "x99999999999999999999999999999999"));
  // Numbers that are the same: bytewise, so that no two names are equal.
  EXPECT_TRUE(numeric("run009", "run9") != numeric("run9", "run009"));
  EXPECT_FALSE(numeric("run9", "run9"));
  EXPECT_TRUE(numeric("", "a"));
  EXPECT_EQ(sort_key("/a/b/c.tar"), "c.tar");
  EXPECT_EQ(sort_key("c.tar"), "c.tar");
  // An order: never both ways, and what is less than the lesser is less than the greater.
  std::mt19937_64 random(3);
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) {
    std::string name;
    for (std::uint64_t j = random() % 6; j > 0; --j) name += "ab019"[random() % 5];
    names.push_back(name);
  }
  for (const std::string& a : names) {
    for (const std::string& b : names) {
      EXPECT_EQ(!numeric(a, b) && !numeric(b, a), a == b) << a << " " << b;
      for (const std::string& c : names) {
        const bool chain = numeric(a, b) && numeric(b, c);
        ASSERT_TRUE(!chain || numeric(a, c)) << a << " " << b << " " << c;
      }
    }
  }
}

TEST(PoolWindow, GoesByNumbersInNamesIfItIsTold) {
  for (const bool numeric : {false, true}) {
    Pool pool("epochs: 1", 10, numeric ? "numeric_sort_keys: true" : "");
    pool.add("run9", 0, 10);
    pool.add("run10", 10, 10);
    pool.scan_and_finish();
    EXPECT_EQ(sorted(pool.ids()), numeric ? numbers(10, 20) : numbers(0, 10));
  }
}

// ---- the anchor

class PoolAnchor : public ::testing::Test {
 protected:
  // Answer to a message: anchor and count.
  static std::pair<std::string, int> ask(Pool& pool, const std::string& text) {
    StageControlRequest request;
    RF_CHECK(google::protobuf::TextFormat::ParseFromString(
                 fmt::format("chunk_pool_request {{ {} }}", text), &request),
             text.size());
    StageControlResponse response;
    bool answered = false;
    static std::uint64_t key = 0;
    const std::size_t lane = pool.rig.lanes_of("pool").front();
    pool.rig.lane(lane).post({.key = ++key,
                              .request = request.SerializeAsString(),
                              .answer = [&](const std::optional<std::string>& bytes) {
                                answered = bytes && response.ParseFromString(*bytes);
                              }});
    pool.rig.round(lane);
    EXPECT_TRUE(answered);
    return {response.chunk_pool_response().chunk_anchor(),
            response.chunk_pool_response().chunks_since_anchor()};
  }
  using Answer = std::pair<std::string, int>;
};

// Files a, b, c of 20, 15 and 10 chunks; behind b are the ten of c.
TEST_F(PoolAnchor, CountsWhatIsBehindItAtTheStartAndEverythingLater) {
  for (const bool configured : {false, true}) {
    Pool pool("", 1000, configured ? "queue_capacity: 1 chunk_anchor: 'b'" : "queue_capacity: 1");
    pool.rig.allow("out", 0);
    if (!configured) {
      EXPECT_EQ(ask(pool, "set_chunk_anchor: 'b'"), Answer("b", 0));
    }
    pool.add("a", 0, 20);
    pool.add("c", 20, 10);
    pool.add("b", 30, 15);
    pool.complete_scan();
    pool.rig.run();
    EXPECT_EQ(ask(pool, ""), Answer("b", 10));
    EXPECT_EQ(pool.rig.counter("pool", "chunks_since_anchor"), 10U);
    pool.add("aa", 50, 7);
    pool.rig.run();
    EXPECT_EQ(ask(pool, ""), Answer("b", 17)) << "whatever its name";
  }
}

// A trainer that begins while the first files are still being looked for.
TEST_F(PoolAnchor, StaysWhenItIsResetBeforeThereAreChunks) {
  Pool pool("", 1000, "queue_capacity: 1 chunk_anchor: 'b'");
  pool.rig.allow("out", 0);
  EXPECT_EQ(ask(pool, "reset_chunk_anchor: true"), Answer("b", 0));
  pool.add("b", 0, 20);
  pool.add("c", 20, 10);
  pool.complete_scan();
  pool.rig.run();
  EXPECT_EQ(ask(pool, ""), Answer("b", 10));
}

TEST_F(PoolAnchor, IsEverythingUntilItIsSet) {
  Pool pool("", 1000, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 20);
  pool.add("b", 20, 10);
  pool.complete_scan();
  pool.rig.run();
  EXPECT_EQ(ask(pool, ""), Answer("", 30));
}

// Sources that the newer ones leave no room for are not kept, and not counted.
TEST_F(PoolAnchor, CountsSourcesThatAreKept) {
  Pool pool("", 20, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 10);
  pool.add("b", 10, 15);
  pool.add("c", 25, 15);
  pool.complete_scan();
  pool.rig.run();
  EXPECT_EQ(ask(pool, ""), Answer("", 30));
}

TEST_F(PoolAnchor, IsAskedForByAMessageToPools) {
  Pool pool("", 20, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 10);
  pool.complete_scan();
  pool.rig.run();
  StageControlRequest planners;
  planners.mutable_epoch_planner_request();
  bool asked = false;
  const std::size_t lane = pool.rig.lanes_of("pool").front();
  pool.rig.lane(lane).post({.key = 1,
                            .request = planners.SerializeAsString(),
                            .answer = [&](const std::optional<std::string>& bytes) {
                              asked = true;
                              EXPECT_FALSE(bytes) << "it is for others";
                            }});
  pool.rig.round(lane);
  EXPECT_TRUE(asked);
  EXPECT_EQ(ask(pool, ""), Answer("", 10));
}

// Reset wins over set, and answers the count before it; set leaves the count.
TEST_F(PoolAnchor, IsResetToTheNewestFile) {
  Pool pool("", 1000, "queue_capacity: 1");
  pool.rig.allow("out", 0);
  pool.add("a", 0, 20);
  pool.add("b", 20, 10);
  pool.complete_scan();
  pool.rig.run();
  EXPECT_EQ(ask(pool, "reset_chunk_anchor: true set_chunk_anchor: 'x'"), Answer("b", 30));
  EXPECT_EQ(ask(pool, ""), Answer("b", 0));
  pool.add("0-arrives-last", 40, 5);
  pool.rig.run();
  pool.rig.restart_all();
  EXPECT_EQ(ask(pool, ""), Answer("b", 5));
  EXPECT_EQ(ask(pool, "set_chunk_anchor: 'y'"), Answer("y", 5));
  EXPECT_EQ(ask(pool, "reset_chunk_anchor: true"), Answer("0-arrives-last", 5));
  EXPECT_EQ(ask(pool, ""), Answer("0-arrives-last", 0));
  const std::string longest(3000, 'z');
  EXPECT_EQ(ask(pool, fmt::format("set_chunk_anchor: '{}'", longest)).first,
            longest.substr(0, ChunkWindow::kAnchorBytes));
}

// Files of one name in several directories: by their paths, whatever the order in which they came.
TEST(PoolWindow, OrdersFilesOfTheSameNameByTheirPaths) {
  for (const bool turned : {false, true}) {
    Pool pool("epochs: 1", 10);
    pool.add(turned ? "y/a" : "x/a", turned ? 10 : 0, 10);
    pool.add(turned ? "x/a" : "y/a", turned ? 0 : 10, 10);
    pool.scan_and_finish();
    EXPECT_EQ(sorted(pool.ids()), numbers(10, 20));
  }
}

}  // namespace
}  // namespace ringfeed
