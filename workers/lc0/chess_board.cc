#include "workers/lc0/chess_board.h"

#include <algorithm>

namespace ringfeed::formats {

namespace {

constexpr Squares kFileA = 0x0101010101010101;
constexpr Squares kFileH = kFileA << 7;

struct Direction {
  int files;
  int ranks;
};
constexpr Direction kRookWays[] = {{0, 1}, {1, 0}, {0, -1}, {-1, 0}};
constexpr Direction kBishopWays[] = {{1, 1}, {1, -1}, {-1, -1}, {-1, 1}};
constexpr Direction kKnightWays[] = {{1, 2},   {2, 1},   {2, -1}, {1, -2},
                                     {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}};

// The squares one step in each direction from every square.
template <std::size_t N>
constexpr std::array<Squares, 64> steps(const Direction (&ways)[N]) noexcept {
  std::array<Squares, 64> table{};
  for (int square = 0; square < 64; ++square) {
    for (const Direction& way : ways) {
      const int file = square % 8 + way.files;
      const int rank = square / 8 + way.ranks;
      if (file < 0 || file > 7 || rank < 0 || rank > 7) continue;
      table[static_cast<std::size_t>(square)] |= square_bit(static_cast<unsigned>(8 * rank + file));
    }
  }
  return table;
}
constexpr std::array<Squares, 64> kKnightSteps = steps(kKnightWays);
constexpr Direction kAllWays[] = {{0, 1}, {1, 0},  {0, -1},  {-1, 0},
                                  {1, 1}, {1, -1}, {-1, -1}, {-1, 1}};
constexpr std::array<Squares, 64> kKingSteps = steps(kAllWays);

// From a square in these directions up to the first one that is occupied, and with it.
Squares slide(const Direction (&ways)[4], Squares occupied, unsigned square) noexcept {
  Squares reached = 0;
  for (const Direction& way : ways) {
    int file = static_cast<int>(square % 8);
    int rank = static_cast<int>(square / 8);
    for (;;) {
      file += way.files;
      rank += way.ranks;
      if (file < 0 || file > 7 || rank < 0 || rank > 7) break;
      const Squares bit = square_bit(static_cast<unsigned>(8 * rank + file));
      reached |= bit;
      if ((occupied & bit) != 0) break;
    }
  }
  return reached;
}

Squares mirrored(Squares squares) noexcept { return __builtin_bswap64(squares); }

// All squares from one to the other on the same rank, both included.
constexpr Squares span_between(unsigned a, unsigned b) noexcept {
  const auto [low, high] = std::minmax(a, b);
  Squares squares = 0;
  for (unsigned square = low; square <= high; ++square) squares |= square_bit(square);
  return squares;
}

// Where king and rook come to stand.
struct CastlingEnd {
  unsigned king;
  unsigned rook;
};
constexpr CastlingEnd castling_end(unsigned king, unsigned rook) noexcept {
  return rook > king ? CastlingEnd{6, 5} : CastlingEnd{2, 3};
}

bool is_castling(const ChessBoard& board, Move move) noexcept {
  return (board.ours[kKing] & square_bit(move.from)) != 0 &&
         (board.ours[kRook] & square_bit(move.to)) != 0;
}

bool is_en_passant(const ChessBoard& board, Move move) noexcept {
  // The ranks are asked for because in noise another piece may stand on the pawn's square.
  return (board.ours[kPawn] & square_bit(move.from)) != 0 && move.from / 8 == 4 &&
         move.to / 8 == 5 && move.from % 8 != move.to % 8 &&
         (board.their_squares() & square_bit(move.to)) == 0;
}

}  // namespace

Squares ChessBoard::our_squares() const noexcept {
  Squares all = 0;
  for (const Squares squares : ours) all |= squares;
  return all;
}

Squares ChessBoard::their_squares() const noexcept {
  Squares all = 0;
  for (const Squares squares : theirs) all |= squares;
  return all;
}

ChessBoard ChessBoard::turned() const noexcept {
  ChessBoard other;
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    other.ours[piece] = mirrored(theirs[piece]);
    other.theirs[piece] = mirrored(ours[piece]);
  }
  other.our_castling = mirrored(their_castling);
  other.their_castling = mirrored(our_castling);
  other.en_passant = mirrored(en_passant);
  return other;
}

