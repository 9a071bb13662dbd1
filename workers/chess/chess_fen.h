// A position in Forsyth-Edwards notation as 68 tokens: start_pos, the squares a1, b1, ... h8,
// end_pos, castling rights, who moves. Accepts what python-chess 1.11 accepts, and no more; en
// passant and the counters are read and not kept.
//
// Castling rights are those that king and rook still have on their orthodox squares, so of Chess960
// often none. Nothing here allocates; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "workers/chess/chess_vocabulary.h"

namespace ringfeed::formats {

inline constexpr std::size_t kBoardTokens = 68;

enum class FenStatus : std::uint8_t {
  kOk,
  kFieldCount,  // none, or more than six
  kBoard,       // not eight ranks of eight squares
  kTurn,        // neither w nor b
  kCastling,
  kEnPassant,  // no square
  kCounter,    // of half moves or moves: no number from 0 on
};
// "board", "castling", ...: for counters and messages.
[[nodiscard]] const char* fen_status_name(FenStatus status) noexcept;

// Of kOk alone `tokens` has been written.
[[nodiscard]] FenStatus read_fen(std::string_view fen,
                                 std::span<Token, kBoardTokens> tokens) noexcept;

// What a row without a position counts as: no pieces, no rights, white to move.
void write_empty_board(std::span<Token, kBoardTokens> tokens) noexcept;

}  // namespace ringfeed::formats
