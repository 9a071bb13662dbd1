// The games that the rows of a file make.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workers/io/row_batch.h"
#include "workers/rows/file_rows.h"

namespace ringfeed {

// Which rows make a game: those with one game_id, wherever they are in the file. Games are numbered
// in the order in which they appear.
class GameIndex {
 public:
  // The column game_id is the first one, ply the second one (chess_columns.h).
  void build(std::span<const formats::RowBatch> batches);
  [[nodiscard]] std::size_t games() const noexcept { return games_.size(); }
  // Rows may be missing: damage lies beside one of its rows.
  [[nodiscard]] bool cut(std::size_t game) const noexcept { return games_[game].cut; }
  [[nodiscard]] std::uint64_t rows_without_game() const noexcept { return rows_without_game_; }
  // Its rows by their plies, those without one last, else as in the file.
  void rows_of(std::size_t game, std::vector<RowPlace>& rows);

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;
  // Rows of a game that follow each other in a batch.
  struct Run {
    RowPlace first;
    std::uint32_t count;
    std::uint32_t next;
  };
  struct Game {
    std::uint32_t first_run;
    std::uint32_t last_run;
    bool cut;
  };
  struct Ply {
    bool missing;
    std::int64_t integer;
    double number;
    RowPlace place;
  };
  std::uint32_t game_of(std::string_view id);

  std::span<const formats::RowBatch> batches_;
  std::vector<Run> runs_;
  std::vector<Game> games_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<Ply> plies_;
  std::uint64_t rows_without_game_ = 0;
};

}  // namespace ringfeed
