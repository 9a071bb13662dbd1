#include "workers/lc0/chunk_index.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libdeflate.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/makers/tar_maker.h"
#include "tests/support/rig/lc0_sample.h"

namespace ringfeed::formats {
namespace {

namespace fs = std::filesystem;
using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TarMaker;

class ChunkIndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "ringfeed-chunk-index-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    fs::create_directory(cache());
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] std::string cache() const { return root_ / "cache"; }
  [[nodiscard]] std::string tar_path() const { return root_ / "games.tar"; }

  static void write(const std::string& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  // Opens the tar, and loads or builds its index.
  [[nodiscard]] Result<ChunkIndex> index(const std::string& cache_directory) const {
    const int fd = ::open(tar_path().c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0);
    Result<ChunkIndex> found = load_or_build_chunk_index(cache_directory, fd, tar_path());
    ::close(fd);
    return found;
  }
  [[nodiscard]] std::vector<std::string> cache_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(cache())) names.push_back(entry.path());
    return names;
  }
  static TarMaker three_chunks() {
    TarMaker tar;
    tar.add("LICENSE", "words");
    tar.add("run/a.gz", "0123\x10\x20\x00\x00");  // only its last four bytes are looked at: 0x2010
    tar.add("run/._a.gz", "companion");
    tar.add("run/raw", "records");
    tar.add("run/tiny.gz", "abc");
    tar.end();
    return tar;
  }

  fs::path root_;
};

TEST_F(ChunkIndexTest, ListsTheGamesOfTheRealArchive) {
  fs::copy_file(testing::sample_tar_path(), tar_path());
  const Result<ChunkIndex> built = index("");
  ASSERT_TRUE(built.ok());
  EXPECT_FALSE(built->from_cache);
  EXPECT_EQ(built->problem_count, 0U);
  ASSERT_THAT(built->chunks, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    const testing::SampleGame& game = testing::kSampleGames[i];
    EXPECT_EQ(built->chunks[i], (Chunk{.data_offset = game.data_offset,
                                       .data_bytes = game.data_bytes,
                                       .uncompressed_bytes = game.frame_count * kV6RecordBytes,
                                       .is_gzip = 1,
                                       .reserved = 0}));
  }
}

TEST_F(ChunkIndexTest, TakesLengthsFromTrailersOrFromTheMembersThemselves) {
  TarMaker tar;
  tar.add("run/a.gz", std::string_view("0123\x10\x20\x00\x00", 8));
  tar.add("run/raw", "records");
  tar.add("run/tiny.gz", "abc");
  tar.end();
  write(tar_path(), tar.bytes());
  const Result<ChunkIndex> built = index("");
  ASSERT_TRUE(built.ok());
  EXPECT_THAT(built->chunks, ElementsAre(Chunk{512, 8, 0x2010, 1, 0}, Chunk{1536, 7, 7, 0, 0},
                                         Chunk{2560, 3, 0, 1, 0}));
}

TEST_F(ChunkIndexTest, ComesFromTheCacheTheSecondTime) {
  write(tar_path(), three_chunks().bytes());
  const Result<ChunkIndex> first = index(cache());
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->from_cache);
  EXPECT_THAT(first->chunks, SizeIs(3));
  EXPECT_THAT(cache_files(), SizeIs(1));
  const Result<ChunkIndex> second = index(cache());
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->from_cache);
  EXPECT_EQ(second->chunks, first->chunks);
}

TEST_F(ChunkIndexTest, RemembersHowManyProblemsTheTarHad) {
  TarMaker tar;
  tar.damage(tar.add("a.gz", "12345678"));
  tar.add("b.gz", "12345678");
  tar.end();
  write(tar_path(), tar.bytes());
  const Result<ChunkIndex> first = index(cache());
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(first->problems, SizeIs(1));
  const Result<ChunkIndex> second = index(cache());
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(second->from_cache);
  EXPECT_EQ(second->problem_count, 1U);
  EXPECT_THAT(second->problems, IsEmpty());
}

TEST_F(ChunkIndexTest, KeepsAnEmptyListToo) {
  TarMaker tar;
  write(tar_path(), tar.end().bytes());
  ASSERT_TRUE(index(cache()).ok());
  const Result<ChunkIndex> second = index(cache());
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->from_cache);
  EXPECT_THAT(second->chunks, IsEmpty());
}

TEST_F(ChunkIndexTest, IsOneForAllNamesOfATar) {
  write(tar_path(), three_chunks().bytes());
  ASSERT_TRUE(index(cache()).ok());
  fs::create_symlink(tar_path(), root_ / "link.tar");
  const int fd = ::open(tar_path().c_str(), O_RDONLY | O_CLOEXEC);
  const Result<ChunkIndex> found = load_or_build_chunk_index(cache(), fd, root_ / "link.tar");
  ::close(fd);
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->from_cache);
}

TEST_F(ChunkIndexTest, IsOfOneStateOfTheTar) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  ChunkIndex kept;
  kept.chunks = {{512, 8, 100, 1, 0}};
  ASSERT_TRUE(save_chunk_index(cache(), identity, kept));
  ASSERT_TRUE(load_chunk_index(cache(), identity).has_value());
  TarIdentity other = identity;
  other.tar_bytes = 5001;
  EXPECT_FALSE(load_chunk_index(cache(), other).has_value());
  other = identity;
  other.mtime_ns = 124;
  EXPECT_FALSE(load_chunk_index(cache(), other).has_value());
  other = identity;
  other.path = "/data/other.tar";
  EXPECT_FALSE(load_chunk_index(cache(), other).has_value());
}

