// The specification of workers/lc0/chunk_source_loader.h.
#include "workers/lc0/chunk_source_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Loader {
  explicit Loader(const std::string& settings = "", const std::string& feed = "") : rig(feed) {
    rig.add_source("files");
    rig.add_stage(
        fmt::format("name: 'loader' chunk_source_loader {{ input: 'files' {} }}", settings));
    rig.add_sink("out", "loader");
    rig.build();
  }
  void feed(const std::string& path) { rig.feed("files", {.bytes = path}); }
  void finish() {
    rig.finish("files");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  // Files only; where the marker stood is in `markers`.
  std::vector<SeenSource> sources() {
    std::vector<SeenSource> all;
    markers.clear();
    for (const RigRecord& record : rig.got("out")) {
      if (record.user == kScanCompleteRecord) {
        markers.push_back(all.size());
      } else {
        all.push_back(see_source(record));
      }
    }
    return all;
  }
  std::vector<std::size_t> markers;
  TempDir directory;
  LaneRig rig;
};

// A tar of `members` raw chunks of one record.
std::string tar_of(std::uint64_t members) {
  TarMaker tar;
  for (std::uint64_t i = 0; i < members; ++i) tar.add(fmt::format("{}", i), lc0_record(i));
  return tar.end().text();
}

// A copy in a cache that has gone is wished for, and listed when it has come.
TEST(SourceLoader, WaitsForAFileOfACache) {
  Loader loader;
  for (const char* name : {"cache/objects", "cache/wanted", "cache/failed"}) {
    std::filesystem::create_directories(loader.directory.path(name));
  }
  loader.directory.write("cache/ringfeed-cache", "ringfeed cache 1\n");
  const std::string path = loader.directory.path("cache/objects/a.tar");
  loader.feed(path);
  loader.feed(loader.directory.write("b.tar", tar_of(2)));
  loader.rig.finish("files");
  loader.rig.run();
  EXPECT_THAT(loader.sources(), IsEmpty());
  const std::filesystem::directory_iterator wishes(loader.directory.path("cache/wanted"));
  ASSERT_NE(wishes, std::filesystem::directory_iterator());
  EXPECT_EQ(std::filesystem::read_symlink(wishes->path()), "a.tar");
  loader.directory.write("cache/objects/a.tar", tar_of(3));
  ASSERT_TRUE(loader.rig.run_until([&] { return loader.rig.all_finished(); }));
  const std::vector<SeenSource> sources = loader.sources();
  ASSERT_THAT(sources, SizeIs(2));
  EXPECT_EQ(sources[0].path, path);
  EXPECT_THAT(sources[0].places, SizeIs(3));
  EXPECT_EQ(loader.rig.counter("loader", "skipped_vanished"), 0U);
}

TEST(SourceLoader, MakesOneChunkOfAGz) {
  Loader loader;
  const std::string gzip = gzip_text(game(0, 12));
  loader.feed(loader.directory.write("game.gz", gzip));
  loader.finish();
  const std::vector<SeenSource> sources = loader.sources();
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_EQ(sources[0].path, loader.directory.path("game.gz"));
  ASSERT_THAT(sources[0].places, SizeIs(1));
  EXPECT_EQ(sources[0].places[0].offset, 0U);
  EXPECT_EQ(sources[0].places[0].bytes, gzip.size());
  EXPECT_EQ(sources[0].places[0].frames, 12U) << "as its trailer says";
  EXPECT_EQ(sources[0].places[0].flags, kChunkGzip);
  EXPECT_EQ(sources[0].places[0].uses, 0U);
}

TEST(SourceLoader, TakesAGzThatIsNotGzipAsRecords) {
  Loader loader;
  loader.feed(loader.directory.write("plain.gz", game(0, 3)));
  loader.finish();
  ASSERT_THAT(loader.sources(), SizeIs(1));
  EXPECT_EQ(loader.sources()[0].places[0].frames, 3U);
  EXPECT_EQ(loader.sources()[0].places[0].flags, 0U);
}

TEST(SourceLoader, FindsTheFourGamesOfTheRealTar) {
  Loader loader;
  loader.feed(sample_tar_path());
  loader.finish();
  ASSERT_THAT(loader.sources(), SizeIs(1));
  const std::vector<ChunkPlace> places = loader.sources()[0].places;
  ASSERT_THAT(places, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(places[i].offset, kSampleGames[i].data_offset);
    EXPECT_EQ(places[i].bytes, kSampleGames[i].data_bytes);
    EXPECT_EQ(places[i].frames, kSampleGames[i].frame_count);
  }
  EXPECT_EQ(loader.rig.counter("loader", "chunks"), 4U);
}

