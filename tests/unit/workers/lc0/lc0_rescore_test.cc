// The specification of workers/lc0/lc0_rescore.h.
#include "workers/lc0/lc0_rescore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/unit/workers/lc0/game_maker.h"

namespace ringfeed::formats {
namespace {

using test_games::kNan;
using test_games::PackedRecords;
using ::testing::ElementsAre;
using ::testing::Pointwise;

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}
std::vector<float> floats_of(const std::vector<std::uint32_t>& bits) {
  std::vector<float> values;
  for (const std::uint32_t each : bits) values.push_back(std::bit_cast<float>(each));
  return values;
}
std::vector<float> reshaped(const std::vector<float>& values, double temperature, double offset,
                            std::uint32_t origin = 6, bool expected = true) {
  std::vector<std::uint32_t> bits = bits_of(values);
  const RescoreOptions options{.policy_temperature = temperature, .policy_offset = offset};
  EXPECT_EQ(reshape_policy(bits, packed::filler_bits(origin), options), expected);
  return floats_of(bits);
}

MATCHER(IsClose, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 2e-7F; }

// ---- the policy

TEST(ReshapePolicy, ChangesNothingByDefault) {
  const std::vector<float> policy = {0.3F, -1.0F, 0.0F, kNan, -0.0F, 0.1F, 1e-40F, 0.59F};
  EXPECT_EQ(bits_of(reshaped(policy, 1, 0)), bits_of(policy))
      << "not a bit, though the sum is 0.99";
}

TEST(ReshapePolicy, RaisesToTheInverseTemperature) {
  // 0.64, 0.36 at temperature 2 are 0.8, 0.6, and 0.8 + 0.6 = 1.4.
  EXPECT_THAT(reshaped({0.64F, -1.0F, 0.36F, 0.0F}, 2, 0),
              Pointwise(IsClose(), {0.8F / 1.4F, -1.0F, 0.6F / 1.4F, 0.0F}));
  EXPECT_THAT(reshaped({0.75F, 0.25F}, 0.5, 0),
              Pointwise(IsClose(), {0.5625F / 0.625F, 0.0625F / 0.625F}));
}

TEST(ReshapePolicy, AddsTheOffsetToLegalMovesFirst) {
  EXPECT_THAT(reshaped({0.6F, 0.4F, 0.0F, -1.0F}, 1, 0.25),
              Pointwise(IsClose(), {0.85F / 1.75F, 0.65F / 1.75F, 0.25F / 1.75F, -1.0F}));
  EXPECT_THAT(reshaped({0.6F, 0.3F, 0.1F}, 1, -0.2), Pointwise(IsClose(), {0.8F, 0.2F, 0.0F}));
}

TEST(ReshapePolicy, LeavesZerosOfVersion3WhereIllegalMovesAreZeroToo) {
  EXPECT_THAT(reshaped({0.6F, 0.4F, 0.0F}, 1, 0.25, 3),
              Pointwise(IsClose(), {0.85F / 1.5F, 0.65F / 1.5F, 0.0F}));
}

TEST(ReshapePolicy, KeepsWhatWouldBeNothing) {
  const std::vector<float> policy = {0.6F, 0.4F, -1.0F};
  EXPECT_EQ(reshaped(policy, 2, -0.7, 6, false), policy);
  EXPECT_EQ(reshaped({-1.0F, -1.0F}, 2, 0, 6, false), std::vector<float>({-1.0F, -1.0F}));
  const std::vector<float> infinite = {std::numeric_limits<float>::infinity(), 0.5F};
  EXPECT_EQ(reshaped(infinite, 2, 0, 6, false), infinite);
}

TEST(ReshapePolicy, BearsExtremeTemperatures) {
  EXPECT_THAT(reshaped({0.5F, 0.3F, 0.2F}, 1e-6, 0), ElementsAre(1.0F, 0.0F, 0.0F));
  EXPECT_THAT(reshaped({0.5F, 0.3F, 0.0F}, 1e6, 0),
              Pointwise(::testing::FloatNear(1e-5F), {0.5F, 0.5F, 0.0F}));
}

// ---- games

struct Ply {
  float best_q = 0;
  float played_q = 0;
  float best_d = 0;
  float best_m = 0;
  std::uint8_t info = 0;
  std::uint32_t visits = 100;
};
std::vector<RecordTail> game_of_plies(const std::vector<Ply>& plies, float result_q, float result_d,
                                      float plies_left) {
  std::vector<RecordTail> game(plies.size());
  for (std::size_t i = 0; i < plies.size(); ++i) {
    RecordTail& tail = game[i];
    tail.set(v6::kBestQ, plies[i].best_q);
    tail.set(v6::kPlayedQ, plies[i].played_q);
    tail.set(v6::kBestD, plies[i].best_d);
    tail.set(v6::kBestM, plies[i].best_m);
    tail.set(v6::kInvarianceInfo, plies[i].info);
    tail.set(v6::kVisits, plies[i].visits);
    const std::size_t to_end = plies.size() - 1 - i;
    tail.set(v6::kResultQ, to_end % 2 == 0 ? result_q : -result_q);
    tail.set(v6::kResultD, result_d);
    tail.set(v6::kPliesLeft, plies_left + static_cast<float>(to_end));
    tail.set(v6::kPlayedIdx, static_cast<std::uint16_t>(100 + i));
  }
  return game;
}
std::vector<float> column(const std::vector<RecordTail>& game, std::size_t offset) {
  std::vector<float> values;
  for (const RecordTail& tail : game) values.push_back(tail.get<float>(offset));
  return values;
}

TEST(FillPliesLeft, CountsRecordsToTheEndWhereThereIsNone) {
  std::vector<RecordTail> game = game_of_plies({{}, {}, {}}, 0, 1, 0);
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(2, 1, 0));
  EXPECT_EQ(fill_plies_left(game), 1U) << "the last has 0";
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(2, 1, 1));
  for (RecordTail& tail : game) tail.set(v6::kPliesLeft, 0.0F);
  EXPECT_EQ(fill_plies_left(game), 3U);
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(3, 2, 1));
}

