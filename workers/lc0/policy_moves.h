// The 1858 moves of the policy: what an index means.
//
// Squares are numbered a1 = 0, b1 = 1 … h8 = 63, in the view of the side to move: for black, ranks
// are mirrored. Indices 0 to 1791 are the moves of a queen or a knight from each square, by origin
// and then by destination; 1792 to 1857 are promotions to queen, rook and bishop, by file of the
// pawn, then of the square that it goes to. A promotion to a knight is the plain move. Castling is
// the king's move onto the rook.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "workers/lc0/lc0_record.h"

namespace ringfeed::inspect {

struct PolicyMove {
  std::uint8_t from = 0;
  std::uint8_t to = 0;
  char promotion = '\0';  // 'q', 'r', 'b'
};

[[nodiscard]] const std::array<PolicyMove, formats::kPolicyMoves>& policy_moves() noexcept;

// "e2e4", "a7a8q"; `mirrored`: with ranks 1 and 8 changed over, for black.
[[nodiscard]] std::string uci(PolicyMove move, bool mirrored);

}  // namespace ringfeed::inspect