TEST(SourceLoader, SkipsWhatItCannotUseByReason) {
  Loader loader;
  TarMaker licence;
  licence.add("LICENSE", "text");
  loader.feed(loader.directory.write("good-1.gz", gzip_text(game(0, 1))));
  loader.feed(loader.directory.write("notes.txt", "x"));
  loader.feed(loader.directory.write("games.TAR", "x"));
  loader.feed(loader.directory.path("never-was.gz"));
  std::filesystem::create_directory(loader.directory.path("directory.gz"));
  loader.feed(loader.directory.path("directory.gz"));
  ASSERT_EQ(::mkfifo(loader.directory.path("fifo.gz").c_str(), 0600), 0);
  loader.feed(loader.directory.path("fifo.gz"));
  loader.feed(loader.directory.write("empty.gz", ""));
  loader.feed(loader.directory.write("empty.tar", ""));
  loader.feed(loader.directory.write("licence.tar", licence.end().text()));
  loader.feed(loader.directory.write("good-2.gz", gzip_text(game(0, 2))));
  loader.finish();
  ASSERT_THAT(loader.sources(), SizeIs(2));
  EXPECT_EQ(loader.sources()[1].path, loader.directory.path("good-2.gz"));
  EXPECT_EQ(loader.rig.counter("loader", "skipped_extension"), 2U);
  EXPECT_EQ(loader.rig.counter("loader", "skipped_vanished"), 1U);
  EXPECT_EQ(loader.rig.counter("loader", "skipped_unreadable"), 2U);
  EXPECT_EQ(loader.rig.counter("loader", "skipped_empty"), 2U);
  EXPECT_EQ(loader.rig.counter("loader", "skipped_no_chunks"), 1U);
  for (const char* name :
       {"notes.txt", "never-was.gz", "directory.gz", "empty.gz", "licence.tar"}) {
    EXPECT_THAT(loader.rig.log("skipped"), Contains(HasSubstr(loader.directory.path(name))));
  }
}

// The first half of a tar whose second half is damaged is used, and the damage told with its place.
TEST(SourceLoader, UsesWhatIsWholeOfADamagedTar) {
  Loader loader;
  TarMaker tar;
  for (std::uint64_t i = 0; i < 3; ++i) tar.add(fmt::format("{}", i), lc0_record(i));
  const std::size_t damaged = tar.add("3", lc0_record(3));
  tar.damage(damaged + 5);
  loader.feed(loader.directory.write("a.tar", tar.end().text()));
  loader.finish();
  ASSERT_THAT(loader.sources(), SizeIs(1));
  EXPECT_GE(loader.sources()[0].places.size(), 3U);
  EXPECT_GE(loader.rig.counter("loader", "tar_problems"), 1U);
  EXPECT_THAT(loader.rig.log("tar_problem"),
              Contains(HasSubstr(fmt::format("offset={}", damaged))));
}

TEST(SourceLoader, PassesTheMarkerOnInItsPlaceOnce) {
  for (const int threads : {1, 4}) {
    Loader loader(fmt::format("threads: {}", threads));
    for (int i = 0; i < 10; ++i) {
      loader.feed(loader.directory.write(fmt::format("{}.gz", i), gzip_text(game(0, 1))));
    }
    loader.rig.feed("files", scan_complete());
    loader.feed(loader.directory.write("later.gz", gzip_text(game(0, 1))));
    loader.finish();
    EXPECT_THAT(loader.sources(), SizeIs(11));
    EXPECT_THAT(loader.markers, ElementsAre(10)) << threads << " lanes";
    EXPECT_EQ(loader.sources().back().path, loader.directory.path("later.gz"));
  }
}

// A ring of 64 KiB takes about 1300 chunks a record: 5000 come in four.
TEST(SourceLoader, SplitsATarOfManyChunks) {
  Loader loader("queue_bytes: 65536 queue_capacity: 1");
  TarMaker tar;
  for (int i = 0; i < 5000; ++i) tar.add(fmt::format("{}", i), "chunk");
  loader.feed(loader.directory.write("many.tar", tar.end().text()));
  loader.feed(loader.directory.write("one.gz", gzip_text(game(0, 1))));
  std::mt19937_64 random(1);
  loader.rig.finish("files");
  loader.rig.run_with_restarts(random, 0.3);
  EXPECT_TRUE(loader.rig.all_finished());
  const std::vector<SeenSource> sources = loader.sources();
  ASSERT_GT(sources.size(), 3U);
  std::uint64_t next = 0;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i + 1 < sources.size(); ++i) {
    EXPECT_EQ(sources[i].path, loader.directory.path("many.tar"));
    EXPECT_EQ(sources[i].first_chunk, next);
    next += sources[i].places.size();
    for (const ChunkPlace& place : sources[i].places) {
      EXPECT_GT(place.offset, offset);
      offset = place.offset;
    }
  }
  EXPECT_EQ(next, 5000U);
  EXPECT_EQ(sources.back().first_chunk, 0U);
  EXPECT_EQ(loader.rig.counter("loader", "chunks"), 5001U);
}