constexpr RescoreOptions::Deblunder kDeblunder{.threshold = 0.2, .width = 0.125};

TEST(Deblunder, LeavesAGameWithoutBlundersAlone) {
  std::vector<RecordTail> game =
      game_of_plies({{.best_q = 0.5, .played_q = 0.4F}, {}, {}}, 1, 0, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 0U);
  EXPECT_THAT(column(game, v6::kResultQ), ElementsAre(1, -1, 1));
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(3, 2, 1));
}

// The third of five: a whole blunder. What comes before it has the best move's value instead of the
// result, what comes after it the result.
TEST(Deblunder, GivesWhatComesBeforeABlunderTheBestMovesValue) {
  std::vector<RecordTail> game = game_of_plies(
      {{}, {}, {.best_q = 0.5, .played_q = -0.5, .best_d = 0.25, .best_m = 40}, {}, {}}, -1, 0, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 1U);
  EXPECT_THAT(column(game, v6::kResultQ), ElementsAre(0.5, -0.5, 0.5, 1, -1));
  EXPECT_THAT(column(game, v6::kResultD), ElementsAre(0.25, 0.25, 0.25, 0, 0));
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(42, 41, 40, 2, 1));
}

// best_q - played_q is 0.21875: (0.21875 - 0.2) / 0.125 + 0.5 = 0.65 of the way from the result
// (-1, 0, 3 plies) to (0.5, 0.25, 40).
TEST(Deblunder, MixesASmallBlunderIn) {
  std::vector<RecordTail> game = game_of_plies(
      {{}, {.best_q = 0.5, .played_q = 0.28125, .best_d = 0.25, .best_m = 40}, {}, {}}, -1, 0, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 1U);
  const float q = -1 + 0.65F * 1.5F;
  EXPECT_THAT(column(game, v6::kResultQ), Pointwise(IsClose(), {-q, q, 1.0F, -1.0F}));
  EXPECT_THAT(column(game, v6::kResultD), Pointwise(IsClose(), {0.1625F, 0.1625F, 0.0F, 0.0F}));
  EXPECT_THAT(column(game, v6::kPliesLeft),
              Pointwise(::testing::FloatNear(1e-5F), {28.05F, 27.05F, 2.0F, 1.0F}));
}

TEST(Deblunder, BeginsHalfAWidthBelowTheThreshold) {
  const auto blunders = [](float lost, const RescoreOptions::Deblunder& options) {
    std::vector<RecordTail> game = game_of_plies({{.best_q = lost}, {}}, 0, 1, 1);
    return deblunder(game, options);
  };
  EXPECT_EQ(blunders(0.137F, kDeblunder), 0U);
  EXPECT_EQ(blunders(0.138F, kDeblunder), 1U);
  const RescoreOptions::Deblunder sharp{.threshold = 0.25, .width = 0};
  EXPECT_EQ(blunders(0.25F, sharp), 0U);
  EXPECT_EQ(blunders(0.26F, sharp), 1U);
}

