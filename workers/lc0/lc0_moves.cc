#include "workers/lc0/lc0_moves.h"

#include <cstdlib>
#include <cstring>

namespace ringfeed::formats {

namespace {

constexpr std::uint16_t kNoIndex = 0xFFFF;
constexpr std::uint16_t kFirstPromotion = 1792;
constexpr std::size_t kPlanesPerStep = 13;

constexpr int distance(int a, int b) noexcept { return a < b ? b - a : a - b; }

constexpr std::array<std::uint16_t, 64 * 64> plain_indices() noexcept {
  std::array<std::uint16_t, 64 * 64> table{};
  std::uint16_t next = 0;
  for (int from = 0; from < 64; ++from) {
    for (int to = 0; to < 64; ++to) {
      const int files = distance(from % 8, to % 8);
      const int ranks = distance(from / 8, to / 8);
      const bool line = files == 0 || ranks == 0 || files == ranks;
      const bool jump = files + ranks == 3 && files != 0 && ranks != 0;
      table[static_cast<std::size_t>(64 * from + to)] =
          from != to && (line || jump) ? next++ : kNoIndex;
    }
  }
  return table;
}
constexpr std::array<std::uint16_t, 64 * 64> kPlainIndices = plain_indices();
static_assert(kPlainIndices[63 * 64 + 62] == kFirstPromotion - 1);

std::uint8_t tail_byte(const PackedFrameView& frame, std::size_t offset) noexcept {
  return std::to_integer<std::uint8_t>(frame.tail[offset - v6::kCastlingUsOoo]);
}

// Files turned around: bit 0 and bit 7 of each rank change over, and so on. A plane has file a
// at the highest bit of a rank, a set of squares at the lowest.
Squares files_turned(Squares squares) noexcept {
  squares = (squares >> 1 & 0x5555555555555555) | (squares & 0x5555555555555555) << 1;
  squares = (squares >> 2 & 0x3333333333333333) | (squares & 0x3333333333333333) << 2;
  return (squares >> 4 & 0x0F0F0F0F0F0F0F0F) | (squares & 0x0F0F0F0F0F0F0F0F) << 4;
}

// Files become ranks: a square (file, rank) goes to (rank, file).
Squares transposed(Squares squares) noexcept {
  const auto swap = [&squares](Squares mask, unsigned shift) {
    const Squares changed = (squares ^ squares >> shift) & mask;
    squares ^= changed ^ changed << shift;
  };
  swap(0x00AA00AA00AA00AA, 7);
  swap(0x0000CCCC0000CCCC, 14);
  swap(0x00000000F0F0F0F0, 28);
  return squares;
}

constexpr unsigned kFlip = 1;
constexpr unsigned kMirror = 2;
constexpr unsigned kTranspose = 4;

template <typename Turn>
ChessBoard each_piece(const ChessBoard& board, Turn turn) noexcept {
  ChessBoard out;
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    out.ours[piece] = turn(board.ours[piece]);
    out.theirs[piece] = turn(board.theirs[piece]);
  }
  return out;
}

// Where their pawns stand that have just made two steps, given the pieces before, from our side:
// the squares behind them.
Squares passed_squares(const ChessBoard& now, const ChessBoard& before) noexcept {
  const Squares pawns = now.theirs[kPawn];
  const Squares pawns_before = before.theirs[kPawn];
  const Squares arrived = pawns & ~pawns_before & rank_squares(4);
  const Squares left = pawns_before & ~pawns & rank_squares(6);
  return arrived << 8 & left >> 8;
}

}  // namespace

std::optional<std::uint16_t> policy_index(Move move) noexcept {
  if (move.from >= 64 || move.to >= 64) return std::nullopt;
  if (move.promotion == kPawn || move.promotion == kKnight) {
    const std::uint16_t index = kPlainIndices[std::size_t{64} * move.from + move.to];
    if (index == kNoIndex) return std::nullopt;
    return index;
  }
  const int from_file = move.from % 8;
  const int to_file = move.to % 8;
  if (move.from / 8 != 6 || move.to / 8 != 7 || distance(from_file, to_file) > 1 ||
      move.promotion == kKing) {
    return std::nullopt;
  }
  // File a has two targets, the others before h three.
  const int target = from_file == 0 ? to_file : 3 * from_file - 1 + (to_file - from_file + 1);
  const int piece = kQueen - move.promotion;
  return static_cast<std::uint16_t>(kFirstPromotion + 3 * target + piece);
}

