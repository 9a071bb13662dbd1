// The specification of workers/chess/chess_vocabulary.h; tests/data/chess/vocabulary.txt has all
// tokens, one a line.
#include "workers/chess/chess_vocabulary.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace ringfeed::formats {
namespace {

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  std::ifstream file(RINGFEED_SOURCE_DIR "/tests/data/chess/vocabulary.txt");
  for (std::string name; std::getline(file, name);) names.push_back(name);
  return names;
}

TEST(ChessVocabulary, HasTheTokensOfTheListInItsOrder) {
  const std::vector<std::string> names = all_names();
  ASSERT_EQ(names.size(), kChessTokens);
  for (Token token = 0; token < kChessTokens; ++token) {
    EXPECT_EQ(token_name(token), names[token]);
    EXPECT_EQ(find_token(names[token]), token) << names[token];
  }
}

TEST(ChessVocabulary, HasNothingElse) {
  for (const char* name :
       {"",      "e2",    "e2e",        "e2e2",      "a1b4",       "i1a1",
        "a0a1",  "a1a9",  "E2E4",       "a7a8n",     "a7a8k",      "a7c8q",
        "a6a7q", "a7a8Q", "a2a3q",      "e2e4q",     "a7a8qq",     "e2 e4",
        "kQ",    "QK",    "unknown(7)", "wl_value ", "White_king", "\xff\xff\xff\xff"}) {
    EXPECT_EQ(find_token(name), std::nullopt) << name;
  }
}

TEST(ChessVocabulary, WritesAKnightPromotionAsAPlainMoveAndCastlingAsKingTakesRook) {
  EXPECT_EQ(find_token("e2e4"), 322);
  EXPECT_EQ(find_token("e7e5"), 1498);
  EXPECT_EQ(find_token("e1h1"), 103);
  EXPECT_EQ(find_token("e8h8"), 1719);
  EXPECT_LT(find_token("a7a8").value(), 1792);
}

TEST(ChessVocabulary, NumbersWhatStandsInAndBehindBoards) {
  // The board ids whose tokens do not follow one another.
  const std::map<Token, int> expected = {
      {1923, -1}, {1924, 0},  {1935, 11}, {1936, 12}, {1940, 16}, {1941, -1}, {1942, -1},
      {1943, -1}, {1944, 17}, {1945, 18}, {1946, 40}, {1947, 39}, {1948, 19}, {1963, 34},
      {1964, 35}, {1965, 36}, {1966, 37}, {1967, 38}, {0, -1},    {1968, -1}};
  for (const auto& [token, id] : expected) EXPECT_EQ(board_id(token), id) << token;
  std::map<int, int> times;
  for (Token token = 0; token < kChessTokens; ++token) ++times[board_id(token)];
  EXPECT_EQ(times.size(), 42U) << "41 and none";
  for (const auto& [id, count] : times) EXPECT_EQ(count, id < 0 ? 1927 : 1) << id;
  EXPECT_EQ(move_id(1923), 1923);
  EXPECT_EQ(move_id(1924), -1);
}

TEST(ChessVocabulary, HasATokenForEachSetOfCastlingRights) {
  EXPECT_EQ(token_name(castling_token(0)), "no_castling_rights");
  for (unsigned rights = 1; rights < 16; ++rights) {
    std::string name;
    for (unsigned bit = 0; bit < 4; ++bit) {
      if ((rights >> bit & 1) != 0) name += "KQkq"[bit];
    }
    EXPECT_EQ(token_name(castling_token(rights)), name);
  }
}

}  // namespace
}  // namespace ringfeed::formats