TEST(Deblunder, MixesABlunderBeforeAnotherIntoWhatIsLeftOfIt) {
  std::vector<RecordTail> game =
      game_of_plies({{.best_q = 0.7F, .played_q = -0.3F, .best_d = 0.1F, .best_m = 9},
                     {.best_q = 0.4F, .played_q = -0.6F, .best_d = 0.2F, .best_m = 7},
                     {}},
                    1, 0, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 2U);
  EXPECT_THAT(column(game, v6::kResultQ), Pointwise(IsClose(), {0.7F, 0.4F, 1.0F}));
  EXPECT_THAT(column(game, v6::kPliesLeft), ElementsAre(9, 7, 1));
}

TEST(Deblunder, TakesAProvenWinThatWasGivenAwayAndAProvenLossThatWasChosen) {
  const auto blunders = [](const Ply& ply) {
    std::vector<RecordTail> game = game_of_plies({ply, {}}, 0, 1, 1);
    const std::size_t count = deblunder(game, {.threshold = 1.9, .width = 0.1});
    EXPECT_EQ(game[0].get<float>(v6::kResultQ), count != 0 ? ply.best_q : 0);
    return count;
  };
  EXPECT_EQ(blunders({.best_q = 1, .played_q = 0.9F, .info = 8}), 1U);
  EXPECT_EQ(blunders({.best_q = 1, .played_q = 0.9F, .info = 32}), 0U) << "not proven";
  EXPECT_EQ(blunders({.best_q = 1, .played_q = 1, .info = 8}), 0U) << "still won";
  EXPECT_EQ(blunders({.best_q = -0.9F, .played_q = -1}), 1U);
  EXPECT_EQ(blunders({.best_q = -1, .played_q = -1}), 0U) << "lost anyway";
}

TEST(Deblunder, TrustsNoPlayedValuesWithoutVisits) {
  std::vector<RecordTail> game =
      game_of_plies({{.best_q = 1}, {.best_q = 1}, {.visits = 0}}, 0, 1, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 0U) << "the last record has none";
  game = game_of_plies({{.best_q = 1, .visits = 0}, {.best_q = 0.5F}, {}}, 0, 1, 1);
  EXPECT_EQ(deblunder(game, kDeblunder), 1U);
  std::vector<RecordTail> none;
  EXPECT_EQ(deblunder(none, kDeblunder), 0U);
}

// ---- what version 7 has more

// Written out as a sum: record i has (1 - theta) theta^(j - i) of the value of each later one, and
// what is left of the last.
TEST(FillShortTerm, WeighsLaterValuesLess) {
  std::mt19937_64 random(5);
  for (const double theta : {0.0, 0.5, 5.0 / 6.0, 1.0}) {
    std::vector<RecordTail> game(9);
    for (std::size_t i = 0; i < game.size(); ++i) {
      game[i].set(v6::kRootQ, static_cast<float>(random() % 2001) / 1000 - 1);
      game[i].set(v6::kRootD, static_cast<float>(random() % 1001) / 1000);
      game[i].set(v6::kVisits, std::uint32_t{1});
      game[i].set(v6::kPlayedIdx, static_cast<std::uint16_t>(100 + i));
    }
    fill_short_term(game, theta);
    for (std::size_t i = 0; i < game.size(); ++i) {
      double q = 0;
      double d = 0;
      for (std::size_t j = i; j < game.size(); ++j) {
        const double weight =
            std::pow(theta, static_cast<double>(j - i)) * (j + 1 == game.size() ? 1 : 1 - theta);
        const double sign = (j - i) % 2 == 0 ? 1 : -1;
        q += weight * sign * static_cast<double>(game[j].get<float>(v6::kRootQ));
        d += weight * static_cast<double>(game[j].get<float>(v6::kRootD));
      }
      EXPECT_NEAR(game[i].get<float>(v6::kQSt), q, 1e-7) << theta << " " << i;
      EXPECT_NEAR(game[i].get<float>(v6::kDSt), d, 1e-7) << theta << " " << i;
      EXPECT_EQ(game[i].get<std::uint16_t>(v6::kOppPlayedIdx), i < 8 ? 101 + i : 65535);
      EXPECT_EQ(game[i].get<std::uint16_t>(v6::kNextPlayedIdx), i < 7 ? 102 + i : 65535);
    }
  }
}

