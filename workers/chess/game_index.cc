#include "workers/chess/game_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "workers/chess/chess_columns.h"

namespace ringfeed {

void GameIndex::build(std::span<const formats::RowBatch> batches) {
  batches_ = batches;
  runs_.clear();
  games_.clear();
  numbers_.clear();
  rows_without_game_ = 0;
  std::uint32_t game = kNone;
  bool after_gap = false;
  std::deque<std::string> texts;  // of ids that are numbers, for as long as the games are counted
  std::string_view last;
  for (std::uint32_t b = 0; b < batches.size(); ++b) {
    const formats::RowBatch& batch = batches[b];
    if (batch.rows() == 0) {
      if (game != kNone) games_[game].cut = true;
      after_gap = true;
      continue;
    }
    const bool numbered = batch.kind(game_columns::kGameId) != formats::ColumnKind::kText;
    for (std::uint32_t row = 0; row < batch.rows(); ++row) {
      std::string_view id;
      if (numbered) {
        const std::optional<std::int64_t> integer = batch.integer(game_columns::kGameId, row);
        const double number = batch.number(game_columns::kGameId, row) + 0.0;  // -0.0 is 0.0
        if (!integer && std::isnan(number)) {
          ++rows_without_game_;
          continue;
        }
        std::string text(8, '\0');
        if (integer) {
          std::memcpy(text.data(), &*integer, 8);
        } else {
          std::memcpy(text.data(), &number, 8);
        }
        id = texts.emplace_back(std::move(text));
      } else {
        const std::optional<std::string_view> text = batch.text(game_columns::kGameId, row);
        if (!text) {
          ++rows_without_game_;
          continue;
        }
        id = *text;
      }
      if (game == kNone || id != last) {
        game = game_of(id);
        last = id;
      }
      if (after_gap) games_[game].cut = true;
      after_gap = false;
      Game& to = games_[game];
      if (to.last_run != kNone) {
        Run& run = runs_[to.last_run];
        if (run.first.batch == b && run.first.row + run.count == row) {
          ++run.count;
          continue;
        }
        run.next = static_cast<std::uint32_t>(runs_.size());
      } else {
        to.first_run = static_cast<std::uint32_t>(runs_.size());
      }
      to.last_run = static_cast<std::uint32_t>(runs_.size());
      runs_.push_back({{b, row}, 1, kNone});
    }
  }
  numbers_.clear();  // its keys point to what is gone soon
}

std::uint32_t GameIndex::game_of(std::string_view id) {
  const auto [found, is_new] = numbers_.try_emplace(id, static_cast<std::uint32_t>(games_.size()));
  if (is_new) games_.push_back({kNone, kNone, false});
  return found->second;
}

void GameIndex::rows_of(std::size_t game, std::vector<RowPlace>& rows) {
  plies_.clear();
  bool sorted = true;
  const auto before = [](const Ply& a, const Ply& b) {
    if (a.missing || b.missing) return !a.missing && b.missing;
    return a.integer != b.integer ? a.integer < b.integer : a.number < b.number;
  };
  for (std::uint32_t r = games_[game].first_run; r != kNone; r = runs_[r].next) {
    const Run& run = runs_[r];
    const formats::RowBatch& batch = batches_[run.first.batch];
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const std::uint32_t row = run.first.row + i;
      Ply ply{false, 0, 0, {run.first.batch, row}};
      if (const auto integer = batch.integer(game_columns::kPly, row)) {
        ply.integer = *integer;
      } else {
        ply.number = batch.number(game_columns::kPly, row);
        ply.missing = std::isnan(ply.number);
      }
      sorted = sorted && (plies_.empty() || !before(ply, plies_.back()));
      plies_.push_back(ply);
    }
  }
  if (!sorted) std::stable_sort(plies_.begin(), plies_.end(), before);
  rows.clear();
  for (const Ply& ply : plies_) rows.push_back(ply.place);
}

}  // namespace ringfeed