// Two paths with one hash would share a file name: the path inside decides.
TEST_F(ChunkIndexTest, BelievesThePathInsideAndNotTheFileName) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  TarIdentity other = identity;
  other.path = "/data/gamez.tar";
  ASSERT_TRUE(save_chunk_index(cache(), identity, {}));
  fs::rename(chunk_index_path(cache(), identity.path), chunk_index_path(cache(), other.path));
  EXPECT_FALSE(load_chunk_index(cache(), other).has_value());
}

TEST_F(ChunkIndexTest, IsMadeAgainWhenTheTarHasGrown) {
  TarMaker tar;
  tar.add("a.gz", "12345678");
  write(tar_path(), tar.bytes());
  ASSERT_TRUE(index(cache()).ok());
  tar.add("b.gz", "12345678");
  write(tar_path(), tar.bytes());
  const Result<ChunkIndex> grown = index(cache());
  ASSERT_TRUE(grown.ok());
  EXPECT_FALSE(grown->from_cache);
  EXPECT_THAT(grown->chunks, SizeIs(2));
  EXPECT_THAT(cache_files(), SizeIs(1)) << "the old one is replaced";
}

// Every byte of a cache file, and every length: damage makes it absent, never wrong.
TEST_F(ChunkIndexTest, IsAbsentWhenItsFileIsDamaged) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  ChunkIndex kept;
  kept.chunks = {{512, 8, 100, 1, 0}, {1536, 20, 20, 0, 0}};
  ASSERT_TRUE(save_chunk_index(cache(), identity, kept));
  const std::string path = chunk_index_path(cache(), identity.path);
  const Bytes good = testing::read_file(path);
  ASSERT_EQ(good.size(), 64U + 2 * 32 + identity.path.size());
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{1};
    write(path, bad);
    EXPECT_FALSE(load_chunk_index(cache(), identity).has_value()) << "byte " << at;
  }
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    write(path, std::span(good).first(bytes));
    EXPECT_FALSE(load_chunk_index(cache(), identity).has_value()) << bytes << " bytes";
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  write(path, longer);
  EXPECT_FALSE(load_chunk_index(cache(), identity).has_value());
  write(path, good);
  EXPECT_TRUE(load_chunk_index(cache(), identity).has_value());
}

// The checksum is no signature: counts and places are checked even where it holds.
TEST_F(ChunkIndexTest, IsAbsentWhenItsFileLies) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  const auto lying = [&](const Chunk& chunk) {
    ChunkIndex index;
    index.chunks = {chunk};
    EXPECT_TRUE(save_chunk_index(cache(), identity, index));
    return load_chunk_index(cache(), identity).has_value();
  };
  EXPECT_TRUE(lying({4992, 8, 100, 1, 0}));
  EXPECT_FALSE(lying({4993, 8, 100, 1, 0}));
  EXPECT_FALSE(lying({5001, 0, 100, 1, 0}));
  EXPECT_FALSE(lying({512, ~std::uint64_t{0}, 100, 1, 0}));
  EXPECT_FALSE(lying({512, 8, 100, 2, 0}));

  ASSERT_TRUE(lying({512, 8, 100, 1, 0}));
  const std::string path = chunk_index_path(cache(), identity.path);
  Bytes file = testing::read_file(path);
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{2}, (std::uint64_t{1} << 59) + 1}) {
    std::memcpy(file.data() + 40, &count, 8);
    const std::uint32_t checksum = libdeflate_crc32(0, file.data() + 16, file.size() - 16);
    std::memcpy(file.data() + 12, &checksum, 4);
    write(path, file);
    EXPECT_FALSE(load_chunk_index(cache(), identity).has_value()) << count << " chunks claimed";
  }
}

TEST_F(ChunkIndexTest, DoesWithoutACacheDirectory) {
  write(tar_path(), three_chunks().bytes());
  for (const std::string& nowhere :
       {std::string(), std::string("/nonexistent/ringfeed"), tar_path()}) {
    const Result<ChunkIndex> built = index(nowhere);
    ASSERT_TRUE(built.ok()) << nowhere;
    EXPECT_THAT(built->chunks, SizeIs(3));
  }
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  EXPECT_FALSE(save_chunk_index("/nonexistent/ringfeed", identity, {}));
}

// A directory stands where the file should: the save fails and leaves nothing of its own.
TEST_F(ChunkIndexTest, LeavesNothingBehindWhenItCannotBeKept) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 5000, .mtime_ns = 123};
  const std::string path = chunk_index_path(cache(), identity.path);
  fs::create_directories(path + "/occupied");
  EXPECT_FALSE(save_chunk_index(cache(), identity, {}));
  EXPECT_FALSE(load_chunk_index(cache(), identity).has_value());
  EXPECT_THAT(cache_files(), ElementsAre(path));
}

TEST_F(ChunkIndexTest, IsWholeWhileManyWriteIt) {
  const TarIdentity identity{.path = "/data/games.tar", .tar_bytes = 1 << 20, .mtime_ns = 123};
  ChunkIndex kept;
  for (std::uint64_t i = 0; i < 500; ++i) kept.chunks.push_back({512 * i, 8, i, 1, 0});
  ASSERT_TRUE(save_chunk_index(cache(), identity, kept));
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&] {
      for (int round = 0; round < 100; ++round)
        EXPECT_TRUE(save_chunk_index(cache(), identity, kept));
    });
  }
  for (int round = 0; round < 200; ++round) {
    const std::optional<ChunkIndex> found = load_chunk_index(cache(), identity);
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->chunks, kept.chunks);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_THAT(cache_files(), SizeIs(1));
}

TEST_F(ChunkIndexTest, SaysWhoseDescriptorIsNoFile) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  const Result<ChunkIndex> refused =
      load_or_build_chunk_index(cache(), pipe_fds[0], "/data/pipe.tar");
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("/data/pipe.tar"));
}

}  // namespace
}  // namespace ringfeed::formats
