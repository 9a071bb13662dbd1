#include "workers/chess/chess_fen.h"

#include <algorithm>

namespace ringfeed::formats {
namespace {

// Bytes at the front of `text` that are one white-space character; Python's idea of it. 0: none.
std::size_t space_at(std::string_view text) noexcept {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first == ' ' || (first >= '\t' && first <= '\r') || (first >= 0x1C && first <= 0x1F))
    return 1;
  if (first == 0xC2 && text.size() >= 2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;
  if (text.size() < 3) return 0;
  const unsigned rest = byte(1) << 8 | byte(2);
  if (first == 0xE1) return rest == 0x9A80 ? 3 : 0;
  if (first == 0xE3) return rest == 0x8080 ? 3 : 0;
  if (first != 0xE2) return 0;
  const bool thin = rest >= 0x8080 && rest <= 0x808A;
  return thin || rest == 0x80A8 || rest == 0x80A9 || rest == 0x80AF || rest == 0x819F ? 3 : 0;
}

struct Fields {
  std::array<std::string_view, 6> text = {"", "w", "-", "-", "0", "1"};
  std::size_t count = 0;  // 7: more than there may be
};

Fields split(std::string_view fen) noexcept {
  Fields fields;
  while (!fen.empty()) {
    if (const std::size_t space = space_at(fen); space != 0) {
      fen.remove_prefix(space);
      continue;
    }
    std::size_t end = 1;
    while (end < fen.size() && space_at(fen.substr(end)) == 0) ++end;
    if (fields.count == fields.text.size()) {
      ++fields.count;
      return fields;
    }
    fields.text[fields.count++] = fen.substr(0, end);
    fen.remove_prefix(end);
  }
  return fields;
}

constexpr std::string_view kPieceLetters = "KQRBNPkqrbnp";  // in the order of the tokens

// kPieceOf[c]: token of the piece that the letter means, or 0.
constexpr std::array<Token, 256> kPieceOf = [] {
  std::array<Token, 256> tokens{};
  for (std::size_t i = 0; i < kPieceLetters.size(); ++i) {
    tokens[static_cast<unsigned char>(kPieceLetters[i])] = static_cast<Token>(kWhiteKingToken + i);
  }
  return tokens;
}();

struct Board {
  std::array<Token, 64> squares;
  std::uint64_t promoted = 0;
};

// Ranks from the eighth to the first, files from a.
bool read_board(std::string_view text, Board& board) noexcept {
  board.squares.fill(kEmptyToken);
  unsigned rank = 7;
  unsigned file = 0;
  bool after_digit = false;
  bool after_piece = false;
  for (const char c : text) {
    const Token piece = kPieceOf[static_cast<unsigned char>(c)];
    if (piece != 0) {
      if (file > 7) return false;
      board.squares[8 * rank + file++] = piece;
    } else if (c >= '1' && c <= '8') {
      if (after_digit) return false;
      file += static_cast<unsigned>(c - '0');
    } else if (c == '~') {
      if (!after_piece) return false;
      board.promoted |= std::uint64_t{1} << (8 * rank + file - 1);
    } else if (c == '/') {
      if (file != 8 || rank == 0) return false;
      --rank;
      file = 0;
    } else {
      return false;
    }
    after_piece = piece != 0;
    after_digit = c >= '1' && c <= '8';
  }
  return rank == 0 && file == 8;
}

// Up to two of KQ or a file, then up to two in lower case: as bits of castling_token(), before they
// are held against the board. 16: not so.
unsigned read_rights(std::string_view text) noexcept {
  if (text == "-") return 0;
  constexpr unsigned kBad = 16;
  unsigned rights = 0;
  std::size_t at = 0;
  for (const bool white : {true, false}) {
    for (int count = 0; count < 2 && at < text.size(); ++count, ++at) {
      const char c = text[at];
      const char letter = white ? c : static_cast<char>(c - 'a' + 'A');
      const bool mine = white ? c < 'a' : c >= 'a';
      if (!mine || std::string_view("KQABCDEFGH").find(letter) == std::string_view::npos) break;
      const unsigned side = letter == 'K' || letter == 'H'   ? 1U
                            : letter == 'Q' || letter == 'A' ? 2U
                                                             : 0U;
      rights |= white ? side : side << 2;
    }
  }
  return at == text.size() ? rights : kBad;
}

// Those for which king and rook stand where they began.
unsigned rights_left(unsigned rights, const Board& board) noexcept {
  const auto stands = [&board](unsigned square, Token piece) {
    return board.squares[square] == piece;
  };
  constexpr unsigned kE1 = 4;
  constexpr unsigned kE8 = 60;
  for (const unsigned king : {kE1, kE8}) {
    const bool white = king == kE1;
    const Token piece = white ? kWhiteKingToken : kBlackKingToken;
    const auto rook = static_cast<Token>(piece + 2);
    const unsigned shift = white ? 0 : 2;
    const bool there = stands(king, piece) && (board.promoted >> king & 1) == 0;
    if (!there || !stands(king + 3, rook)) rights &= ~(1U << shift);
    if (!there || !stands(king - 4, rook)) rights &= ~(2U << shift);
  }
  return rights;
}

bool is_square(std::string_view text) noexcept {
  return text.size() == 2 && text[0] >= 'a' && text[0] <= 'h' && text[1] >= '1' && text[1] <= '8';
}

// As Python reads an integer: a sign, digits, single underscores between them; not below zero.
bool is_counter(std::string_view text) noexcept {
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  bool after_digit = false;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c == '_' && after_digit)) return false;
    if (negative && digit && c != '0') return false;
    after_digit = digit;
  }
  return after_digit;
}

