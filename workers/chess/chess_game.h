// A game of the pretraining data, row by row, as tokens: for each ply its board (68 tokens) unless
// that is left out, the move, wl_value and d_value; of all that, the window from a start that lies
// between two plies.
//
// What is left out and where the window starts is the caller's to decide, and comes first:
// lay_out() needs no more than which rows have a move. build() then reads only what is in the
// window. One thread; allocates what the largest game needs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "workers/chess/chess_fen.h"
#include "workers/chess/token_sequence.h"

namespace ringfeed::formats {

// A row; what is missing in the file has no value, or is NaN.
struct GameRow {
  std::optional<std::string_view> fen;
  std::string_view played_move;  // empty: none
  std::optional<std::string_view> best_move;
  double win;  // of the side that moves, as draw and loss
  double draw;
  double loss;
};

enum class GameFault : std::uint8_t { kNone, kFen, kPlayedMove, kBestMove };
struct GameProblem {
  GameFault fault = GameFault::kNone;
  std::size_t row = 0;
  FenStatus fen = FenStatus::kOk;  // of kFen: why
};

struct GameOptions {
  std::uint32_t length_max = 256;  // tokens of the window
  // Boards and moves outside the window are read as well, and their faults are faults.
  bool read_all = false;
  // A ply without a board puts its values over those of the ply before it, at that one's d_value.
  bool overwrite_values = false;
};

class GameTokens {
 public:
  // moved[i]: does row i have a move; included[i]: does it come with its board?
  void lay_out(std::span<const std::uint8_t> moved, std::span<const std::uint8_t> included);
  [[nodiscard]] std::size_t token_count() const noexcept { return token_count_; }
  // Where the window may start: at 0 and behind each ply that has a move, but the last.
  [[nodiscard]] std::size_t start_count() const noexcept;
  [[nodiscard]] std::uint32_t start(std::size_t choice) const noexcept;
  // The rows that have tokens in the window from there on. Laid out by themselves, with a start at
  // 0, they give the same.
  struct Rows {
    std::size_t begin;
    std::size_t end;
  };
  [[nodiscard]] Rows window_rows(std::size_t choice, std::uint32_t length_max) const noexcept;

  // The window from start(choice) on. The rows are those of lay_out().
  [[nodiscard]] GameProblem build(std::span<const GameRow> rows, std::size_t choice,
                                  const GameOptions& options, TokenSequence& out) const;

 private:
  static constexpr std::uint32_t kNowhere = 0xffffffffU;
  struct Ply {
    std::uint32_t board;  // where its tokens begin; kNowhere: left out
    std::uint32_t move;   // kNowhere: there is none
  };
  std::vector<Ply> plies_;
  std::vector<std::uint32_t> moved_;  // plies that have a move
  std::uint32_t token_count_ = 0;
};

}  // namespace ringfeed::formats
