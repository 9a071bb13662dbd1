// The specification of workers/lc0/lc0_moves.h.
#include "workers/lc0/lc0_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/unit/workers/lc0/game_maker.h"

namespace ringfeed::formats {
namespace {

using test_games::board_of_fen;
using test_games::GameMaker;
using test_games::kStartPosition;
using test_games::PackedRecords;
using test_games::put;

Move named(std::string_view text, Piece promotion = kPawn) {
  const auto square = [&](std::size_t at) {
    return static_cast<std::uint8_t>(8 * (text[at + 1] - '1') + (text[at] - 'a'));
  };
  return {square(0), square(2), promotion};
}

TEST(PolicyIndex, NumbersTheMovesAsThePublishedTableDoes) {
  EXPECT_EQ(policy_index(named("a1b1")), 0);
  EXPECT_EQ(policy_index(named("b1a3")), 34);
  EXPECT_EQ(policy_index(named("d2d4")), 293);
  EXPECT_EQ(policy_index(named("e2e4")), 322);
  EXPECT_EQ(policy_index(named("h8g8")), 1791);
  EXPECT_EQ(policy_index(named("a7a8", kQueen)), 1792);
  EXPECT_EQ(policy_index(named("h7h8", kBishop)), 1857);
  EXPECT_EQ(policy_index(named("a7a8", kKnight)), policy_index(named("a7a8")));
}

TEST(PolicyIndex, GivesEachOfItsNumbersToOneMove) {
  std::set<std::uint16_t> seen;
  std::size_t moves = 0;
  for (unsigned from = 0; from < 64; ++from) {
    for (unsigned to = 0; to < 64; ++to) {
      for (const Piece promotion : {kPawn, kBishop, kRook, kQueen}) {
        const auto index = policy_index(
            {static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to), promotion});
        if (!index) continue;
        ++moves;
        seen.insert(*index);
      }
    }
  }
  EXPECT_EQ(moves, kPolicyMoves);
  EXPECT_EQ(seen.size(), kPolicyMoves);
  EXPECT_EQ(*seen.rbegin(), kPolicyMoves - 1);
  EXPECT_FALSE(policy_index(named("a1b4")));
  EXPECT_FALSE(policy_index(named("a6a7", kQueen)));
  EXPECT_FALSE(policy_index({64, 0}));
}

TEST(MoveText, NamesSquaresAndPromotion) {
  EXPECT_STREQ(move_text(named("e2e4")).text, "e2e4");
  EXPECT_STREQ(move_text(named("a7b8", kKnight)).text, "a7b8n");
}

TEST(BoardTransform, TurnsBackWhatItTurned) {
  const ChessBoard board = board_of_fen("1n2k3/8/8/3r4/8/6B1/8/QK6 w - - 0 1");
  std::set<Squares> queens;
  for (unsigned transform = 0; transform < 8; ++transform) {
    const ChessBoard turned = transformed(board, transform);
    EXPECT_TRUE(untransformed(turned, transform).same_pieces(board)) << transform;
    queens.insert(turned.ours[kKing] | turned.ours[kQueen]);
  }
  EXPECT_EQ(queens.size(), 8U) << "a queen on a1 and a king on b1 stand in eight ways";
  EXPECT_EQ(transformed(board, 1).ours[kQueen], square_bit(7)) << "flip: files";
  EXPECT_EQ(transformed(board, 2).ours[kQueen], square_bit(56)) << "mirror: ranks";
  EXPECT_EQ(transformed(board, 4).ours[kKing], square_bit(8)) << "transpose: b1 to a2";
  EXPECT_EQ(transformed(board, 5).ours[kKing], square_bit(48)) << "flip first: b1, g1, a7";
}

// A tar of real games: each board follows from the one before by the move that the record says.
TEST(MoveBetween, FindsThePlayedMovesOfRealGames) {
  for (const auto& game : ringfeed::testing::kSampleGames) {
    const PackedRecords packed(ringfeed::testing::sample_records(game));
    const auto& frames = packed.views();
    ASSERT_EQ(frames.size(), game.frame_count);
    for (std::size_t i = 0; i + 1 < frames.size(); ++i) {
      const ChessBoard board = position_of(frames[i], i == 0 ? nullptr : &frames[i - 1]);
      const auto move = move_between(board, seen_from(frames[i], frames[i + 1]));
      ASSERT_TRUE(move) << game.name << " " << i;
      EXPECT_TRUE(legal(board, *move)) << game.name << " " << i;
      std::uint16_t played = 0;
      std::memcpy(&played, frames[i].tail + v6::kPlayedIdx - v6::kCastlingUsOoo, 2);
      EXPECT_EQ(policy_index(*move), played) << game.name << " " << i;
    }
  }
}

// The legal moves of a record's position are those that its policy has: nothing is lost on the way
// into planes and castling bytes and back.
TEST(PositionOf, HasTheMovesOfThePolicyInRealGames) {
  for (const auto& game : ringfeed::testing::kSampleGames) {
    const PackedRecords packed(ringfeed::testing::sample_records(game));
    const auto& frames = packed.views();
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const ChessBoard board = position_of(frames[i], i == 0 ? nullptr : &frames[i - 1]);
      std::set<std::uint16_t> moves;
      for (const Move move : test_games::legal_moves(board)) moves.insert(*policy_index(move));
      std::set<std::uint16_t> listed;
      for (std::size_t entry = 0; entry < frames[i].policy_entries; ++entry) {
        std::uint16_t index = 0;
        std::memcpy(&index, frames[i].policy_indices + 2 * entry, 2);
        listed.insert(index);
      }
      EXPECT_EQ(moves, listed) << game.name << " " << i;
    }
  }
}

TEST(PositionOf, TellsEnPassantFromTheBoardBefore) {
  GameMaker maker(board_of_fen("4k3/3p4/8/4P3/8/8/8/4K3 b - - 0 1"), input_format::kClassical);
  maker.play(named("d2d4"));  // d7d5 as the black side sees it
  maker.play(named("e5d6"));
  const PackedRecords packed(maker.records());
  const auto& frames = packed.views();
  EXPECT_EQ(position_of(frames[1], &frames[0]).en_passant, square_bit(43));
  EXPECT_EQ(position_of(frames[1], nullptr).en_passant, square_bit(43)) << "from the history";
  EXPECT_EQ(position_of(frames[0], nullptr).en_passant, 0U);
  testing::Bytes bare = maker.records();
  for (std::size_t i = 0; i < 13; ++i) put(bare, 1, v6::kPlanes + 8 * (13 + i), std::uint64_t{0});
  const PackedRecords without(bare);
  EXPECT_EQ(position_of(without.views()[1], nullptr).en_passant, square_bit(43)) << "it may be";
}

}  // namespace
}  // namespace ringfeed::formats