void write_board(const Board& board, unsigned rights, bool white,
                 std::span<Token, kBoardTokens> tokens) noexcept {
  tokens[0] = kStartPosToken;
  std::copy(board.squares.begin(), board.squares.end(), tokens.begin() + 1);
  tokens[65] = kEndPosToken;
  tokens[66] = castling_token(rights);
  tokens[67] = white ? kWhiteToMoveToken : kBlackToMoveToken;
}

}  // namespace

const char* fen_status_name(FenStatus status) noexcept {
  switch (status) {
    case FenStatus::kOk:
      return "ok";
    case FenStatus::kFieldCount:
      return "field_count";
    case FenStatus::kBoard:
      return "board";
    case FenStatus::kTurn:
      return "turn";
    case FenStatus::kCastling:
      return "castling";
    case FenStatus::kEnPassant:
      return "en_passant";
    case FenStatus::kCounter:
      return "counter";
  }
  return "unknown";
}

FenStatus read_fen(std::string_view fen, std::span<Token, kBoardTokens> tokens) noexcept {
  const Fields fields = split(fen);
  if (fields.count == 0 || fields.count > fields.text.size()) return FenStatus::kFieldCount;
  const auto& [squares, turn, castling, en_passant, half_moves, moves] = fields.text;
  Board board;
  if (!read_board(squares, board)) return FenStatus::kBoard;
  if (turn != "w" && turn != "b") return FenStatus::kTurn;
  const unsigned rights = read_rights(castling);
  if (rights > 15) return FenStatus::kCastling;
  if (en_passant != "-" && !is_square(en_passant)) return FenStatus::kEnPassant;
  if (!is_counter(half_moves) || !is_counter(moves)) return FenStatus::kCounter;
  write_board(board, rights_left(rights, board), turn == "w", tokens);
  return FenStatus::kOk;
}

void write_empty_board(std::span<Token, kBoardTokens> tokens) noexcept {
  Board board;
  board.squares.fill(kEmptyToken);
  write_board(board, 0, true, tokens);
}

}  // namespace ringfeed::formats
