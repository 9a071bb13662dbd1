// What the stage behind a source of rows does with them: which columns it asks for, and whether the
// files are its to choose. Both sides take it from here: the source reads these columns and puts
// them out in this order, the reader finds them by the numbers below.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workers/io/row_file.h"

namespace ringfeed {

class DataLoaderConfig;

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

struct RowsReader {
  std::string stage;
  bool chooses_files = false;  // EXACT: the source reads what its port "requests" asks for
  std::vector<formats::ColumnWish> columns;  // empty: it takes what it gets
};

// The stage that reads the output of a source of rows; nullopt: the configuration has none, or
// none that is known to.
[[nodiscard]] std::optional<RowsReader> rows_reader(const DataLoaderConfig& feed,
                                                    std::string_view source);

// The columns that a source reads: the configured ones, or else its reader's.
[[nodiscard]] std::vector<formats::ColumnWish> wanted_columns(const DataLoaderConfig& feed,
                                                              std::string_view source);

}  // namespace ringfeed
