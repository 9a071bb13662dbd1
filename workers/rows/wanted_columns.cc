#include "workers/rows/wanted_columns.h"

#include "proto/config.pb.h"
#include "workers/kit/neighbours.h"

namespace ringfeed {
namespace {

using formats::ColumnType;
using formats::ColumnWish;

std::vector<ColumnWish> columns_of(const ChessGamesConfig& config) {
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

std::vector<ColumnWish> variation_columns_wanted() {
  return {
      {"variations", ColumnType::kText, true},  {"fen", ColumnType::kText, true},
      {"mcts_action", ColumnType::kText, true}, {"played_move", ColumnType::kText, false},
      {"best_move", ColumnType::kText, false},  {"win", ColumnType::kNumber, true},
      {"draw", ColumnType::kNumber, true},      {"loss", ColumnType::kNumber, true},
  };
}

}  // namespace

std::optional<RowsReader> rows_reader(const DataLoaderConfig& feed, std::string_view source) {
  const StageConfig* stage = reader_of(feed, source).stage;
  if (stage == nullptr) return std::nullopt;
  RowsReader reader{stage->name(), is_exact(stage), {}};
  if (stage->has_chess_games()) reader.columns = columns_of(stage->chess_games());
  if (stage->has_chess_variations()) reader.columns = variation_columns_wanted();
  return reader;
}

std::vector<ColumnWish> wanted_columns(const DataLoaderConfig& feed, std::string_view source) {
  for (const StageConfig& stage : feed.stages()) {
    if (stage.name() != source || stage.parquet_source().columns().empty()) continue;
    std::vector<ColumnWish> columns;
    for (const std::string& name : stage.parquet_source().columns()) {
      columns.push_back({name, ColumnType::kAny, true});
    }
    return columns;
  }
  std::optional<RowsReader> reader = rows_reader(feed, source);
  return reader ? std::move(reader->columns) : std::vector<ColumnWish>{};
}

}  // namespace ringfeed
