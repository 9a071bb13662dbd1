#include "workers/chess/chess_columns.h"

#include "proto/config.pb.h"

namespace ringfeed {

using formats::ColumnType;
using formats::ColumnWish;

std::vector<ColumnWish> wanted_columns(const ChessGamesConfig& config) {
  std::vector<ColumnWish> columns = {
      {"game_id", ColumnType::kAny, true},    {"ply", ColumnType::kNumber, true},
      {"fen", ColumnType::kText, true},       {"played_move", ColumnType::kText, false},
      {"best_move", ColumnType::kText, true},
  };
  const bool played = config.value_columns() == ChessGamesConfig::PLAYED_Q_D;
  for (const char* name : {played ? "played_q" : "win", played ? "played_d" : "draw"}) {
    columns.push_back({name, ColumnType::kNumber, true});
  }
  if (!played) columns.push_back({"loss", ColumnType::kNumber, true});
  return columns;
}

std::vector<ColumnWish> wanted_variation_columns() {
  return {
      {"variations", ColumnType::kText, true},  {"fen", ColumnType::kText, true},
      {"mcts_action", ColumnType::kText, true}, {"played_move", ColumnType::kText, false},
      {"best_move", ColumnType::kText, false},  {"win", ColumnType::kNumber, true},
      {"draw", ColumnType::kNumber, true},      {"loss", ColumnType::kNumber, true},
  };
}

}  // namespace ringfeed
