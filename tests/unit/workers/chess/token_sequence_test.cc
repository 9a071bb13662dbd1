// The specification of workers/chess/token_sequence.h; what becomes of it in arrays is in
// chess_game_test.cc and chess_variation_test.cc.
#include "workers/chess/token_sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace ringfeed::formats {
namespace {

TokenSequence sample() {
  TokenSequence sequence;
  sequence.lineage = {.file = 3, .game = 70'000, .start = 71, .variation_epoch = 2};
  sequence.first_is_not_best = true;
  sequence.tokens = {kStartPosToken, 322, kWlValueToken, kDValueToken};
  sequence.targets = {{.at = 0, .move = 322, .board = 38, .masks = TokenSequence::kMove}};
  sequence.values = {{.at = 2, .uses = TokenSequence::kWl, .wl = 0.25F, .d = -0.0F},
                     {.at = 3, .uses = TokenSequence::kD, .wl = 1.0F, .d = 0.5F}};
  sequence.blocks = {{.begin = 0, .end = 1}, {.begin = 1, .end = 4}};
  return sequence;
}

std::vector<std::byte> packed(const TokenSequence& sequence) {
  std::vector<std::byte> record(packed_bytes(sequence));
  pack(sequence, record);
  return record;
}

TEST(TokenSequence, SurvivesBeingPacked) {
  const std::vector<std::byte> record = packed(sample());
  EXPECT_EQ(record.size(), 48U + 2 * 16 + 8 + 2 * 8 + 4 * 2);
  TokenSequence back;
  back.tokens.resize(100);
  ASSERT_TRUE(unpack(record, back));
  EXPECT_EQ(packed(back), record);
  EXPECT_EQ(back.lineage.game, 70'000U);
  EXPECT_EQ(back.lineage.variation_epoch, 2U);
  EXPECT_TRUE(back.first_is_not_best);
  EXPECT_EQ(back.tokens, sample().tokens);
  EXPECT_EQ(back.values[1].d, 0.5F);
  EXPECT_EQ(back.blocks[1].end, 4U);
  TokenSequence empty;
  ASSERT_TRUE(unpack(packed(empty), back));
  EXPECT_TRUE(back.tokens.empty());
  EXPECT_FALSE(back.first_is_not_best);
}

TEST(TokenSequence, RefusesOtherLengthsAndPositionsOutside) {
  TokenSequence back;
  const std::vector<std::byte> record = packed(sample());
  for (std::size_t bytes = 0; bytes < record.size(); ++bytes) {
    EXPECT_FALSE(unpack(std::span(record).first(bytes), back)) << bytes;
  }
  const auto refused = [&back](auto&& spoil) {
    TokenSequence sequence = sample();
    spoil(sequence);
    return !unpack(packed(sequence), back);
  };
  EXPECT_TRUE(refused([](TokenSequence& s) { s.values[0].at = 4; }));
  EXPECT_TRUE(refused([](TokenSequence& s) { s.targets[0].at = 4; }));
  EXPECT_TRUE(refused([](TokenSequence& s) { s.blocks[1].end = 5; }));
  EXPECT_TRUE(refused([](TokenSequence& s) { s.blocks[1].begin = 5; }));
  EXPECT_TRUE(refused([](TokenSequence& s) { s.tokens[0] = kChessTokens; }));
  EXPECT_FALSE(refused([](TokenSequence&) {}));
}

TEST(TokenSequence, SurvivesNoise) {
  std::mt19937 random(5);
  const std::vector<std::byte> record = packed(sample());
  std::size_t good = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> noisy = record;
    for (std::size_t change = random() % 4; change > 0; --change) {
      noisy[random() % noisy.size()] = static_cast<std::byte>(random());
    }
    TokenSequence back;
    good += unpack(noisy, back) ? 1 : 0;
  }
  EXPECT_GT(good, 1000U);
}

}  // namespace
}  // namespace ringfeed::formats