MoveText move_text(Move move) noexcept {
  MoveText text{};
  text.text[0] = static_cast<char>('a' + move.from % 8);
  text.text[1] = static_cast<char>('1' + move.from / 8);
  text.text[2] = static_cast<char>('a' + move.to % 8);
  text.text[3] = static_cast<char>('1' + move.to / 8);
  if (move.promotion != kPawn) text.text[4] = "pnbrqk"[move.promotion % kPieces];
  return text;
}

unsigned board_transform(const PackedFrameView& frame) noexcept {
  if (frame.input_format < input_format::kCanonical) return 0;
  return tail_byte(frame, v6::kInvarianceInfo) & (kFlip | kMirror | kTranspose);
}

ChessBoard transformed(const ChessBoard& board, unsigned transform) noexcept {
  return each_piece(board, [transform](Squares squares) {
    if ((transform & kFlip) != 0) squares = files_turned(squares);
    if ((transform & kMirror) != 0) squares = __builtin_bswap64(squares);
    if ((transform & kTranspose) != 0) squares = transposed(squares);
    return squares;
  });
}

ChessBoard untransformed(const ChessBoard& board, unsigned transform) noexcept {
  return each_piece(board, [transform](Squares squares) {
    if ((transform & kTranspose) != 0) squares = transposed(squares);
    if ((transform & kMirror) != 0) squares = __builtin_bswap64(squares);
    if ((transform & kFlip) != 0) squares = files_turned(squares);
    return squares;
  });
}

ChessBoard history_board(const PackedFrameView& frame, unsigned step) noexcept {
  Squares planes[2 * kPieces];
  std::memcpy(planes, frame.planes + kPlanesPerStep * sizeof(Squares) * step, sizeof planes);
  ChessBoard board;
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    board.ours[piece] = files_turned(planes[piece]);
    board.theirs[piece] = files_turned(planes[kPieces + piece]);
  }
  return board;
}

ChessBoard position_of(const PackedFrameView& frame, const PackedFrameView* before) noexcept {
  ChessBoard board = history_board(frame, 0);
  const std::uint8_t ooo = tail_byte(frame, v6::kCastlingUsOoo);
  const std::uint8_t oo = tail_byte(frame, v6::kCastlingUsOo);
  if (frame.input_format == input_format::kClassical) {
    // The format does not name the rook: it is the outermost one on its side of the king.
    const Squares king = board.ours[kKing] & rank_squares(0);
    const Squares rooks = board.ours[kRook] & rank_squares(0);
    if (std::popcount(king) == 1) {
      const Squares left = rooks & (king - 1);
      const Squares right = rooks & ~(king - 1);
      if (ooo != 0) board.our_castling |= left & (~left + 1);
      if (oo != 0 && right != 0) board.our_castling |= std::bit_floor(right);
    }
  } else {
    board.our_castling = Squares{ooo} | Squares{oo};
  }
  if (frame.input_format >= input_format::kCanonical) {
    board.en_passant = Squares{tail_byte(frame, v6::kSideToMove)} << 40;
    return board;
  }
  if (before != nullptr) {
    board.en_passant = passed_squares(board, history_board(*before, 0).turned());
    return board;
  }
  const ChessBoard last = history_board(frame, 1);
  if ((last.our_squares() | last.their_squares()) != 0 && !last.same_pieces(board)) {
    board.en_passant = passed_squares(board, last);
    return board;
  }
  const Squares free = ~(board.our_squares() | board.their_squares());
  board.en_passant = (board.theirs[kPawn] & rank_squares(4)) << 8 & free & free >> 8;
  return board;
}

std::optional<Move> move_between(const ChessBoard& board, const ChessBoard& after) noexcept {
  const Squares changed = board.our_squares() ^ after.our_squares();
  std::optional<Move> found;
  for_each_move(board, [&](Move move) {
    if (found) return;
    const Squares from = square_bit(move.from);
    const Squares to = square_bit(move.to);
    // A quick look first: one of our pieces has left one square and stands on another. Castling can
    // leave the king where it is.
    const bool castling = (board.ours[kKing] & from) != 0 && (board.ours[kRook] & to) != 0;
    if (!castling && (changed & (from | to)) != (from | to)) return;
    if (after_move(board, move).same_pieces(after)) found = move;
  });
  return found;
}

ChessBoard seen_from(const PackedFrameView& frame, const PackedFrameView& next) noexcept {
  const ChessBoard pieces = untransformed(history_board(next, 0), board_transform(next));
  return transformed(pieces.turned(), board_transform(frame));
}

}  // namespace ringfeed::formats
