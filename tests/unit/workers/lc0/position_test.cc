#include "workers/lc0/position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/rig/lc0_sample.h"
#include "workers/lc0/policy_moves.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;
using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace v6 = formats::v6;

Bytes first_record() {
  Bytes records = testing::sample_records(testing::kSampleGames[0]);
  records.resize(formats::kV6RecordBytes);
  return records;
}

template <typename Value>
void put(Bytes& record, std::size_t offset, Value value) {
  std::memcpy(record.data() + offset, &value, sizeof value);
}

// An empty board of this input_format on which nothing is known.
Bytes empty_record(std::uint32_t input_format) {
  Bytes record(formats::kV7RecordBytes);
  put(record, v6::kVersion, std::uint32_t{6});
  put(record, v6::kInputFormat, input_format);
  for (std::size_t i = 0; i < formats::kPolicyMoves; ++i) {
    put(record, v6::kPolicy + 4 * i, -1.0F);
  }
  return record;
}

// Puts a piece of this kind (0 own pawn … 11 opponent's king) onto a square, "e1" in the view of
// the side to move.
void set_piece(Bytes& record, int kind, const char* square, std::size_t step = 0) {
  const int file = square[0] - 'a';
  const int rank = square[1] - '1';
  const std::size_t plane = v6::kPlanes + 8 * (13 * step + static_cast<std::size_t>(kind)) +
                            static_cast<std::size_t>(rank);
  record[plane] |= std::byte{0x80} >> file;
}

ordered_json describe(const Bytes& record, std::uint32_t origin = 6, std::size_t index = 0,
                      bool start = false) {
  return describe_record(record, {index, origin, start}, 5);
}

// ---- the policy's moves ----

TEST(PolicyMoves, AreThoseOfTheTable) {
  const auto text = [](std::size_t index) { return uci(policy_moves().at(index), false); };
  EXPECT_EQ(text(0), "a1b1");
  EXPECT_EQ(text(34), "b1a3");
  EXPECT_EQ(text(293), "d2d4");
  EXPECT_EQ(text(322), "e2e4");
  EXPECT_EQ(text(1791), "h8g8");
  EXPECT_EQ(text(1792), "a7a8q");
  EXPECT_EQ(text(1857), "h7h8b");
  EXPECT_EQ(uci(policy_moves()[322], true), "e7e5");
  EXPECT_EQ(uci(policy_moves()[1792], true), "a2a1q");
  std::set<std::string> all;
  for (std::size_t i = 0; i < formats::kPolicyMoves; ++i) all.insert(text(i));
  EXPECT_EQ(all.size(), formats::kPolicyMoves);
}

// ---- boards ----

TEST(Position, TheFirstOfAGameIsTheStart) {
  const Bytes record = first_record();
  EXPECT_TRUE(is_start_position(record));
  const ordered_json found = describe(record, 6, 0, true);
  EXPECT_EQ(found["fen"], "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  EXPECT_EQ(found["board"][0], "rnbqkbnr");
  EXPECT_EQ(found["board"][7], "RNBQKBNR");
  EXPECT_EQ(found["side_to_move"], "white");
  EXPECT_EQ(found["invariance"], ordered_json({"adjudicated"}));
  EXPECT_EQ(found["policy"]["legal"], 20);
  EXPECT_NEAR(found["policy"]["sum"].get<double>(), 1, 1e-6);
  EXPECT_EQ(found["policy"]["top"].size(), 5U);
  EXPECT_EQ(found["policy"]["top"][0]["index"], found["best"]["index"]);
}

// A white king on e1 and a black rook on h8, black to move: seen from black the rook is "R" on h1.
TEST(Position, OfBlackIsTurnedForTheFen) {
  Bytes record = empty_record(1);
  record[v6::kSideToMove] = std::byte{1};
  record[v6::kRule50] = std::byte{7};
  set_piece(record, 3, "h1");
  set_piece(record, 5, "e1");
  set_piece(record, 11, "e8");
  record[v6::kCastlingUsOo] = std::byte{1};
  put(record, v6::kPolicy + 4 * 322, 0.25F);
  const ordered_json found = describe(record);
  EXPECT_EQ(found["fen"], "4k2r/8/8/8/8/8/8/4K3 b k - 7 1");
  EXPECT_EQ(found["board"][7], "....K..R");
  EXPECT_EQ(found["policy"]["top"][0]["move"], "e7e5");
  EXPECT_FALSE(is_start_position(record));
}

TEST(Position, CastlingIsShownBesideTheKingThatTakesHisRook) {
  Bytes record = empty_record(1);
  set_piece(record, 5, "e1");
  set_piece(record, 3, "h1");
  set_piece(record, 3, "a1");
  // Indices of e1h1 and e1a1.
  std::vector<std::size_t> castlings;
  for (std::size_t i = 0; i < formats::kPolicyMoves; ++i) {
    const std::string move = uci(policy_moves()[i], false);
    if (move == "e1h1" || move == "e1a1") castlings.push_back(i);
  }
  ASSERT_EQ(castlings.size(), 2U);
  put(record, v6::kPolicy + 4 * castlings[0], 0.75F);
  put(record, v6::kPolicy + 4 * castlings[1], 0.25F);
  put(record, v6::kPolicy + 4 * 322, 0.0F);
  const ordered_json top = describe(record)["policy"]["top"];
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0]["move"], "e1a1");
  EXPECT_EQ(top[0]["castling"], "e1c1");
  EXPECT_EQ(top[1]["move"], "e1h1");
  EXPECT_EQ(top[1]["castling"], "e1g1");
  EXPECT_TRUE(top[2]["castling"].is_null());
}

