// The specification of workers/chess/chess_fen.h; tests/data/chess/fen_tokens.json has worked
// examples.
#include "workers/chess/chess_fen.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace ringfeed::formats {
namespace {

using Tokens = std::array<Token, kBoardTokens>;

struct Read {
  FenStatus status;
  Tokens tokens{};
};
Read read(std::string_view fen) {
  Read read{};
  read.status = read_fen(fen, read.tokens);
  return read;
}
std::string castling(std::string_view fen) {
  const Read found = read(fen);
  return found.status == FenStatus::kOk ? token_name(found.tokens[66])
                                        : fen_status_name(found.status);
}

TEST(ChessFen, GivesTheTokensOfTheExamples) {
  const auto examples =
      nlohmann::json::parse(std::ifstream(RINGFEED_SOURCE_DIR "/tests/data/chess/fen_tokens.json"));
  std::size_t good = 0;
  for (const auto& example : examples) {
    const auto& fen = example["fen"];
    Read found{};
    if (fen.is_null()) {
      write_empty_board(found.tokens);
    } else {
      found = read(fen.get<std::string>());
    }
    EXPECT_EQ(found.status != FenStatus::kOk, example.contains("error")) << fen;
    if (found.status != FenStatus::kOk) continue;
    EXPECT_EQ(found.tokens, example["ids"].get<Tokens>()) << fen;
    ++good;
  }
  EXPECT_EQ(good, 15U);
  EXPECT_EQ(examples.size(), 24U);
}

constexpr const char* kBoard = "8/8/8/8/8/8/8/8";

TEST(ChessFen, TakesFieldsThatAreMissingForTheUsualOnes) {
  EXPECT_EQ(read(kBoard).tokens, read("8/8/8/8/8/8/8/8 w - - 0 1").tokens);
  EXPECT_EQ(token_name(read(kBoard).tokens[67]), "white_to_move");
  EXPECT_EQ(token_name(read("8/8/8/8/8/8/8/8 b").tokens[67]), "black_to_move");
  for (const char* fen : {"  8/8/8/8/8/8/8/8\tw\n- \x1c -\x0b 0\r1 ",
                          "\xe3\x80\x80"
                          "8/8/8/8/8/8/8/8\xc2\xa0w\xe2\x80\x89-"}) {
    EXPECT_EQ(read(fen).status, FenStatus::kOk) << fen;
    EXPECT_EQ(read(fen).tokens, read(kBoard).tokens) << fen;
  }
}

TEST(ChessFen, RefusesWhatIsNone) {
  const auto with = [](const char* rest) { return std::string(kBoard) + rest; };
  const std::vector<std::pair<std::string, FenStatus>> cases = {
      {"", FenStatus::kFieldCount},
      {" \n", FenStatus::kFieldCount},
      {with(" w - - 0 1 x"), FenStatus::kFieldCount},
      {"8/8/8/8/8/8/8", FenStatus::kBoard},
      {"8/8/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"8/8/8/8/8/8/8/", FenStatus::kBoard},
      {"44/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"ppppppppp/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"8p/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"7/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"0p7/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"~8/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"p~~7/8/8/8/8/8/8/8", FenStatus::kBoard},
      {"p1~6/8/8/8/8/8/8/8", FenStatus::kBoard},
      {with(" W"), FenStatus::kTurn},
      {with(" wb"), FenStatus::kTurn},
      {with(" w kK"), FenStatus::kCastling},
      {with(" w KQQ"), FenStatus::kCastling},
      {with(" w K-"), FenStatus::kCastling},
      {with(" w I"), FenStatus::kCastling},
      {with(" w KQkqk"), FenStatus::kCastling},
      {with(" w - e9"), FenStatus::kEnPassant},
      {with(" w - i1"), FenStatus::kEnPassant},
      {with(" w - e"), FenStatus::kEnPassant},
      {with(" w - - -1"), FenStatus::kCounter},
      {with(" w - - x"), FenStatus::kCounter},
      {with(" w - - 1.0"), FenStatus::kCounter},
      {with(" w - - 0 1_"), FenStatus::kCounter},
      {with(" w - - 0 +"), FenStatus::kCounter}};
  for (const auto& [fen, status] : cases) EXPECT_EQ(read(fen).status, status) << fen;
  for (const char* good :
       {" w QKqk e4 99999999999999999999 +1_0", " b KKkk h8 -0 007", " w Hh a1"}) {
    EXPECT_EQ(read(with(good)).status, FenStatus::kOk) << good;
  }
}

TEST(ChessFen, LeavesTheRightsThatKingAndRookStillHave) {
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R3K2R w KQkq"), "KQkq");
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R3K2R w HAha"), "KQkq");
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R3K2R w Kq"), "Kq");
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R3K2R w BGbg"), "no_castling_rights");
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R3K1R1 w KQkq"), "Qkq");
  EXPECT_EQ(castling("r3k2r/8/8/8/8/8/8/R2K3R w KQkq"), "kq");
  EXPECT_EQ(castling("r2bk2R/8/8/8/8/8/8/R3K2r w KQkq"), "Qq");
  EXPECT_EQ(castling("4k3/8/8/8/8/8/8/R3K~2R w KQ"), "no_castling_rights") << "a promoted king";
  EXPECT_EQ(castling("4k3/8/8/8/8/8/8/R~3K2R~ w KQ"), "KQ") << "promoted rooks";
}

// Whatever it is, it is read or refused.
TEST(ChessFen, SurvivesNoise) {
  std::mt19937 random(3);
  const std::string_view letters = "pnbrqkPNBRQK12345678/~ wb-KQkqah09_+\t\xe2\x80\x81";
  std::size_t read_well = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string fen =
        i % 2 == 0 ? "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6 0 2" : "";
    const std::size_t changes = random() % 12;
    for (std::size_t change = 0; change < changes; ++change) {
      const char letter = letters[random() % letters.size()];
      if (fen.empty() || random() % 3 == 0) {
        fen.insert(fen.begin() + static_cast<std::ptrdiff_t>(random() % (fen.size() + 1)), letter);
      } else if (random() % 2 == 0) {
        fen[random() % fen.size()] = letter;
      } else {
        fen.erase(random() % fen.size(), 1);
      }
    }
    // On the heap and of its exact length, for the address sanitizer.
    const std::vector<char> exact(fen.begin(), fen.end());
    const Read found = read({exact.data(), exact.size()});
    if (found.status != FenStatus::kOk) continue;
    ++read_well;
    for (const Token token : found.tokens) ASSERT_GE(board_id(token), 0) << fen;
  }
  EXPECT_GT(read_well, 5'000U);
}

}  // namespace
}  // namespace ringfeed::formats
