// The specification of workers/lc0/chunk_store.h.
#include "workers/lc0/chunk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/rig/stage_data.h"
#include "workers/kit/shared_by_name.h"

namespace ringfeed {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kBudget = 16 << 20;  // sixteen segments of 1 MiB
constexpr std::uint64_t kSegment = 1 << 20;

StoreKey key_of(std::uint64_t number) {
  return store_key({.path = "games.tar",
                    .device = 1,
                    .inode = 2,
                    .file_bytes = 3,
                    .mtime_ns = 4,
                    .offset = number,
                    .bytes = 6});
}

// Bytes that tell the game and every place in it.
std::vector<std::byte> game_of(std::uint64_t number, std::size_t bytes = 10'000) {
  std::mt19937_64 random(number);
  std::vector<std::byte> game(bytes);
  for (std::byte& b : game) b = static_cast<std::byte>(random());
  return game;
}

// All of the stored game; empty: it is not there.
std::vector<std::byte> stored(ChunkStore& store, std::uint64_t number, std::size_t bytes = 10'000,
                              std::uint64_t window_number = ~std::uint64_t{0}) {
  std::vector<std::byte> scratch;
  auto lease = store.find(key_of(number),
                          window_number == ~std::uint64_t{0} ? number : window_number, scratch);
  if (!lease) return {};
  const std::span<const std::byte> game = lease->at(0, bytes);
  return {game.begin(), game.end()};
}

void put_chunk(ChunkStore& store, std::uint64_t number, std::uint64_t window_lower = 0,
               std::size_t bytes = 10'000) {
  store.put(key_of(number), game_of(number, bytes), number, window_lower);
}

// In memory, and in a directory of its own.
class Stores : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] ChunkStore::Options options(std::uint64_t budget = kBudget) const {
    return {.budget_bytes = budget, .directory = GetParam() ? directory_.path() + "/store" : ""};
  }
  testing::TempDir directory_;
};
INSTANTIATE_TEST_SUITE_P(Places, Stores, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Directory" : "Memory"; });

TEST_P(Stores, GiveBackWhatWasPutIn) {
  ChunkStore store(options());
  EXPECT_TRUE(stored(store, 1).empty());
  for (std::uint64_t i = 0; i < 300; ++i) put_chunk(store, i);
  for (std::uint64_t i = 0; i < 300; ++i) ASSERT_EQ(stored(store, i), game_of(i)) << i;
  const ChunkStore::Figures figures = store.figures();
  EXPECT_EQ(figures.games, 300U);
  EXPECT_EQ(figures.bytes, 3 * kSegment);
  EXPECT_EQ(figures.evicted + figures.refused, 0U);
  EXPECT_EQ(store.problem(), std::nullopt);
}

TEST_P(Stores, ReadPiecesAndNothingOutsideOfAGame) {
  ChunkStore store(options());
  put_chunk(store, 5);
  std::vector<std::byte> scratch;
  auto lease = store.find(key_of(5), 5, scratch);
  ASSERT_TRUE(lease.has_value());
  const std::vector<std::byte> game = game_of(5);
  const std::span<const std::byte> piece = lease->at(777, 123);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), game.begin() + 777));
  EXPECT_EQ(piece.size(), 123U);
  EXPECT_TRUE(lease->at(10'000, 1).empty());
  EXPECT_TRUE(lease->at(9'999, 2).empty());
  EXPECT_TRUE(lease->at(~std::size_t{0}, 2).empty());
}

// Full of what is wanted: new games are not taken in, and those that are there stay.
TEST_P(Stores, KeepWhatIsWantedWhenTheyAreFull) {
  ChunkStore store(options());
  for (std::uint64_t i = 0; i < 3000; ++i) put_chunk(store, i);
  const ChunkStore::Figures figures = store.figures();
  EXPECT_EQ(figures.bytes, kBudget);
  EXPECT_EQ(figures.games + figures.refused, 3000U);
  EXPECT_EQ(figures.evicted, 0U);
  EXPECT_EQ(stored(store, 0), game_of(0));
  EXPECT_TRUE(stored(store, 2999).empty());
}

// The window moves on: segments whose games have left it make room.
TEST_P(Stores, LetGoWhatHasLeftTheWindow) {
  ChunkStore store(options());
  constexpr std::uint64_t kWindow = 1000;
  for (std::uint64_t i = 0; i < 6000; ++i) put_chunk(store, i, i < kWindow ? 0 : i - kWindow);
  const ChunkStore::Figures figures = store.figures();
  EXPECT_LE(figures.bytes, kBudget);
  EXPECT_GT(figures.evicted, 4000U);
  std::uint64_t found = 0;
  for (std::uint64_t i = 5000; i < 6000; ++i) found += stored(store, i).empty() ? 0 : 1;
  EXPECT_GT(found, 900U) << "refused " << figures.refused;
}

TEST_P(Stores, KeepALeaseWhoseSegmentGoes) {
  ChunkStore store(options());
  put_chunk(store, 0);
  std::vector<std::byte> scratch;
  auto lease = store.find(key_of(0), 0, scratch);
  ASSERT_TRUE(lease.has_value());
  for (std::uint64_t i = 1; i < 4000; ++i) put_chunk(store, i, i);
  EXPECT_TRUE(stored(store, 0).empty());
  const std::vector<std::byte> game = game_of(0);
  const std::span<const std::byte> bytes = lease->at(0, game.size());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), game.begin(), game.end()));
}

