// The specification of workers/lc0/lc0_validate.h.
#include "workers/lc0/lc0_validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <random>

#include "tests/unit/workers/lc0/game_maker.h"

namespace ringfeed::formats {
namespace {

using test_games::board_of_fen;
using test_games::GameMaker;
using test_games::get;
using test_games::kNan;
using test_games::kStartPosition;
using test_games::move;
using test_games::PackedRecords;
using test_games::put;
using testing::Bytes;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Verdict verdict_of(const Bytes& records, Checks checks = Checks::all()) {
  return validate_chunk(PackedRecords(records).views(), checks);
}

Bytes real_game() { return ringfeed::testing::sample_records(ringfeed::testing::kSampleGames[0]); }

TEST(ValidateChunk, FindsNothingInRealGames) {
  for (const auto& game : ringfeed::testing::kSampleGames) {
    const Verdict verdict = verdict_of(ringfeed::testing::sample_records(game));
    EXPECT_TRUE(verdict.valid()) << game.name << " record " << verdict.frame << ": "
                                 << verdict.text;
  }
}

// ---- each flaw alone

struct Damage {
  const char* name;
  Flaw flaw;
  std::function<void(Bytes&)> apply;  // to record 7 of a real game
  const char* text;
  friend void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }
};
constexpr std::size_t kDamaged = 7;

Damage number(const char* name, Flaw flaw, std::size_t offset, float value) {
  return {name, flaw, [=](Bytes& records) { put(records, kDamaged, offset, value); }, " is "};
}
Damage byte(const char* name, Flaw flaw, std::size_t offset, int value) {
  return {name, flaw,
          [=](Bytes& records) { put(records, kDamaged, offset, static_cast<std::uint8_t>(value)); },
          " is "};
}

// A move that is legal there and was not played.
std::uint16_t other_move(const Bytes& records, std::size_t frame) {
  const auto played = get<std::uint16_t>(records, frame, v6::kPlayedIdx);
  for (std::uint16_t i = 0; i < kPolicyMoves; ++i) {
    if (i != played && get<float>(records, frame, v6::kPolicy + 4U * i) >= 0) return i;
  }
  return 0;
}
std::uint16_t illegal_move(const Bytes& records, std::size_t frame) {
  std::uint16_t i = 0;
  while (get<float>(records, frame, v6::kPolicy + 4U * i) >= 0) ++i;
  return i;
}

class EachFlaw : public ::testing::TestWithParam<Damage> {};

TEST_P(EachFlaw, IsFoundWhereItIsAndNotLookedForWhenTheCheckIsOff) {
  const Damage& damage = GetParam();
  Bytes records = real_game();
  damage.apply(records);
  const Verdict verdict = verdict_of(records);
  EXPECT_EQ(flaw_name(verdict.flaw), std::string(flaw_name(damage.flaw))) << verdict.text;
  EXPECT_EQ(verdict.frame, kDamaged);
  EXPECT_THAT(verdict.text, HasSubstr(damage.text));
  const Verdict only = verdict_of(records, Checks::none().with(damage.flaw, true));
  EXPECT_EQ(only.flaw, damage.flaw);
  const Verdict without = verdict_of(records, Checks::all().with(damage.flaw, false));
  EXPECT_TRUE(without.valid()) << flaw_name(without.flaw) << ": " << without.text;
}
INSTANTIATE_TEST_SUITE_P(
    Values, EachFlaw,
    ::testing::Values(number("RootQ", Flaw::kValues, v6::kRootQ, 1.01F),
                      number("BestQ", Flaw::kValues, v6::kBestQ, -1.01F),
                      number("PlayedQ", Flaw::kValues, v6::kPlayedQ, kNan),
                      number("RootD", Flaw::kValues, v6::kRootD, -0.01F),
                      number("BestD", Flaw::kValues, v6::kBestD, 1.01F),
                      number("PlayedD", Flaw::kValues, v6::kPlayedD, kInfinity),
                      number("RootM", Flaw::kValues, v6::kRootM, -1.0F),
                      number("BestM", Flaw::kValues, v6::kBestM, kNan),
                      number("PlayedM", Flaw::kValues, v6::kPlayedM, kInfinity),
                      number("PliesLeft", Flaw::kValues, v6::kPliesLeft, -0.5F),
                      number("OrigQ", Flaw::kOrigValues, v6::kOrigQ, 2.0F),
                      number("OrigD", Flaw::kOrigValues, v6::kOrigD, -0.1F),
                      number("OrigM", Flaw::kOrigValues, v6::kOrigM, -3.0F),
                      number("ResultQ", Flaw::kResult, v6::kResultQ, 1.5F),
                      number("ResultD", Flaw::kResult, v6::kResultD, -1.0F),
                      number("ResultQNan", Flaw::kResult, v6::kResultQ, kNan),
                      byte("CastlingThem", Flaw::kCastling, v6::kCastlingThemOo, 2),
                      byte("SideToMove", Flaw::kSideToMove, v6::kSideToMove, 2),
                      byte("Rule50", Flaw::kRule50, v6::kRule50, 101)),
    [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(
    Moves, EachFlaw,
    ::testing::Values(
        Damage{"ProbabilityBelowZero", Flaw::kProbabilities,
               [](Bytes& records) {
                 // The sum stays what it was.
                 const std::size_t at = v6::kPolicy + 4U * illegal_move(records, kDamaged);
                 put(records, kDamaged, at, -0.5F);
               },
               "a probability is -0.5"},
        Damage{"Sum", Flaw::kProbabilitySum,
               [](Bytes& records) {
                 const std::size_t at = v6::kPolicy + 4U * other_move(records, kDamaged);
                 put(records, kDamaged, at, 0.9F);
               },
               "sum to"},
        Damage{"BestIdxBeyondTheLastMove", Flaw::kMoveIndices,
               [](Bytes& records) { put(records, kDamaged, v6::kBestIdx, std::uint16_t{1858}); },
               "best_idx is 1858"},
        Damage{"BestIdxMarkedIllegal", Flaw::kMoveIndices,
               [](Bytes& records) {
                 put(records, kDamaged, v6::kBestIdx, illegal_move(records, kDamaged));
               },
               "marked illegal"},
        Damage{"OtherMovePlayed", Flaw::kPlayedMoves,
               [](Bytes& records) {
                 put(records, kDamaged, v6::kPlayedIdx, other_move(records, kDamaged));
               },
               "the move to the next record"}),
    [](const auto& param) { return param.param.name; });

TEST(ValidateChunk, KnowsThatAnOrigValueMayBeMissing) {
  Bytes records = real_game();
  for (const std::size_t offset : {v6::kOrigQ, v6::kOrigD, v6::kOrigM})
    put(records, 3, offset, kNan);
  put(records, 3, v6::kPolicy + 4U * illegal_move(records, 3), kNan);
  EXPECT_TRUE(verdict_of(records).valid()) << "and so may a probability";
}

TEST(ValidateChunk, RefusesNothingAtAll) {
  EXPECT_EQ(verdict_of({}).flaw, Flaw::kEmpty);
  EXPECT_TRUE(verdict_of({}, Checks::none()).valid());
}

TEST(ValidateChunk, RefusesAnInputFormatThatIsNoneOrAnotherOne) {
  Bytes records = real_game();
  put(records, 5, v6::kInputFormat, std::uint32_t{2});
  EXPECT_EQ(verdict_of(records).flaw, Flaw::kInputFormat);
  EXPECT_EQ(verdict_of(records).frame, 5U);
  for (std::size_t i = 0; i < records.size() / kV6RecordBytes; ++i) {
    put(records, i, v6::kInputFormat, std::uint32_t{6});
  }
  EXPECT_EQ(verdict_of(records).frame, 0U);
  EXPECT_THAT(verdict_of(records).text, HasSubstr("input_format 6"));
}

TEST(ValidateChunk, RefusesABoardThatNoMoveLeadsTo) {
  Bytes records = real_game();
  records.erase(records.begin() + static_cast<std::ptrdiff_t>(4 * kV6RecordBytes),
                records.begin() + static_cast<std::ptrdiff_t>(5 * kV6RecordBytes));
  const Verdict verdict = verdict_of(records);
  EXPECT_EQ(verdict.flaw, Flaw::kTransitions);
  EXPECT_EQ(verdict.frame, 3U) << "a record is missing behind it";
  EXPECT_TRUE(verdict_of(records, Checks::all().with(Flaw::kTransitions, false)).valid());
}

TEST(ValidateChunk, LooksForTheLastMoveAmongTheLegalOnes) {
  Bytes records = real_game();
  const std::size_t last = records.size() / kV6RecordBytes - 1;
  const std::uint16_t illegal = illegal_move(records, last);
  put(records, last, v6::kPlayedIdx, illegal);
  EXPECT_EQ(verdict_of(records).flaw, Flaw::kMoveIndices);
  put(records, last, v6::kPolicy + 4U * illegal, 0.0F);
  EXPECT_EQ(verdict_of(records).flaw, Flaw::kMoveLegality);
  EXPECT_EQ(verdict_of(records).frame, last);
  EXPECT_TRUE(verdict_of(records, Checks::all().with(Flaw::kMoveLegality, false)).valid());
}

// Records of version 5 and less do not say which move was played, and have no visits.
TEST(ValidateChunk, FollowsTheMovesOfRecordsWithoutVisits) {
  Bytes records = real_game();
  const std::size_t count = records.size() / kV6RecordBytes;
  for (std::size_t i = 0; i < count; ++i) {
    put(records, i, v6::kVisits, std::uint32_t{0});
    put(records, i, v6::kPlayedIdx, std::uint16_t{0});
    put(records, i, v6::kBestIdx, std::uint16_t{0});
  }
  EXPECT_TRUE(verdict_of(records).valid());
  const std::uint16_t played = get<std::uint16_t>(real_game(), 9, v6::kPlayedIdx);
  put(records, 9, v6::kPolicy + 4U * played, -1.0F);
  const Checks checks = Checks::all().with(Flaw::kProbabilitySum, false);
  EXPECT_EQ(verdict_of(records, checks).flaw, Flaw::kPlayedMoves);
  EXPECT_THAT(verdict_of(records, checks).text, HasSubstr("marked illegal"));
}

// ---- what the rules allow

struct Illegal {
  const char* name;
  const char* fen;
  std::vector<Move> moves;  // the last but one is the one that is not allowed
  friend void PrintTo(const Illegal& game, std::ostream* out) { *out << game.name; }
};
class IllegalMove : public ::testing::TestWithParam<Illegal> {};

TEST_P(IllegalMove, IsRefusedInEveryInputFormat) {
  for (const std::uint32_t format : {1U, 2U, 3U, 4U, 5U, 132U, 133U}) {
    GameMaker maker(board_of_fen(GetParam().fen), format);
    for (const Move each : GetParam().moves) maker.play(each);
    const Verdict verdict = verdict_of(maker.records());
    EXPECT_EQ(flaw_name(verdict.flaw), std::string("move_legality")) << format << verdict.text;
    EXPECT_EQ(verdict.frame, GetParam().moves.size() - 2);
    const auto without =
        verdict_of(maker.records(), Checks::all().with(Flaw::kMoveLegality, false));
    EXPECT_TRUE(without.valid()) << format << ": " << without.text;
  }
}
INSTANTIATE_TEST_SUITE_P(Rules, IllegalMove,
                         ::testing::Values(Illegal{"PinnedPieceLeaves",
                                                   "4r1k1/8/8/8/8/8/4B3/4K3 w - - 0 1",
                                                   {move(12, 21), move(6, 5)}},
                                           Illegal{"CheckIsNotAnswered",
                                                   "4r1k1/8/8/8/8/8/7P/4K3 w - - 0 1",
                                                   {move(15, 23), move(6, 5)}},
                                           Illegal{"CastlingWithoutTheRight",
                                                   "6k1/8/8/8/8/8/8/R3K2R w Q - 0 1",
                                                   {move(4, 7), move(6, 15)}},
                                           Illegal{"CastlingThroughACheck",
                                                   "5r1k/8/8/8/8/8/8/R3K2R w KQ - 0 1",
                                                   {move(4, 7), move(7, 15)}},
                                           Illegal{"EnPassantTooLate",
                                                   "6k1/3p4/8/4P3/8/8/8/6K1 b - - 0 1",
                                                   {move(11, 27), move(6, 7), move(6, 7),
                                                    move(36, 43), move(7, 6)}}),
                         [](const auto& param) { return param.param.name; });

// The rest of the tests above: what is allowed is found so, in every way that the format may turn
// it.
class PlayedGames : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(PlayedGames, AreValidFromAnyPosition) {
  std::mt19937_64 random(7 + GetParam());
  std::size_t positions = 0;
  for (const char* fen :
       {kStartPosition, "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
        "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
        "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
        "4k3/8/8/8/8/8/8/RNBQKBNR w - - 0 1", "r1b1k3/8/8/8/8/8/8/R1Q1K2N b - - 0 1"}) {
    for (int round = 0; round < 4; ++round) {
      GameMaker maker(board_of_fen(fen), GetParam());
      maker.play_random(random, 60, round != 0);
      positions += maker.count();
      const Verdict verdict = verdict_of(maker.records());
      ASSERT_TRUE(verdict.valid()) << fen << " round " << round << " record " << verdict.frame
                                   << ": " << flaw_name(verdict.flaw) << ", " << verdict.text;
    }
  }
  EXPECT_GT(positions, 300U);
}

// Chess960: input format 1 does not name the rooks, the others do.
TEST_P(PlayedGames, AreValidInChess960) {
  std::mt19937_64 random(70 + GetParam());
  for (const char* fen : {"2nnrbkr/p1qppppp/8/1ppb4/6PP/3PP3/PPP2P2/BQNNRBKR w HEhe - 1 9",
                          "1rqbkrbn/1ppppp1p/1n6/p1N3p1/8/2P4P/PP1PPPP1/1RQBKRBN w FBfb - 0 9",
                          "1r1k1r2/8/8/8/8/8/8/1R1K1R2 w FBfb - 0 1"}) {
    for (int round = 0; round < 6; ++round) {
      GameMaker maker(board_of_fen(fen), GetParam());
      maker.play_random(random, 40);
      const Verdict verdict = verdict_of(maker.records());
      ASSERT_TRUE(verdict.valid()) << fen << " record " << verdict.frame << ": " << verdict.text;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(EveryInputFormat, PlayedGames,
                         ::testing::Values(1U, 2U, 3U, 4U, 5U, 132U, 133U));

TEST(ValidateChunk, AsksForMasksOfOneBitWhereTheFormatHasThem) {
  GameMaker maker(board_of_fen(kStartPosition), input_format::kHectoplies);
  maker.play(move(12, 28));
  maker.play(move(12, 28));
  EXPECT_TRUE(verdict_of(maker.records()).valid());
  Bytes records = maker.records();
  put(records, 1, v6::kSideToMove, std::uint8_t{0x18});
  EXPECT_EQ(verdict_of(records).flaw, Flaw::kSideToMove);
  records = maker.records();
  put(records, 0, v6::kCastlingUsOo, std::uint8_t{0xC0});
  EXPECT_EQ(verdict_of(records).flaw, Flaw::kCastling);
}

// ---- noise

TEST(ValidateChunk, SurvivesRecordsOfNoise) {
  std::mt19937_64 random(11);
  const Bytes real = real_game();
  std::array<std::size_t, kFlaws> found{};
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t version = 3 + static_cast<std::uint32_t>(round % 5);
    const std::size_t bytes = frame_bytes_of_version(version);
    Bytes records(bytes * (1 + random() % 4));
    for (std::byte& each : records) each = static_cast<std::byte>(random());
    if (round % 3 == 0) {
      // A real game with some bytes changed, as far as it goes.
      for (std::size_t i = 0; i < records.size(); ++i) {
        if (random() % 4000 != 0) records[i] = real[i % real.size()];
      }
    }
    for (std::size_t at = 0; at < records.size(); at += bytes) {
      std::memcpy(records.data() + at, &version, 4);
      if (version < 6) records[at + (version == 5 ? 8279 : 8275)] = std::byte{1};
    }
    const PackedRecords packed(records, version);
    for (const Checks checks : {Checks::all(), Checks::none()
                                                   .with(Flaw::kTransitions, true)
                                                   .with(Flaw::kPlayedMoves, true)
                                                   .with(Flaw::kMoveLegality, true)}) {
      ++found[static_cast<std::size_t>(validate_chunk(packed.views(), checks).flaw)];
    }
  }
  EXPECT_GT(found[static_cast<std::size_t>(Flaw::kTransitions)], 0U);
  EXPECT_GT(found[static_cast<std::size_t>(Flaw::kInputFormat)], 0U);
}

}  // namespace
}  // namespace ringfeed::formats
