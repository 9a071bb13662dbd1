#include "workers/chess/chess_game.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {
namespace {

constexpr std::uint32_t kPlyTokens = 3;  // move, wl_value, d_value

struct Wdl {
  float wl;
  float d;
  bool known;
};
Wdl wdl_of(const GameRow& row) noexcept {
  const auto given = [](double value) { return std::isnan(value) ? 0.0 : value; };
  // In double precision and rounded once.
  return {.wl = static_cast<float>(given(row.win) - given(row.loss)),
          .d = static_cast<float>(given(row.draw)),
          .known = !std::isnan(row.win) && !std::isnan(row.draw) && !std::isnan(row.loss)};
}

}  // namespace

void GameTokens::lay_out(std::span<const std::uint8_t> moved,
                         std::span<const std::uint8_t> included) {
  RF_CHECK(moved.size() == included.size(), moved.size(), included.size());
  plies_.clear();
  moved_.clear();
  token_count_ = 0;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    Ply ply{kNowhere, kNowhere};
    if (included[i] != 0) {
      ply.board = token_count_;
      token_count_ += kBoardTokens;
    }
    if (moved[i] != 0) {
      ply.move = token_count_;
      token_count_ += kPlyTokens;
      moved_.push_back(static_cast<std::uint32_t>(i));
    }
    plies_.push_back(ply);
  }
}

std::size_t GameTokens::start_count() const noexcept {
  return std::max<std::size_t>(moved_.size(), 1);
}

std::uint32_t GameTokens::start(std::size_t choice) const noexcept {
  RF_CHECK(choice < start_count(), choice, start_count());
  return choice == 0 ? 0 : plies_[moved_[choice - 1]].move + kPlyTokens;
}

GameTokens::Rows GameTokens::window_rows(std::size_t choice,
                                         std::uint32_t length_max) const noexcept {
  const std::uint32_t begin = start(choice);
  const std::uint64_t end = std::uint64_t{begin} + length_max;
  Rows rows{choice == 0 ? 0 : std::size_t{moved_[choice - 1]} + 1, plies_.size()};
  const auto starts_behind = [end](const Ply& ply) {
    const std::uint32_t at = std::min(ply.board, ply.move);  // kNowhere is the largest number
    return at != kNowhere && at >= end;
  };
  rows.end = static_cast<std::size_t>(
      std::find_if(plies_.begin() + static_cast<std::ptrdiff_t>(rows.begin), plies_.end(),
                   starts_behind) -
      plies_.begin());
  return rows;
}

GameProblem GameTokens::build(std::span<const GameRow> rows, std::size_t choice,
                              const GameOptions& options, TokenSequence& out) const {
  RF_CHECK(rows.size() == plies_.size(), rows.size(), plies_.size());
  out.clear();
  const std::uint32_t begin = start(choice);
  const std::uint32_t count = std::min(token_count_ - begin, options.length_max);
  const std::uint32_t end = begin + count;
  out.tokens.resize(count);
  std::array<Token, kBoardTokens> board;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const GameRow& row = rows[i];
    const auto [board_at, move_at] = plies_[i];
    const bool has_move = move_at != kNowhere;
    if (board_at != kNowhere) {
      // A window never starts inside a board.
      const bool wanted = board_at >= begin && board_at < end;
      if (wanted || options.read_all) {
        FenStatus status = FenStatus::kOk;
        if (row.fen) {
          status = read_fen(*row.fen, board);
        } else {
          write_empty_board(board);
        }
        if (status != FenStatus::kOk) return {GameFault::kFen, i, status};
      }
      if (wanted) {
        const std::uint32_t at = board_at - begin;
        const auto fits = std::min<std::uint32_t>(kBoardTokens, count - at);
        std::copy_n(board.begin(), fits, out.tokens.begin() + at);
        if (has_move) out.blocks.push_back({at, at + fits});
      }
    }
    if (!has_move) continue;
    const bool wanted = move_at >= begin && move_at < end;
    if (!wanted && !options.read_all) continue;
    const std::optional<Token> played = find_token(row.played_move);
    if (!played) return {GameFault::kPlayedMove, i};
    if (!wanted) continue;
    const std::uint32_t move = move_at - begin;
    out.tokens[move] = *played;
    if (move + 1 < count) out.tokens[move + 1] = kWlValueToken;
    // Without its d_value a ply has no targets at all.
    if (move + 2 >= count) continue;
    out.tokens[move + 2] = kDValueToken;
    const Wdl wdl = wdl_of(row);
    const auto value = [&](std::uint32_t at, std::uint32_t uses) {
      out.values.push_back({at, uses | TokenSequence::known(wdl.known), wdl.wl, wdl.d});
    };
    if (move > 0) {
      const std::optional<Token> best = row.best_move ? find_token(*row.best_move) : std::nullopt;
      if (!best || move_id(*best) < 0) return {GameFault::kBestMove, i};
      out.targets.push_back(
          {move - 1, move_id(*best), board_id(kGenericMoveToken), TokenSequence::kMove});
    }
    value(move + 1, TokenSequence::kWl | TokenSequence::kWlPosition);
    value(move + 2, TokenSequence::kD | TokenSequence::kDPosition);
    // What the position is worth is asked of the last token before the move as well. Without a
    // board that may be the d_value of the ply before.
    if (move > 0 && (out.tokens[move - 1] != kDValueToken || options.overwrite_values)) {
      value(move - 1, TokenSequence::kWl | TokenSequence::kD);
    }
  }
  return {};
}

}  // namespace ringfeed::formats
