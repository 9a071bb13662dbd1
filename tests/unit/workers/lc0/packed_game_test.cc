// The specification of workers/lc0/packed_game.h.
#include "workers/lc0/packed_game.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ringfeed/shm/result.h"
#include "tests/support/rig/lc0_sample.h"

namespace ringfeed::formats {
namespace {

using testing::Bytes;

// A game in memory that ends where it says; views are copies, so that the sanitizer sees what is
// used after the next call.
class Memory final : public GameBytes {
 public:
  explicit Memory(std::span<const std::byte> game) : game_(game.begin(), game.end()) {}
  std::span<const std::byte> at(std::size_t offset, std::size_t bytes) noexcept override {
    if (offset > game_.size() || bytes > game_.size() - offset) return {};
    view_ = std::make_unique<Bytes>(game_.begin() + static_cast<std::ptrdiff_t>(offset),
                                    game_.begin() + static_cast<std::ptrdiff_t>(offset + bytes));
    read_ += bytes;
    return *view_;
  }
  [[nodiscard]] Bytes& game() { return game_; }
  [[nodiscard]] std::size_t read() const { return read_; }

 private:
  Bytes game_;
  std::unique_ptr<Bytes> view_;
  std::size_t read_ = 0;
};

std::vector<Bytes> frames_of(const Bytes& records, std::uint32_t version = 6) {
  const std::size_t record_bytes = frame_bytes_of_version(version);
  std::vector<Bytes> frames;
  for (std::size_t at = 0; at < records.size(); at += record_bytes) {
    Bytes frame(packed_bytes_max);
    frame.resize(pack(records.data() + at, version, frame));
    frames.push_back(frame);
  }
  return frames;
}

Bytes game_of(const std::vector<Bytes>& frames, std::uint32_t origin = 6,
              std::uint32_t input_format = 1) {
  GamePacker packer;
  packer.begin(frames.size(), origin, input_format);
  for (const Bytes& frame : frames) packer.add(frame);
  const std::span<const std::byte> game = packer.finish();
  return {game.begin(), game.end()};
}

Bytes frame_of(Memory& memory, std::size_t index) {
  std::optional<PackedGame> game = PackedGame::open(memory);
  RF_CHECK(game.has_value(), index);
  Bytes frame(packed_bytes_max);
  frame.resize(game->frame(index, frame));
  return frame;
}

TEST(PackedGame, GivesBackEveryFrameOfRealGamesAloneAndInAnyOrder) {
  for (const testing::SampleGame& sample : testing::kSampleGames) {
    const Bytes records = testing::sample_records(sample);
    const std::vector<Bytes> frames = frames_of(records);
    Memory memory(game_of(frames));
    for (std::size_t i = frames.size(); i-- > 0;) {
      ASSERT_EQ(frame_of(memory, i), frames[i]) << sample.name << ", frame " << i;
    }
    // Of real games all history is made of the boards before.
    EXPECT_LT(memory.game().size(), 440 * frames.size()) << sample.name;
  }
}

TEST(PackedGame, ReadsLittleForOneFrame) {
  const std::vector<Bytes> frames = frames_of(testing::sample_records(testing::kSampleGames[3]));
  Memory memory(game_of(frames));
  static_cast<void>(frame_of(memory, 77));
  EXPECT_LT(memory.read(), 1500U);
}

Bytes noise(std::mt19937_64& random, std::uint32_t version, std::uint32_t input_format,
            std::size_t count) {
  const std::size_t record_bytes = frame_bytes_of_version(version);
  Bytes records(count * record_bytes);
  for (std::byte& b : records) b = static_cast<std::byte>(random());
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* record = records.data() + i * record_bytes;
    std::memcpy(record, &version, 4);
    if (version >= 5) std::memcpy(record + 4, &input_format, 4);
    const std::size_t policy = version < 5 ? 4 : 8;
    const std::uint32_t filler = packed::filler_bits(version);
    // All kinds of policies: empty, of odd and even length, too long to be packed.
    const std::size_t entries = std::array<std::size_t, 5>{0, 3, 40, 1300, 1858}[random() % 5];
    for (std::size_t move = entries; move < kPolicyMoves; ++move) {
      std::memcpy(record + policy + 4 * move, &filler, 4);
    }
    if (version < 6) record[policy == 4 ? 8275 : 8279] = std::byte{0};
  }
  return records;
}

TEST(PackedGame, GivesBackNoiseOfEveryVersion) {
  std::mt19937_64 random(3);
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    for (const std::uint32_t input_format : {1U, 3U, 133U}) {
      const Bytes records = noise(random, version, input_format, 20);
      const std::vector<Bytes> frames = frames_of(records, version);
      Memory memory(game_of(frames, version, version < 5 ? 1 : input_format));
      for (std::size_t i = 0; i < frames.size(); ++i) {
        ASSERT_EQ(frame_of(memory, i), frames[i]) << "version " << version << ", frame " << i;
      }
    }
  }
}