TEST_P(Stores, TakeNoGameThatIsLargerThanASegment) {
  ChunkStore store(options());
  put_chunk(store, 1, 0, kSegment);
  EXPECT_TRUE(stored(store, 1, kSegment).empty());
  EXPECT_EQ(store.figures().refused, 1U);
  put_chunk(store, 2, 0, kSegment - 64);
  EXPECT_EQ(stored(store, 2, kSegment - 64), game_of(2, kSegment - 64));
}

TEST_P(Stores, ForgetWhatTheyAreTold) {
  ChunkStore store(options());
  put_chunk(store, 1);
  store.forget(key_of(1));
  EXPECT_TRUE(stored(store, 1).empty());
  EXPECT_EQ(store.figures().games, 0U);
  put_chunk(store, 1);
  EXPECT_EQ(stored(store, 1), game_of(1));
}

// Several lanes read and write; nobody ever gets a byte of another game.
TEST_P(Stores, ServeSeveralThreads) {
  ChunkStore store(options(4 * kBudget));
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> found{0};
  for (std::uint64_t lane = 0; lane < 4; ++lane) {
    threads.emplace_back([&, lane] {
      std::mt19937_64 random(lane);
      for (int i = 0; i < 1500; ++i) {
        const std::uint64_t number = random() % 2000;
        const std::vector<std::byte> game = stored(store, number);
        if (game.empty()) {
          put_chunk(store, number, 500);
        } else {
          ++found;
          wrong += game == game_of(number) ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(found, 1000U);
}

// ---- directories

class StoreDirectory : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return directory_.path() + "/store"; }
  [[nodiscard]] ChunkStore::Options options(std::uint64_t budget = kBudget) const {
    return {.budget_bytes = budget, .directory = path()};
  }
  void fill(std::uint64_t games) {
    ChunkStore store(options());
    for (std::uint64_t i = 0; i < games; ++i) put_chunk(store, i);
  }
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      if (entry.path().extension() == ".games") names.push_back(entry.path());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  testing::TempDir directory_;
};

TEST_F(StoreDirectory, SurvivesTheProcess) {
  fill(250);
  ChunkStore store(options());
  EXPECT_EQ(store.figures().games, 250U);
  for (std::uint64_t i = 0; i < 250; ++i) ASSERT_EQ(stored(store, i), game_of(i)) << i;
  // What comes anew goes to files of its own.
  put_chunk(store, 999);
  EXPECT_EQ(stored(store, 999), game_of(999));
}

TEST_F(StoreDirectory, GivesNothingThatIsDamaged) {
  fill(250);
  for (const std::string& file : files()) {
    std::fstream change(file, std::ios::in | std::ios::out | std::ios::binary);
    change.seekp(64 + 5000);  // in the first game
    change.put('!');
    change.seekp(5 * 10'112 + 64 + 9'999);  // the last byte of the sixth
    change.put('?');
    change.seekp(7 * 10'112);  // the eighth's header: nothing behind it can be found
    change.put('\0');
  }
  ChunkStore store(options());
  EXPECT_LT(store.figures().games, 250U);
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < 250; ++i) {
    const std::vector<std::byte> game = stored(store, i);
    if (game.empty()) continue;
    ++found;
    ASSERT_EQ(game, game_of(i)) << i;
  }
  EXPECT_EQ(found, 5U * files().size());
}

TEST_F(StoreDirectory, ReadsFilesOfAnyContent) {
  std::filesystem::create_directories(path());
  std::mt19937_64 random(3);
  for (int i = 0; i < 20; ++i) {
    std::ofstream file(fmt::format("{}/{:08}.games", path(), i), std::ios::binary);
    std::string bytes(random() % 5000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them with a header that claims something.
    const std::uint64_t magic = 0x31656d6167006672;
    if (i % 2 == 0 && bytes.size() > 64) std::memcpy(bytes.data(), &magic, 8);
    file << bytes;
  }
  std::filesystem::create_directory(path() + "/00000077.games");
  std::filesystem::create_symlink("/etc/passwd", path() + "/00000078.games");
  ChunkStore store(options());
  put_chunk(store, 1);
  EXPECT_EQ(stored(store, 1), game_of(1));
}

TEST_F(StoreDirectory, IsCutDownToASmallerBudget) {
  fill(1500);
  const std::size_t before = files().size();
  ChunkStore store(options(kBudget / 2));
  EXPECT_LE(store.figures().bytes, kBudget / 2);
  EXPECT_LT(files().size(), before);
  EXPECT_EQ(stored(store, 1499), game_of(1499)) << "the newest stay";
}

// Games of an earlier run are wanted only once somebody has asked for them.
TEST_F(StoreDirectory, LetsGamesOfAnEarlierRunGoFirst) {
  fill(1600);
  ChunkStore store(options());
  for (std::uint64_t i = 800; i < 1600; ++i) ASSERT_FALSE(stored(store, i, 10'000, i).empty());
  for (std::uint64_t i = 5000; i < 5500; ++i) put_chunk(store, i);
  EXPECT_GT(store.figures().evicted, 300U);
  for (std::uint64_t i = 1000; i < 1600; ++i) ASSERT_FALSE(stored(store, i).empty()) << i;
  for (std::uint64_t i = 5000; i < 5500; ++i) ASSERT_FALSE(stored(store, i).empty()) << i;
}

TEST_F(StoreDirectory, BelongsToOneAtATime) {
  ChunkStore first(options());
  put_chunk(first, 1);
  {
    ChunkStore second(options());
    EXPECT_THAT(second.problem().value_or(""), HasSubstr("another process uses it"));
    EXPECT_EQ(second.problem(), std::nullopt) << "said once";
    put_chunk(second, 2);
    EXPECT_TRUE(stored(second, 1).empty());
    EXPECT_TRUE(stored(second, 2).empty());
  }
  EXPECT_EQ(stored(first, 1), game_of(1));
}

TEST_F(StoreDirectory, ThatCannotBeUsedIsDoneWithout) {
  std::ofstream(path()) << "a file";
  ChunkStore store(options());
  EXPECT_THAT(store.problem().value_or(""), HasSubstr(path()));
  put_chunk(store, 1);
  EXPECT_TRUE(stored(store, 1).empty());
}

TEST_F(StoreDirectory, ThatIsTakenAwayLosesNothingButTheStore) {
  ChunkStore store(options());
  put_chunk(store, 1);
  std::filesystem::remove_all(path());
  EXPECT_EQ(stored(store, 1), game_of(1)) << "the file is still open";
  for (std::uint64_t i = 2; i < 400; ++i) put_chunk(store, i);
  EXPECT_THAT(store.problem().value_or(""), HasSubstr("no room"));
  EXPECT_EQ(stored(store, 1), game_of(1));
}

TEST(StoreKeys, TellEveryStateOfAFile) {
  const ChunkOrigin one{.path = "a",
                        .device = 1,
                        .inode = 2,
                        .file_bytes = 3,
                        .mtime_ns = 4,
                        .offset = 5,
                        .bytes = 6};
  std::vector<ChunkOrigin> others(7, one);
  others[0].path = "b";
  others[1].device = 9;
  others[2].inode = 9;
  others[3].file_bytes = 9;
  others[4].mtime_ns = 9;
  others[5].offset = 9;
  others[6].bytes = 9;
  EXPECT_EQ(store_key(one), store_key(one));
  for (const ChunkOrigin& other : others) EXPECT_FALSE(store_key(other) == store_key(one));
}

TEST(StoreShared, IsOneForAllLanesOfAStage) {
  const ChunkStore::Options options{.budget_bytes = kBudget, .directory = ""};
  auto one = shared_by_name<ChunkStore>("pool", options);
  EXPECT_EQ(shared_by_name<ChunkStore>("pool", options), one);
  EXPECT_NE(shared_by_name<ChunkStore>("other", options), one);
  std::weak_ptr<ChunkStore> gone = one;
  one.reset();
  EXPECT_TRUE(gone.expired());
}

}  // namespace
}  // namespace ringfeed
