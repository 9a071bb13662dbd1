#include "workers/lc0/policy_moves.h"

#include <cstdlib>

#include "ringfeed/shm/result.h"

namespace ringfeed::inspect {
namespace {

bool possible(int from, int to) noexcept {
  const int files = std::abs(from % 8 - to % 8);
  const int ranks = std::abs(from / 8 - to / 8);
  if (from == to) return false;
  return files == 0 || ranks == 0 || files == ranks || files * ranks == 2;
}

std::array<PolicyMove, formats::kPolicyMoves> make_moves() noexcept {
  std::array<PolicyMove, formats::kPolicyMoves> moves{};
  std::size_t count = 0;
  for (int from = 0; from < 64; ++from) {
    for (int to = 0; to < 64; ++to) {
      if (!possible(from, to)) continue;
      moves.at(count++) = {static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to), '\0'};
    }
  }
  for (int file = 0; file < 8; ++file) {
    for (int to = file - 1; to <= file + 1; ++to) {
      if (to < 0 || to > 7) continue;
      for (const char promotion : {'q', 'r', 'b'}) {
        moves.at(count++) = {static_cast<std::uint8_t>(48 + file),
                             static_cast<std::uint8_t>(56 + to), promotion};
      }
    }
  }
  RF_CHECK(count == formats::kPolicyMoves, count);
  return moves;
}

}  // namespace

const std::array<PolicyMove, formats::kPolicyMoves>& policy_moves() noexcept {
  static const std::array<PolicyMove, formats::kPolicyMoves> kMoves = make_moves();
  return kMoves;
}

std::string uci(PolicyMove move, bool mirrored) {
  std::string text;
  for (const int square : {int{move.from}, int{move.to}}) {
    text += static_cast<char>('a' + square % 8);
    text += static_cast<char>(mirrored ? '8' - square / 8 : '1' + square / 8);
  }
  if (move.promotion != '\0') text += move.promotion;
  return text;
}

}  // namespace ringfeed::inspect