// One bit of history that the boards before do not have: the frame keeps its own.
TEST(PackedGame, KeepsAHistoryThatDoesNotFollow) {
  const Bytes records = testing::sample_records(testing::kSampleGames[0]);
  const std::size_t whole = game_of(frames_of(records)).size();
  for (std::size_t plane = 13; plane < kBitPlanes; plane += 9) {
    Bytes changed = records;
    changed[9 * kV6RecordBytes + v6::kPlanes + 8 * plane + 3] ^= std::byte{0x10};
    const std::vector<Bytes> frames = frames_of(changed);
    Memory memory(game_of(frames));
    EXPECT_EQ(memory.game().size(), whole + 728) << plane;
    for (std::size_t i = 0; i < frames.size(); ++i) ASSERT_EQ(frame_of(memory, i), frames[i]);
  }
  // A game whose beginning is missing: only the first seven frames have more than follows.
  const Bytes later(records.begin() + 12 * static_cast<std::ptrdiff_t>(kV6RecordBytes),
                    records.end());
  const std::vector<Bytes> frames = frames_of(later);
  Memory memory(game_of(frames));
  for (std::size_t i = 0; i < frames.size(); ++i) ASSERT_EQ(frame_of(memory, i), frames[i]);
}

TEST(PackedGame, TurnsTheBoardTwiceToWhereItWas) {
  std::mt19937_64 random(5);
  Board board;
  for (std::uint64_t& plane : board) plane = random();
  const Board other = seen_by_other_side(board);
  EXPECT_EQ(seen_by_other_side(other), board);
  EXPECT_EQ(other[6], __builtin_bswap64(board[0]));
  EXPECT_EQ(other[12], board[12]);
}

TEST(PackedGame, RefusesTooLittleRoomAndFramesThatAreNotThere) {
  const std::vector<Bytes> frames = frames_of(testing::sample_records(testing::kSampleGames[0]));
  Memory memory(game_of(frames));
  std::optional<PackedGame> game = PackedGame::open(memory);
  ASSERT_TRUE(game.has_value());
  EXPECT_EQ(game->frame_count(), frames.size());
  Bytes room(frames[5].size() - 1, std::byte{0xA5});
  EXPECT_EQ(game->frame(5, room), 0U);
  EXPECT_EQ(room, Bytes(room.size(), std::byte{0xA5}));
  Bytes enough(packed_bytes_max);
  EXPECT_EQ(game->frame(frames.size(), enough), 0U);
}

TEST(PackedGame, NeverReadsOutsideOfWhatIsDamaged) {
  std::mt19937_64 random(7);
  const std::vector<Bytes> frames = frames_of(testing::sample_records(testing::kSampleGames[0]));
  const Bytes good = game_of(frames);
  Bytes out(packed_bytes_max);
  std::size_t whole = 0;
  for (int round = 0; round < 4000; ++round) {
    Bytes damaged = good;
    if (random() % 4 == 0) damaged.resize(random() % good.size());
    for (std::size_t i = 1 + random() % 3; i > 0 && !damaged.empty(); --i) {
      // Mostly the header and the offsets: nearly any byte elsewhere is a good one.
      const std::size_t at = random() % 3 != 0 ? random() % 200 : random() % damaged.size();
      if (at < damaged.size()) damaged[at] = static_cast<std::byte>(random());
    }
    Memory memory(damaged);
    std::optional<PackedGame> game = PackedGame::open(memory);
    if (!game) continue;
    for (std::size_t i = 0; i < std::min<std::size_t>(game->frame_count(), 30); ++i) {
      const std::size_t bytes = game->frame(i, out);
      ASSERT_LE(bytes, out.size());
      whole += bytes != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(whole, 0U);
}

}  // namespace
}  // namespace ringfeed::formats
