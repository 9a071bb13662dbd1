// The boards and the moves of training records.
//
// A policy index names a move from the mover's side: first all moves from square to square that a
// queen or a knight could make on an empty board, by from and to square (0 to 1791); then
// promotions to queen, rook and bishop, by file, target file and piece (1792 to 1857). A promotion
// to a knight has the index of the plain move; castling is king takes rook.
//
// Canonical input formats turn the board of a position without castling rights: bits 0 to 2 of
// invariance_info say how. Planes, policy indices and the file of an en passant capture are all of
// the board as it was turned: flipped (files), then mirrored (ranks), then transposed.
#pragma once

#include <cstdint>
#include <optional>

#include "workers/lc0/chess_board.h"
#include "workers/lc0/packed_frame.h"

namespace ringfeed::formats {

// The index of a move; nothing for one that has none.
[[nodiscard]] std::optional<std::uint16_t> policy_index(Move move) noexcept;

// "e2e4", "a7a8q": from the mover's side, castling as king takes rook.
struct MoveText {
  char text[6];
};
[[nodiscard]] MoveText move_text(Move move) noexcept;

// Bits 0 to 2 of invariance_info where the record's input format has them, otherwise 0.
[[nodiscard]] unsigned board_transform(const PackedFrameView& frame) noexcept;
// All pieces turned so, and turned back. Castling and en passant are not looked at.
[[nodiscard]] ChessBoard transformed(const ChessBoard& board, unsigned transform) noexcept;
[[nodiscard]] ChessBoard untransformed(const ChessBoard& board, unsigned transform) noexcept;

// The pieces of history step 0 (now) to 7 of a record, as they stand in its planes.
[[nodiscard]] ChessBoard history_board(const PackedFrameView& frame, unsigned step) noexcept;

// The position of a record as it stands in its planes, with our castling rights and en passant.
// `before`: the record of the ply before, or null. Input formats 1 and 2 do not say where a pawn
// may be taken in passing: it follows from the board before, that of `before` or of history step 1;
// where there is none, every pawn that may have come with its last move counts.
[[nodiscard]] ChessBoard position_of(const PackedFrameView& frame,
                                     const PackedFrameView* before) noexcept;

// The move that leads from one position to the pieces of another, which is from the same side;
// nothing if no piece can move so. Rights and checks are not looked at: legal().
[[nodiscard]] std::optional<Move> move_between(const ChessBoard& board,
                                               const ChessBoard& after) noexcept;

// The pieces of `next`, the record of the ply after `frame`, as the mover of `frame` sees them in
// its planes: what move_between() takes.
[[nodiscard]] ChessBoard seen_from(const PackedFrameView& frame,
                                   const PackedFrameView& next) noexcept;

}  // namespace ringfeed::formats
