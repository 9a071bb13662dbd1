// A chess position from the side of who moves, and the moves in it: what is needed to say whether
// the move between two records is one that the rules allow.
//
// Squares are numbered a1 = 0, b1 = 1 ... h8 = 63, and a set of squares has the bit of each. "Ours"
// is the side that moves; its pawns go up the board, whichever colour they have. Castling is
// written as king takes rook, so that it covers Chess960 as well.
//
// Any bits may stand in a board: of what is no position (two kings, pieces on one square) the
// answers are meaningless, and that is all. Nothing here allocates; any thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace ringfeed::formats {

using Squares = std::uint64_t;

enum Piece : std::uint8_t { kPawn, kKnight, kBishop, kRook, kQueen, kKing };
inline constexpr std::size_t kPieces = 6;

constexpr Squares square_bit(unsigned square) noexcept { return Squares{1} << square; }
constexpr Squares rank_squares(unsigned rank) noexcept { return Squares{0xFF} << (8 * rank); }

struct Move {
  std::uint8_t from;
  std::uint8_t to;                 // of castling: our rook
  std::uint8_t promotion = kPawn;  // kPawn: none
  friend bool operator==(const Move&, const Move&) = default;
};

struct ChessBoard {
  std::array<Squares, kPieces> ours = {};
  std::array<Squares, kPieces> theirs = {};
  Squares our_castling = 0;    // rooks on rank 1 that may castle
  Squares their_castling = 0;  // theirs, on rank 8
  Squares en_passant = 0;      // squares on rank 6 behind a pawn that may be taken in passing

  [[nodiscard]] Squares our_squares() const noexcept;
  [[nodiscard]] Squares their_squares() const noexcept;
  // The same position from the other side: ranks mirrored, ours and theirs changed over.
  [[nodiscard]] ChessBoard turned() const noexcept;
  [[nodiscard]] bool same_pieces(const ChessBoard& other) const noexcept {
    return ours == other.ours && theirs == other.theirs;
  }
};

// Do they attack this square?
[[nodiscard]] bool attacked(const ChessBoard& board, unsigned square) noexcept;

// The position after a move, still from the side of who has made it: en_passant is then on rank 3,
// where turned() finds it.
[[nodiscard]] ChessBoard after_move(const ChessBoard& board, Move move) noexcept;

// Of a move that pieces can make (for_each_move): do the rules allow it? Our king may not be
// attacked afterwards, nor on its way if it castles; castling rights and en_passant count; a king
// is not taken.
[[nodiscard]] bool legal(const ChessBoard& board, Move move) noexcept;

namespace chess_detail {
[[nodiscard]] Squares targets(const ChessBoard& board, Piece piece, unsigned square) noexcept;
[[nodiscard]] Squares pawn_targets(const ChessBoard& board, unsigned square) noexcept;
[[nodiscard]] Squares castling_targets(const ChessBoard& board, unsigned king) noexcept;
}  // namespace chess_detail

// Calls visit(Move) for every move that pieces can make, whatever becomes of the king. Castling
// wherever its squares are free and en passant wherever a pawn stands beside one of theirs are
// among them, without a look at rights: that is left to legal().
template <typename Visit>
void for_each_move(const ChessBoard& board, Visit&& visit) noexcept {
  for (unsigned piece = kPawn; piece <= kKing; ++piece) {
    for (Squares from_left = board.ours[piece]; from_left != 0; from_left &= from_left - 1) {
      const auto from = static_cast<std::uint8_t>(std::countr_zero(from_left));
      Squares to_left = piece == kPawn
                            ? chess_detail::pawn_targets(board, from)
                            : chess_detail::targets(board, static_cast<Piece>(piece), from);
      if (piece == kKing) to_left |= chess_detail::castling_targets(board, from);
      for (; to_left != 0; to_left &= to_left - 1) {
        const auto to = static_cast<std::uint8_t>(std::countr_zero(to_left));
        if (piece != kPawn || to < 56) {
          visit(Move{from, to});
          continue;
        }
        for (const Piece promotion : {kKnight, kBishop, kRook, kQueen}) {
          visit(Move{from, to, promotion});
        }
      }
    }
  }
}

}  // namespace ringfeed::formats
