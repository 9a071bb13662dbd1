// A packed game: the frames of a chunk without what they repeat of each other, about 0.4 KB a
// position instead of 1.1 KB as packed frames, and any frame readable alone.
//
// History step h of a position is the board of h plies before, seen from the other side when h is
// odd: ranks mirrored, own and the opponent's pieces changed over. So only the 13 planes of each
// position's own board are kept, and the others are made of those of its seven predecessors. A
// frame for which that does not give its planes bit by bit (another input_format, a game that does
// not begin at its beginning) keeps its own, so that packing is lossless for any records.
//
// Little-endian:
//   offset            size         field
//        0               4         game_bytes     of the whole
//        4               4         frame_count    n
//        8               4         origin         version that the records had
//       12               4         input_format
//       16           4 n + 4       offsets        of each frame's rest from the start of the game,
//                                                 and of its end
//   (to a multiple of 8)
//                      104 n       boards         u64[13] of each frame
//                                  rests          one after the other, multiples of 4
//   a rest:
//        0               2         policy_entries k
//        2               2         kind           Kept
//        4            84 or 124    tail           record bytes from 8272 on
//                       4 k        policy values
//                       2 k        policy indices (2 bytes of padding where k is odd)
//                     728 or 0     history        u64[91], if it is kept: planes 13 to 103
//   or, kind kWhole: a packed frame as it is, from byte 4 on (raw ones, and what no engine writes)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "workers/lc0/packed_frame.h"

namespace ringfeed::formats {

inline constexpr std::size_t kBoardPlanes = 13;
inline constexpr std::size_t kBoardBytes = 8 * kBoardPlanes;
inline constexpr std::size_t kHistorySteps = 8;
static_assert(kHistorySteps * kBoardPlanes == kBitPlanes);
using Board = std::array<std::uint64_t, kBoardPlanes>;

// The board as the other side sees it: ranks mirrored, pieces changed over.
[[nodiscard]] Board seen_by_other_side(const Board& board) noexcept;

// Puts a game together, frame by frame. Keeps its memory from one game to the next.
class GamePacker {
 public:
  void begin(std::size_t frame_count, std::uint32_t origin, std::uint32_t input_format);
  // The next frame, as pack() made it. RF_CHECK: it is one.
  void add(std::span<const std::byte> frame);
  // The game, until the next begin(). RF_CHECK: all frames were added.
  [[nodiscard]] std::span<const std::byte> finish();

 private:
  std::size_t frame_count_ = 0;
  std::size_t added_ = 0;
  std::size_t boards_at_ = 0;
  std::array<Board, kHistorySteps> recent_{};  // of the last frames, by number modulo 8
  std::vector<std::byte> bytes_;
};

// The bytes of a game, wherever they are: in memory, or read piece by piece from a file.
class GameBytes {
 public:
  virtual ~GameBytes() = default;
  // A view of these bytes, good until the next call; empty if they are not there or cannot be read.
  [[nodiscard]] virtual std::span<const std::byte> at(std::size_t offset,
                                                      std::size_t bytes) noexcept = 0;
};

// A game to read frames from. Refuses what contradicts itself, and never reads outside of it.
class PackedGame {
 public:
  // Nothing for bytes that no GamePacker has made.
  [[nodiscard]] static std::optional<PackedGame> open(GameBytes& bytes) noexcept;

  [[nodiscard]] std::size_t frame_count() const noexcept { return frame_count_; }
  // Writes frame `index` as the packed frame that it was; its bytes, or 0: `out` is too short or
  // the game is damaged. packed_bytes_max is always room enough.
  [[nodiscard]] std::size_t frame(std::size_t index, std::span<std::byte> out) noexcept;
  // Record bytes from 8272 on of frame `index`, until the next call of anything; empty: damaged.
  [[nodiscard]] std::span<const std::byte> tail(std::size_t index) noexcept;

 private:
  [[nodiscard]] std::array<std::size_t, 2> ends(std::size_t index) noexcept;

  GameBytes* bytes_ = nullptr;
  std::size_t game_bytes_ = 0;
  std::size_t frame_count_ = 0;
  std::uint32_t origin_ = 0;
  std::uint32_t input_format_ = 0;
};

}  // namespace ringfeed::formats