// A tar that vanishes while its parts go out, and the lane with it, takes nothing from the next.
TEST(SourceLoader, BeginsTheNextFileAtItsFirstChunkIfATarVanishesInBetween) {
  Loader loader("queue_bytes: 65536 queue_capacity: 1");
  TarMaker tar;
  for (int i = 0; i < 5000; ++i) tar.add(fmt::format("{}", i), "chunk");
  const std::string path = loader.directory.write("many.tar", tar.end().text());
  loader.feed(path);
  loader.rig.allow("out", 1);
  loader.rig.run();
  std::filesystem::remove(path);
  loader.rig.restart("loader");
  loader.rig.allow("out", 100);
  loader.feed(loader.directory.write("next.tar", tar_of(9)));
  loader.finish();
  const std::vector<SeenSource> sources = loader.sources();
  ASSERT_GE(sources.size(), 2U);
  EXPECT_GT(sources.front().places.size(), 9U);
  EXPECT_EQ(sources.back().path, loader.directory.path("next.tar"));
  EXPECT_EQ(sources.back().first_chunk, 0U);
  EXPECT_THAT(sources.back().places, SizeIs(9));
  EXPECT_EQ(loader.rig.counter("loader", "skipped_vanished"), 1U);
}

// What a tar had is counted with its first part, however often it is opened for the others.
TEST(SourceLoader, CountsTheProblemsOfATarOnce) {
  Loader loader("queue_bytes: 65536 queue_capacity: 1");
  TarMaker tar;
  for (int i = 0; i < 3000; ++i) tar.add(fmt::format("{}", i), "chunk");
  tar.damage(tar.add("bad", "chunk") + 5);
  tar.end();
  const std::string path = loader.directory.write("many.tar", tar.text());
  Loader alone;
  alone.feed(path);
  alone.finish();
  const std::uint64_t problems = alone.rig.counter("loader", "tar_problems");
  ASSERT_GE(problems, 1U);
  loader.feed(path);
  loader.rig.allow("out", 0);
  std::mt19937_64 random(2);
  loader.rig.run_with_restarts(random, 0.3);
  loader.rig.allow("out", 100);
  loader.rig.finish("files");
  loader.rig.run_with_restarts(random, 0.3);
  EXPECT_TRUE(loader.rig.all_finished());
  EXPECT_EQ(loader.rig.counter("loader", "tar_problems"), problems);
}

TEST(SourceLoaderCache, SparesReadingATarAgain) {
  TempDir place;
  const std::string cache = fmt::format("{}/made/when/missing", place.path());
  Loader first(fmt::format("cache_directory: '{}'", cache));
  const std::string path = first.directory.write("games.tar", tar_of(7));
  first.feed(path);
  first.finish();
  EXPECT_EQ(first.rig.counter("loader", "index_cache_hits"), 0U);
  Loader second(fmt::format("cache_directory: '{}'", cache));
  second.feed(path);
  second.finish();
  EXPECT_EQ(second.rig.counter("loader", "index_cache_hits"), 1U);
  EXPECT_EQ(second.rig.got("out"), first.rig.got("out"));
  // Another content is another tar.
  first.directory.write("games.tar", tar_of(9));
  Loader third(fmt::format("cache_directory: '{}'", cache));
  third.feed(path);
  third.finish();
  EXPECT_EQ(third.rig.counter("loader", "index_cache_hits"), 0U);
  EXPECT_THAT(third.sources()[0].places, SizeIs(9));
}

TEST(SourceLoaderRestart, GivesTheSameSources) {
  TempDir directory;
  const auto run = [&](std::uint64_t seed, double restarts) {
    Loader loader("threads: 2 queue_bytes: 65536 queue_capacity: 1");
    for (int i = 0; i < 6; ++i) {
      loader.feed(directory.write(fmt::format("{}.tar", i), tar_of(3)));
      loader.feed(directory.path(fmt::format("absent-{}.gz", i)));
    }
    TarMaker tar;
    for (int i = 0; i < 3000; ++i) tar.add(fmt::format("{}", i), "chunk");
    loader.feed(directory.write("many.tar", tar.end().text()));
    loader.rig.feed("files", scan_complete());
    loader.rig.finish("files");
    std::mt19937_64 random(seed);
    loader.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(loader.rig.all_finished());
    EXPECT_EQ(loader.rig.counter("loader", "skipped_vanished"), 6U);
    return loader.rig.got("out");
  };
  const std::vector<RigRecord> undisturbed = run(0, 0);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_EQ(run(seed, 0.3), undisturbed) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ringfeed
