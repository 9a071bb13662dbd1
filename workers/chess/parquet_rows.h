// What is in a Parquet file, for the pipelines that read such files: its columns, and of chess
// games or searched positions what a feed would make of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "workers/io/row_file.h"

namespace ringfeed::inspect {

//   columns      name, type
//   row_groups, rows
//   games        of a file with the columns of chess_games: games, rows_without_game, plies_min,
//                plies_max, skipped (reason -> count, place and text of the first) and first: id,
//                plies, moves, fen, board (8 strings, rank 8 first), tokens
//   variations   of one with those of chess_variations: rows_without_variations, lines, skipped
//   missing      stage -> columns that it would miss
// Damage is added to `problems`. Throws Error: the file cannot be opened.
[[nodiscard]] nlohmann::ordered_json describe_rows(const std::string& path,
                                                   nlohmann::ordered_json& problems);

// The same as text.
[[nodiscard]] std::string rows_text(const nlohmann::ordered_json& rows);

}  // namespace ringfeed::inspect
