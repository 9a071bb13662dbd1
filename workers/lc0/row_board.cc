#include "workers/lc0/row_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "ringfeed/worker/batch_view.h"
#include "workers/lc0/lc0_tensors.h"
#include "workers/lc0/policy_moves.h"

namespace ringfeed {
namespace {

constexpr std::size_t kSquaresOfPlane = 64;
constexpr std::size_t kPieces = 12;
constexpr std::size_t kRule50Plane = 109;
constexpr std::size_t kMovesShown = 5;

// Squares a1 to h8 of all planes: not 0 there. One type of planes each.
class Planes {
 public:
  Planes(const BatchViewArray& array, std::uint64_t row) {
    if (array.dtype == "uint64") {
      bits_ = array.row<std::uint64_t>(row);
    } else if (array.dtype == "float32") {
      floats_ = array.row<float>(row);
    } else if (array.dtype == "uint8") {
      bytes_ = array.row<std::uint8_t>(row);
    } else {
      halves_ = array.row<std::uint16_t>(row);
    }
  }
  [[nodiscard]] bool whole() const {
    return bits_.size() == formats::kInputPlanes ||
           std::max({floats_.size(), bytes_.size(), halves_.size()}) == formats::kPlanesRowFloats;
  }
  [[nodiscard]] bool has(std::size_t plane, std::size_t square) const {
    if (!bits_.empty()) {
      // Rank r is byte r, file a its highest bit.
      return (bits_[plane] >> (square / 8 * 8 + 7 - square % 8) & 1) != 0;
    }
    const std::size_t at = plane * kSquaresOfPlane + square;
    if (!floats_.empty()) return floats_[at] != 0;
    return (bytes_.empty() ? halves_[at] & 0x7fff : bytes_[at]) != 0;
  }
  // Plies without capture or pawn's move, where the type tells them.
  [[nodiscard]] std::optional<int> rule50() const {
    const std::size_t at = kRule50Plane * kSquaresOfPlane;
    if (!bytes_.empty()) return bytes_[at];
    if (!floats_.empty() && floats_[at] >= 0 && floats_[at] <= 2) {
      return static_cast<int>(std::lround(floats_[at] * 99));
    }
    return std::nullopt;
  }

 private:
  std::span<const std::uint64_t> bits_;
  std::span<const float> floats_;
  std::span<const std::uint8_t> bytes_;
  std::span<const std::uint16_t> halves_;
};

std::string board_text(const Planes& planes) {
  constexpr std::string_view kLetters = "PNBRQKpnbrqk";
  std::string text;
  for (std::size_t rank = 8; rank-- > 0;) {
    text += fmt::format("{}", rank + 1);
    for (std::size_t file = 0; file < 8; ++file) {
      char shown = '.';
      for (std::size_t piece = 0; piece < kPieces; ++piece) {
        if (!planes.has(piece, 8 * rank + file)) continue;
        shown = shown == '.' ? kLetters[piece] : '?';  // two on a square
      }
      text += fmt::format(" {}", shown);
    }
    text += '\n';
  }
  return text + "  a b c d e f g h\n";
}

// Index and probability, the likeliest first; what is negative is no legal move.
std::vector<std::pair<std::size_t, float>> moves_of(const BatchView& batch, std::uint64_t row) {
  std::vector<std::pair<std::size_t, float>> moves;
  const auto add = [&](std::size_t index, float value) {
    if (value > 0 && index < formats::kPolicyMoves) moves.emplace_back(index, value);
  };
  for (const char* const name : {"policy", "probabilities"}) {
    const BatchViewArray* const dense = batch.find(name);
    if (dense == nullptr || dense->dtype != "float32") continue;
    const std::span<const float> values = dense->row<float>(row);
    for (std::size_t i = 0; i < values.size(); ++i) add(i, values[i]);
  }
  const BatchViewArray* const indices = batch.find("policy_indices");
  const BatchViewArray* const values = batch.find("policy_values");
  if (indices != nullptr && values != nullptr) {
    const std::span<const std::int16_t> at = indices->row<std::int16_t>(row);
    const std::span<const float> of = values->row<float>(row);
    for (std::size_t i = 0; i < std::min(at.size(), of.size()); ++i) {
      if (at[i] >= 0) add(static_cast<std::size_t>(at[i]), of[i]);
    }
  }
  const std::size_t shown = std::min(moves.size(), kMovesShown);
  std::partial_sort(moves.begin(), moves.begin() + static_cast<std::ptrdiff_t>(shown), moves.end(),
                    [](const auto& left, const auto& right) { return left.second > right.second; });
  moves.resize(shown);
  return moves;
}

std::string values_text(const BatchView& batch, std::uint64_t row) {
  constexpr std::array<std::string_view, 6> kRows{"result", "best", "played", "orig", "root", "st"};
  std::string text;
  if (const BatchViewArray* const values = batch.find("values")) {
    const std::span<const float> all = values->row<float>(row);
    if (all.size() != formats::kValuesRowFloats) return {};
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      text += fmt::format("{:<7} q {:6.3f}  d {:6.3f}  m {:.1f}\n", kRows[i], all[3 * i],
                          all[3 * i + 1], all[3 * i + 2]);
    }
  }
  for (const char* const name : {"winner", "best_q"}) {
    const BatchViewArray* const array = batch.find(name);
    const std::span<const float> wdl =
        array == nullptr ? std::span<const float>() : array->row<float>(row);
    if (wdl.size() != 3) continue;
    text +=
        fmt::format("{:<7} win {:.3f}  draw {:.3f}  loss {:.3f}\n", name, wdl[0], wdl[1], wdl[2]);
  }
  return text;
}

}  // namespace

std::string lc0_row_text(const BatchView& batch, std::uint64_t row) {
  const BatchViewArray* const array = batch.find("planes");
  if (array == nullptr) return {};
  const Planes planes(*array, row);
  if (!planes.whole()) return {};
  std::string text = board_text(planes);
  text += "upper case moves, and moves up";
  if (const std::optional<int> rule50 = planes.rule50()) {
    text += fmt::format("; {} plies without capture or pawn's move", *rule50);
  }
  text += '\n' + values_text(batch, row);
  std::string moves;
  for (const auto& [index, value] : moves_of(batch, row)) {
    moves += fmt::format("  {} {:.1f}%", inspect::uci(inspect::policy_moves()[index], false),
                         100 * value);
  }
  return moves.empty() ? text : text + "moves  " + moves + '\n';
}

}  // namespace ringfeed