bool attacked(const ChessBoard& board, unsigned square) noexcept {
  const Squares bit = square_bit(square);
  // Their pawns take downwards.
  const Squares from_left = (bit & ~kFileA) << 7;
  const Squares from_right = (bit & ~kFileH) << 9;
  if ((board.theirs[kPawn] & (from_left | from_right)) != 0) return true;
  if ((board.theirs[kKnight] & kKnightSteps[square]) != 0) return true;
  if ((board.theirs[kKing] & kKingSteps[square]) != 0) return true;
  const Squares straight = board.theirs[kRook] | board.theirs[kQueen];
  const Squares diagonal = board.theirs[kBishop] | board.theirs[kQueen];
  if ((straight | diagonal) == 0) return false;
  const Squares occupied = board.our_squares() | board.their_squares();
  return (slide(kRookWays, occupied, square) & straight) != 0 ||
         (slide(kBishopWays, occupied, square) & diagonal) != 0;
}

ChessBoard after_move(const ChessBoard& board, Move move) noexcept {
  ChessBoard after = board;
  const Squares from = square_bit(move.from);
  const Squares to = square_bit(move.to);
  after.en_passant = 0;
  if (is_castling(board, move)) {
    const CastlingEnd end = castling_end(move.from, move.to);
    after.ours[kKing] = (after.ours[kKing] & ~from) | square_bit(end.king);
    after.ours[kRook] = (after.ours[kRook] & ~to) | square_bit(end.rook);
    after.our_castling = 0;
    return after;
  }
  if (is_en_passant(board, move)) {
    after.theirs[kPawn] &= ~square_bit(move.to - 8U);
  }
  for (Squares& squares : after.theirs) squares &= ~to;
  after.their_castling &= ~to;
  after.our_castling &= ~from;
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    if ((after.ours[piece] & from) == 0) continue;
    after.ours[piece] &= ~from;
    const std::size_t becomes = move.promotion == kPawn ? piece : move.promotion;
    after.ours[becomes] |= to;
    if (piece == kKing) after.our_castling = 0;
    if (piece == kPawn && move.to == move.from + 16) after.en_passant = from << 8;
    break;
  }
  return after;
}

bool legal(const ChessBoard& board, Move move) noexcept {
  if (std::popcount(board.ours[kKing]) != 1) return false;
  if ((board.theirs[kKing] & square_bit(move.to)) != 0) return false;
  if (is_castling(board, move)) {
    if ((board.our_castling & square_bit(move.to)) == 0) return false;
    const Squares way = span_between(move.from, castling_end(move.from, move.to).king);
    for (Squares left = way; left != 0; left &= left - 1) {
      if (attacked(board, static_cast<unsigned>(std::countr_zero(left)))) return false;
    }
  } else if (is_en_passant(board, move)) {
    if ((board.en_passant & square_bit(move.to)) == 0) return false;
  }
  const ChessBoard after = after_move(board, move);
  return !attacked(after, static_cast<unsigned>(std::countr_zero(after.ours[kKing])));
}

namespace chess_detail {

Squares targets(const ChessBoard& board, Piece piece, unsigned square) noexcept {
  const Squares own = board.our_squares();
  const Squares occupied = own | board.their_squares();
  switch (piece) {
    case kKnight:
      return kKnightSteps[square] & ~own;
    case kBishop:
      return slide(kBishopWays, occupied, square) & ~own;
    case kRook:
      return slide(kRookWays, occupied, square) & ~own;
    case kQueen:
      return (slide(kRookWays, occupied, square) | slide(kBishopWays, occupied, square)) & ~own;
    case kKing:
      return kKingSteps[square] & ~own;
    case kPawn:
      break;
  }
  return pawn_targets(board, square);
}

Squares pawn_targets(const ChessBoard& board, unsigned square) noexcept {
  // Where no pawn can stand; a record of noise may have one there.
  if (square < 8 || square >= 56) return 0;
  const Squares bit = square_bit(square);
  const Squares their = board.their_squares();
  const Squares free = ~(board.our_squares() | their);
  Squares reached = (bit << 8) & free;
  if (square < 16) reached |= (reached << 8) & free;
  const Squares takes = (bit & ~kFileA) << 7 | (bit & ~kFileH) << 9;
  reached |= takes & their;
  // Past one of their pawns that stands beside it.
  if (square / 8 == 4) reached |= takes & free & (board.theirs[kPawn] << 8);
  return reached;
}

Squares castling_targets(const ChessBoard& board, unsigned king) noexcept {
  if (king >= 8) return 0;
  const Squares occupied = board.our_squares() | board.their_squares();
  Squares rooks = 0;
  for (Squares left = board.ours[kRook] & rank_squares(0); left != 0; left &= left - 1) {
    const auto rook = static_cast<unsigned>(std::countr_zero(left));
    if (rook == king) continue;
    const CastlingEnd end = castling_end(king, rook);
    const Squares way = span_between(king, end.king) | span_between(rook, end.rook);
    if ((way & occupied & ~square_bit(king) & ~square_bit(rook)) == 0) rooks |= square_bit(rook);
  }
  return rooks;
}

}  // namespace chess_detail

}  // namespace ringfeed::formats
