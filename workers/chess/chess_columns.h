// The columns of rows that chess stages ask for, and the numbers by which they find them.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/io/row_file.h"

namespace ringfeed {

class ChessGamesConfig;

// Columns that chess_games asks for; the values are win, draw, loss or played_q, played_d.
namespace game_columns {
inline constexpr std::uint32_t kGameId = 0;
inline constexpr std::uint32_t kPly = 1;
inline constexpr std::uint32_t kFen = 2;
inline constexpr std::uint32_t kPlayedMove = 3;
inline constexpr std::uint32_t kBestMove = 4;
inline constexpr std::uint32_t kWin = 5;
inline constexpr std::uint32_t kDraw = 6;
inline constexpr std::uint32_t kLoss = 7;
inline constexpr std::uint32_t kPlayedQ = 5;
inline constexpr std::uint32_t kPlayedD = 6;
}  // namespace game_columns

// Columns that chess_variations asks for.
namespace variation_columns {
inline constexpr std::uint32_t kVariations = 0;
inline constexpr std::uint32_t kFen = 1;
inline constexpr std::uint32_t kMctsAction = 2;
inline constexpr std::uint32_t kPlayedMove = 3;
inline constexpr std::uint32_t kBestMove = 4;
inline constexpr std::uint32_t kWin = 5;
inline constexpr std::uint32_t kDraw = 6;
inline constexpr std::uint32_t kLoss = 7;
}  // namespace variation_columns

[[nodiscard]] std::vector<formats::ColumnWish> wanted_columns(const ChessGamesConfig& config);
[[nodiscard]] std::vector<formats::ColumnWish> wanted_variation_columns();

}  // namespace ringfeed
