// Boards from Forsyth-Edwards notation, for tests. Castling rights as KQkq or as files
// (Shredder-FEN).
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "workers/lc0/chess_board.h"

namespace ringfeed::formats::test_games {

inline constexpr const char* kStartPosition =
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

constexpr Move move(unsigned from, unsigned to) {
  return {static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to)};
}

inline ChessBoard board_of_fen(const std::string& fen) {
  std::istringstream words(fen);
  std::string pieces;
  std::string side;
  std::string castling;
  std::string en_passant;
  words >> pieces >> side >> castling >> en_passant;
  ChessBoard board;  // white is "ours"
  unsigned rank = 7;
  unsigned file = 0;
  for (const char letter : pieces) {
    if (letter == '/') {
      --rank;
      file = 0;
    } else if (letter >= '1' && letter <= '8') {
      file += static_cast<unsigned>(letter - '0');
    } else {
      const bool white = letter < 'a';
      const std::size_t piece =
          std::string_view("pnbrqk").find(static_cast<char>(white ? letter - 'A' + 'a' : letter));
      (white ? board.ours : board.theirs).at(piece) |= square_bit(8 * rank + file);
      ++file;
    }
  }
  for (const char letter : castling) {
    if (letter == '-') continue;
    const bool white = letter < 'a';
    const char lower = white ? static_cast<char>(letter - 'A' + 'a') : letter;
    const unsigned at = lower == 'k' ? 7 : lower == 'q' ? 0 : static_cast<unsigned>(lower - 'a');
    (white ? board.our_castling : board.their_castling) |= square_bit(white ? at : at + 56);
  }
  if (en_passant != "-") {
    board.en_passant = square_bit(8 * static_cast<unsigned>(en_passant[1] - '1') +
                                  static_cast<unsigned>(en_passant[0] - 'a'));
  }
  return side == "w" ? board : board.turned();
}

inline std::vector<Move> legal_moves(const ChessBoard& board) {
  std::vector<Move> moves;
  for_each_move(board, [&](Move move) {
    if (legal(board, move)) moves.push_back(move);
  });
  return moves;
}

}  // namespace ringfeed::formats::test_games
