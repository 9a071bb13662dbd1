// The specification of workers/lc0/chess_board.h.
#include "workers/lc0/chess_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/workers/lc0/fen.h"

namespace ringfeed::formats {
namespace {

using test_games::board_of_fen;
using test_games::kStartPosition;
using test_games::legal_moves;
using test_games::move;
using ::testing::Contains;
using ::testing::Not;

std::uint64_t perft(const ChessBoard& board, unsigned depth) {
  std::uint64_t count = 0;
  for (const Move move : legal_moves(board)) {
    count += depth == 1 ? 1 : perft(after_move(board, move).turned(), depth - 1);
  }
  return count;
}

// Numbers of move sequences that are known of these positions: from the literature on perft, the
// Chess960 ones and all of them again by python-chess.
struct Perft {
  const char* name;
  const char* fen;
  std::vector<std::uint64_t> counts;
  friend void PrintTo(const Perft& perft, std::ostream* out) { *out << perft.name; }
};

class ChessBoardPerft : public ::testing::TestWithParam<Perft> {};

TEST_P(ChessBoardPerft, CountsTheMovesThatTheRulesAllow) {
  const ChessBoard board = board_of_fen(GetParam().fen);
  for (unsigned depth = 1; depth <= GetParam().counts.size(); ++depth) {
    EXPECT_EQ(perft(board, depth), GetParam().counts[depth - 1]) << "depth " << depth;
  }
}
INSTANTIATE_TEST_SUITE_P(
    Known, ChessBoardPerft,
    ::testing::Values(
        Perft{"Start", kStartPosition, {20, 400, 8902, 197281}},
        Perft{"Kiwipete",
              "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
              {48, 2039, 97862}},
        Perft{"EnPassantPins", "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", {14, 191, 2812, 43238}},
        Perft{"Promotions",
              "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
              {6, 264, 9467}},
        Perft{"Castling",
              "rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8",
              {44, 1486, 62379}},
        Perft{"Chess960Outside",
              "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9",
              {21, 528, 12189}},
        Perft{"Chess960Wide",
              "2nnrbkr/p1qppppp/8/1ppb4/6PP/3PP3/PPP2P2/BQNNRBKR w HEhe - 1 9",
              {21, 807, 18002}},
        Perft{"Chess960Beside",
              "b1q1rrkb/pppppppp/3nn3/8/P7/1PPP4/4PPPP/BQNNRKRB w GE - 1 9",
              {20, 479, 10471}},
        Perft{"Chess960Far",
              "1rqbkrbn/1ppppp1p/1n6/p1N3p1/8/2P4P/PP1PPPP1/1RQBKRBN w FBfb - 0 9",
              {29, 502, 14569}}),
    [](const auto& param) { return param.param.name; });

TEST(ChessBoard, CastlingNeedsTheRightTheWayAndNoCheckOnIt) {
  const Move kingside = move(4, 7);
  const Move queenside = move(4, 0);
  EXPECT_THAT(legal_moves(board_of_fen("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1")),
              ::testing::AllOf(Contains(kingside), Contains(queenside)));
  EXPECT_THAT(legal_moves(board_of_fen("4k3/8/8/8/8/8/8/R3K2R w Q - 0 1")),
              ::testing::AllOf(Not(Contains(kingside)), Contains(queenside)));
  // Through a check, out of one, into one; b1 may be attacked.
  for (const char* fen :
       {"4kr2/8/8/8/8/8/8/R3K2R w KQ - 0 1", "4r1k1/8/8/8/8/8/8/R3K2R w KQ - 0 1",
        "4k1r1/8/8/8/8/8/8/R3K2R w KQ - 0 1", "4k3/8/8/8/8/8/8/R3KN1R w KQ - 0 1"}) {
    EXPECT_THAT(legal_moves(board_of_fen(fen)), Not(Contains(kingside))) << fen;
  }
  EXPECT_THAT(legal_moves(board_of_fen("1r2k3/8/8/8/8/8/8/R3K2R w KQ - 0 1")), Contains(queenside));
}

TEST(ChessBoard, APawnIsTakenInPassingOnlyAtOnce) {
  EXPECT_THAT(legal_moves(board_of_fen("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1")),
              Contains(move(36, 43)));
  EXPECT_THAT(legal_moves(board_of_fen("4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1")),
              Not(Contains(move(36, 43))));
}

// What records of noise may hold.
TEST(ChessBoard, SurvivesAnyBits) {
  std::mt19937_64 random(3);
  std::uint64_t moves = 0;
  for (int round = 0; round < 3000; ++round) {
    ChessBoard board;
    for (Squares& squares : board.ours) {
      squares = round % 3 == 0 ? random() : random() & random() & random();
      if (round % 5 == 0) squares = 0;
    }
    for (Squares& squares : board.theirs) squares = round % 3 == 1 ? random() : random() & random();
    board.our_castling = random();
    board.en_passant = random();
    for_each_move(board, [&](Move made) {
      moves += legal(board, made) ? 2 : 1;
      moves += std::popcount(after_move(board, made).turned().our_squares()) != 0 ? 1 : 0;
    });
  }
  EXPECT_GT(moves, 3000U);
}

}  // namespace
}  // namespace ringfeed::formats