TEST(Position, EnPassantComesFromTheStepBefore) {
  Bytes record = empty_record(1);
  set_piece(record, 6, "d5", 0);
  set_piece(record, 6, "d7", 1);
  EXPECT_THAT(describe(record)["fen"].get<std::string>(), HasSubstr(" w - d6 0 1"));
  record[v6::kSideToMove] = std::byte{1};
  EXPECT_THAT(describe(record)["fen"].get<std::string>(), HasSubstr(" b - d3 0 1"));
  // It stood there before: another one has moved.
  set_piece(record, 6, "d5", 1);
  EXPECT_THAT(describe(record)["fen"].get<std::string>(), HasSubstr(" b - - 0 1"));
}

TEST(Position, FilesOfRooksAreLettersOfTheFen) {
  Bytes record = empty_record(2);
  record[v6::kCastlingUsOoo] = std::byte{1 << 1};
  record[v6::kCastlingUsOo] = std::byte{1 << 6};
  record[v6::kCastlingThemOo] = std::byte{1 << 7};
  EXPECT_THAT(describe(record)["fen"].get<std::string>(), HasSubstr(" w GBh - "));
}

TEST(Position, OfCanonicalFormatsHasNoFen) {
  Bytes record = empty_record(3);
  record[v6::kInvarianceInfo] = std::byte{128 | 1};
  const ordered_json found = describe(record);
  EXPECT_TRUE(found["fen"].is_null());
  EXPECT_THAT(found["fen_missing"].get<std::string>(), HasSubstr("turned and mirrored"));
  EXPECT_EQ(found["side_to_move"], "black");
  EXPECT_EQ(found["invariance"], ordered_json({"flip", "black_to_move"}));
  EXPECT_TRUE(found["fields"].contains("en_passant"));
}

TEST(Position, TwoPiecesOnASquareAreSaid) {
  Bytes record = empty_record(1);
  set_piece(record, 0, "c3");
  set_piece(record, 9, "c3");
  const ordered_json found = describe(record);
  EXPECT_EQ(found["board"][5], "..?.....");
  EXPECT_THAT(found["fen_missing"].get<std::string>(), HasSubstr("damaged"));
}

// ---- fields ----

TEST(Fields, AreThoseThatTheVersionHas) {
  const Bytes record = empty_record(1);
  const auto names = [&](std::uint32_t origin) {
    const ordered_json found = describe(record, origin);
    std::set<std::string> all;
    for (const auto& [name, value] : found["fields"].items()) all.insert(name);
    return all;
  };
  EXPECT_EQ(names(3).size(), 8U);
  EXPECT_TRUE(names(3).contains("move_count"));
  EXPECT_EQ(names(4).size(), 12U);
  EXPECT_EQ(names(5).size(), 15U);
  EXPECT_TRUE(names(5).contains("result"));
  EXPECT_EQ(names(6).size(), 26U);
  EXPECT_FALSE(names(6).contains("result"));
  EXPECT_EQ(names(7).size(), 30U);
}

TEST(Fields, ShowTheDigitsOfAFloat) {
  Bytes record = empty_record(1);
  put(record, v6::kBestQ, 0.1F);
  put(record, v6::kOrigQ, std::numeric_limits<float>::quiet_NaN());
  const ordered_json fields = describe(record)["fields"];
  EXPECT_EQ(fields["best_q"].dump(), "0.1");
  EXPECT_EQ(fields["orig_q"].dump(), "null");
}

TEST(Fields, MovesOfIndicesThatAreNoneAreNull) {
  Bytes record = empty_record(1);
  put(record, v6::kVisits, std::uint32_t{800});
  put(record, v6::kPlayedIdx, std::uint16_t{1858});
  put(record, v6::kBestIdx, std::uint16_t{322});
  EXPECT_TRUE(describe(record)["played"].is_null());
  EXPECT_EQ(describe(record)["best"]["move"], "e2e4");
  put(record, v6::kVisits, std::uint32_t{0});
  EXPECT_TRUE(describe(record)["best"].is_null());
}

TEST(Policy, OfVersion3DoesNotTellWhatIsLegal) {
  Bytes record = empty_record(1);
  for (std::size_t i = 0; i < formats::kPolicyMoves; ++i) put(record, v6::kPolicy + 4 * i, 0.0F);
  put(record, v6::kPolicy + 4 * 322, 1.0F);
  const ordered_json policy = describe(record, 3)["policy"];
  EXPECT_TRUE(policy["legal"].is_null());
  EXPECT_EQ(policy["top"].size(), 1U);
}

TEST(Policy, CountsWhatIsNotANumber) {
  Bytes record = empty_record(1);
  put(record, v6::kPolicy + 4 * 322, std::numeric_limits<float>::quiet_NaN());
  put(record, v6::kPolicy, 1.0F);
  const ordered_json policy = describe(record)["policy"];
  EXPECT_EQ(policy["nan"], 1);
  EXPECT_EQ(policy["legal"], 2);
  EXPECT_EQ(policy["top"].size(), 1U);
}

}  // namespace
}  // namespace ringfeed::inspect