TEST(FillShortTerm, BearsADrawProbabilityBelowZeroAndNoNumber) {
  std::vector<RecordTail> game(2);
  game[0].set(v6::kRootD, -0.5F);
  game[1].set(v6::kRootD, -0.25F);
  fill_short_term(game, 0.5);
  EXPECT_THAT(column(game, v6::kDSt), ElementsAre(0, 0));
  EXPECT_EQ(game[0].get<std::uint16_t>(v6::kOppPlayedIdx), 65535) << "nobody knows what was played";
  game[1].set(v6::kRootD, kNan);
  fill_short_term(game, 0.5);
  EXPECT_TRUE(std::isnan(game[0].get<float>(v6::kDSt)));
}

// ---- into a frame

TEST(Repack, GivesTheRecordBackWithItsNewParts) {
  const testing::Bytes real = ringfeed::testing::sample_records(ringfeed::testing::kSampleGames[0]);
  std::mt19937_64 random(2);
  for (const std::uint32_t version : {3U, 4U, 5U, 6U, 7U}) {
    for (const bool noise : {false, true}) {
      const std::size_t bytes = frame_bytes_of_version(version);
      testing::Bytes record(bytes);
      for (std::byte& each : record) each = static_cast<std::byte>(random());
      const std::size_t moves_at = version < 5 ? 4 : 8;
      if (!noise) {
        std::memcpy(record.data() + moves_at, real.data() + v6::kPolicy, kPolicyBytes);
      }
      std::memcpy(record.data(), &version, 4);
      if (version < 6) record[version == 5 ? 8279 : 8275] = std::byte{1};
      const PackedRecords packed(record, version);
      const PackedFrameView& view = packed.views()[0];
      ASSERT_EQ(view.kind, noise || version == 3 ? PackedKind::kRaw : PackedKind::kPacked);

      const std::uint32_t origin = rescored_origin(version);
      RecordTail tail(view);
      tail.set(v6::kResultQ, 0.125F);
      if (origin == 7) tail.set(v6::kNextPlayedIdx, std::uint16_t{77});
      std::vector<std::uint32_t> policy(view.policy_entries);
      std::memcpy(policy.data(), view.policy_values, 4 * policy.size());
      policy[0] = packed::filler_bits(origin);
      policy[1] = 0x3F123456;
      testing::Bytes frame(packed_bytes_max, std::byte{0xEE});
      const std::size_t used = repack(view, origin, tail.bytes(), policy, frame);
      ASSERT_NE(used, 0U);
      EXPECT_EQ(repack(view, origin, tail.bytes(), policy, std::span(frame).first(used - 1)), 0U);

      // The same by hand: the whole record, unpacked, changed, packed.
      testing::Bytes expected(kV7RecordBytes);
      const std::size_t expected_bytes =
          unpack(std::span(view.head - packed::kHead, view.frame_bytes), expected.data());
      ASSERT_NE(expected_bytes, 0U);
      const std::uint32_t becomes = origin == 7 ? 7 : 6;
      std::memcpy(expected.data(), &becomes, 4);
      for (std::size_t entry = 0; entry < policy.size(); ++entry) {
        std::uint16_t index = static_cast<std::uint16_t>(entry);
        if (view.policy_indices != nullptr) std::memcpy(&index, view.policy_indices + 2 * entry, 2);
        std::memcpy(expected.data() + v6::kPolicy + 4U * index, &policy[entry], 4);
      }
      const float q = 0.125F;
      std::memcpy(expected.data() + v6::kResultQ, &q, 4);
      if (origin == 7) {
        const std::uint16_t next = 77;
        std::memcpy(expected.data() + v6::kNextPlayedIdx, &next, 2);
      }
      testing::Bytes got(kV7RecordBytes);
      ASSERT_EQ(unpack(std::span(frame).first(used), got.data()),
                origin == 7 ? kV7RecordBytes : kV6RecordBytes);
      EXPECT_EQ(got, expected) << "version " << version << (noise ? ", noise" : "");
      EXPECT_EQ(view_packed(frame).value().origin, origin);
    }
  }
}

}  // namespace
}  // namespace ringfeed::formats
