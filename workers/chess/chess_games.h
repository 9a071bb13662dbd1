// Makes token sequences of games. With `order: BETTER` of three parts:
//
//   ""       gathers games: one lane
//     input    rows        of Parquet files (row_records.h)
//     output   games       inside the stage: what a window needs of a game, GameRecord
//     arena    all rows of the file under way (it is complete only at its end), how many of its
//              games have been dealt out
//   tokens   lanes that make a sequence of each (chess/chess_game.h)
//     skips    a game with a fault in its window, by reason
//   pool     mixes them: one lane (sequence_pool.h)
//     output   sequences   of the stage
//
// Which boards are left out and where the window starts follows from the feed's seed, the epoch,
// the file's name and the game's number in it, so from nothing that lanes or deaths could change.
// With `order: EXACT` the stage is one lane: exact_reader.h.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/chess/chess_game.h"
#include "workers/chess/game_index.h"
#include "workers/io/row_batch.h"
#include "workers/kit/place_pool.h"
#include "workers/kit/stage_help.h"
#include "workers/rows/file_rows.h"

namespace ringfeed {

StageType chess_games_type();

// How the values of a row are given.
[[nodiscard]] formats::GameRow game_row(const formats::RowBatch& batch, std::uint32_t row,
                                        bool played_values);

class ChessGames final : public Stage {
 public:
  static constexpr std::uint32_t kStepsPerCommit = 8;
  static constexpr std::uint32_t kGamesPerStep = 16;

  struct State {
    explicit State(StateLayout& layout)
        : dealt(layout.word()),
          places_bytes(layout.word()),
          rows(layout),
          places(layout, places_bytes, usual_place_sizes(), kUsualPlaceAlignment,
                 kStepsPerCommit * FileRows::kGivenUpMax) {}
    Word dealt;  // games of the file under way that have gone out, or kGivingUp
    Word places_bytes;
    FileRows::State rows;
    PlacePool places;
  };

  explicit ChessGames(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  static constexpr std::uint64_t kGivingUp = ~std::uint64_t{0};  // its rows go
  StepStatus deal(Step& step, const Record& end) noexcept;
  // False: no room now.
  bool deal_game(Step& step, std::uint32_t game) noexcept;

  StageContext context_;
  bool played_values_;
  double skip_probability_;
  bool first_ply_;
  std::uint32_t length_max_;
  State state_;
  FileRows rows_;
  InPort in_;
  OutPort out_;
  Counter rows_counter_;
  Counter rows_without_game_;
  Counter games_;
  Counter games_cut_;
  SkipReason too_large_;
  SkipReason damaged_;
  // Caches of the file under way, while its games are dealt out.
  bool looked_ = false;
  std::vector<formats::RowBatch> batches_;
  GameIndex index_;
  std::vector<RowPlace> game_rows_;
  std::vector<std::uint8_t> moved_;
  std::vector<std::uint8_t> included_;
  formats::GameTokens layout_;
};

class GameSequences final : public Stage {
 public:
  explicit GameSequences(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  StageContext context_;
  formats::GameOptions options_;
  InPort in_;
  OutPort out_;
  Counter sequences_;
  SkipReason fen_;
  SkipReason played_move_;
  SkipReason best_move_;
  SkipReason too_large_;
  std::vector<formats::GameRow> rows_;
  std::vector<std::uint8_t> moved_;
  formats::GameTokens tokens_;
  formats::TokenSequence sequence_;
};

}  // namespace ringfeed
