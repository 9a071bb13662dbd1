// The specification of workers/lc0/position_choice.h; what is chosen by rate and by count is in
// chunk_unpacker_test.cc.
#include "workers/lc0/position_choice.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "ringfeed/worker/random.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"

namespace ringfeed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::uint32_t> by_weight(std::uint64_t key, const std::vector<float>& weights,
                                     std::uint64_t use, std::uint32_t count) {
  std::vector<std::uint32_t> out;
  sample_by_weight(key, weights, use, count, out);
  return out;
}

// Until a shuffle is used up nothing comes twice: the uses together are its kept positions, once.
TEST(SampleByWeight, GivesEachKeptPositionOnceBeforeAnyAgain) {
  const std::vector<float> all(20, 0.5F);
  std::map<std::uint32_t, int> times;
  for (std::uint64_t use = 0; use < 60; ++use) {
    const std::vector<std::uint32_t> chosen = by_weight(7, all, use, 1);
    ASSERT_EQ(chosen.size(), 1U);
    ++times[chosen[0]];
  }
  for (std::uint32_t position = 0; position < 20; ++position) {
    EXPECT_EQ(times[position], 3) << "equal weights are all the largest: all are kept";
  }
}

TEST(SampleByWeight, GivesPositionsAsOftenAsTheirWeights) {
  const std::vector<float> weights = {1.0F, 0.5F, 0.25F, 0.0F, 2.0F};
  std::vector<double> times(weights.size());
  constexpr std::uint64_t kUses = 3000;
  std::uint64_t given = 0;
  for (std::uint64_t key = 0; key < 10; ++key) {
    for (std::uint64_t use = 0; use < kUses / 10; ++use) {
      for (const std::uint32_t position : by_weight(key, weights, use, 2)) {
        times[position] += 1;
        ++given;
      }
    }
  }
  EXPECT_EQ(given, 2 * kUses);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / 3.75;
    EXPECT_NEAR(times[i] / static_cast<double>(given), share, 0.02) << i;
  }
  EXPECT_EQ(times[3], 0);
}

TEST(SampleByWeight, GivesTheSameForTheSameUseAndLeavesNothingOutBetweenUses) {
  const std::vector<float> weights = {0.1F, 0.9F, 0.4F, 0.7F};
  std::vector<std::uint32_t> one_by_one;
  for (std::uint64_t use = 0; use < 12; ++use) {
    for (const std::uint32_t position : by_weight(3, weights, use, 1))
      one_by_one.push_back(position);
  }
  std::sort(one_by_one.begin(), one_by_one.end());
  EXPECT_EQ(by_weight(3, weights, 0, 12), one_by_one);
  EXPECT_EQ(by_weight(3, weights, 5, 2), by_weight(3, weights, 5, 2));
}

TEST(SampleByWeight, TakesAllTheSameWhereNoWeightIsAboveZero) {
  std::vector<std::uint32_t> counted;
  sample_by_count(11, 4, 3, 2, counted);
  EXPECT_EQ(by_weight(11, {0, 0, 0, 0}, 3, 2), counted);
  EXPECT_EQ(by_weight(11, {0, -1, std::nanf(""), 0}, 3, 2), counted);
  EXPECT_THAT(by_weight(11, {}, 3, 2), IsEmpty());
}

PositionSamplingConfig weights_config(const std::string& text) {
  PositionSamplingConfig config;
  RF_CHECK(google::protobuf::TextFormat::ParseFromString(text, &config), text.size());
  return config;
}

float weight_of(const std::string& text, float best_q, float orig_q, float kld,
                std::uint32_t version = 6) {
  std::string record = testing::lc0_record(1);
  record.resize(formats::kV7RecordBytes);
  const auto put = [&record](std::size_t offset, float value) {
    std::memcpy(record.data() + offset, &value, sizeof value);
  };
  put(formats::v6::kBestQ, best_q);
  put(formats::v6::kOrigQ, orig_q);
  put(formats::v6::kPolicyKld, kld);
  return record_weight(weights_config(text), reinterpret_cast<const std::byte*>(record.data()),
                       version);
}

TEST(PositionWeight, IsAsTheFormulaSays) {
  const std::string both = "diff_focus_q_weight: 6 diff_focus_pol_scale: 3.5 ";
  EXPECT_FLOAT_EQ(weight_of(both, 0.5F, 0.25F, 0.1F), (6 * 0.25F + 0.1F) / 9.5F);
  EXPECT_FLOAT_EQ(weight_of(both + "diff_focus_alpha: 2 diff_focus_beta: 0.1 diff_focus_gamma: 2 "
                                   "diff_focus_tau: 5",
                            -0.5F, 0.5F, 0.2F),
                  std::pow(2 * (6 * 1.0F + 0.2F) / 9.5F + 0.1F, 2.0F));
  EXPECT_FLOAT_EQ(weight_of(both + "diff_focus_alpha: 100 diff_focus_tau: 0.75", 1, -1, 1), 0.75F);
  EXPECT_FLOAT_EQ(weight_of("diff_focus_q_weight: 1", 0.5F, 0.25F, 0.5F), 0.75F / 2);
}

TEST(PositionWeight, IsTheDefaultWhereNothingIsKnown) {
  EXPECT_EQ(weight_of("default_weight: 0.3", 1, 0, 1), 0.3F) << "neither setting is given";
  const std::string one = "diff_focus_pol_scale: 2 default_weight: 0.3";
  EXPECT_EQ(weight_of(one, 1, std::nanf(""), 1), 0.3F);
  EXPECT_EQ(weight_of(one, 1, 0, 1, 5), 0.3F) << "version 5 has no orig_q";
  EXPECT_EQ(weight_of(one, 1, 0, 1, 7), 0.5F);
  EXPECT_EQ(weight_of("diff_focus_q_weight: 0 diff_focus_pol_scale: 0", 1, 1, 0), 0.0F)
      << "nothing divided by nothing is not preferred";
}

std::optional<PositionChoice> choice_behind(const std::string& unpacker,
                                            const std::string& input = "pool") {
  const StageViews stages(
      fmt::format("stages {{ name: 'pool' shuffling_chunk_pool {{ }} }}"
                  "stages {{ name: 'take' chunk_unpacker {{ input: '{}' {} }} }}",
                  input, unpacker));
  return consumer_choice(stages["pool"].links.output("output"),
                         [](std::string_view name) { return mix(name); });
}

TEST(ConsumerChoice, IsThatOfTheUnpackerThatReadsTheOutput) {
  EXPECT_FALSE(choice_behind("position_sampling_rate: 1").has_value()) << "everything is wanted";
  EXPECT_FALSE(choice_behind("position_sampling_rate: 0.5", "other").has_value());
  for (const char* input : {"pool", "pool.output"}) {
    const auto choice = choice_behind("position_sampling_rate: 0.5", input);
    ASSERT_TRUE(choice.has_value()) << input;
    std::vector<std::uint32_t> chosen;
    std::vector<std::uint32_t> expected;
    choice->choose(9, 40, 3, {}, chosen);
    sample_by_rate(mix(mix("take"), 9), 40, 3, 0.5, expected);
    EXPECT_EQ(chosen, expected);
  }
  const auto weighted = choice_behind("position_count: 2 position_sampling { default_weight: 1 }");
  ASSERT_TRUE(weighted.has_value());
  EXPECT_TRUE(weighted->weighted());
}

}  // namespace
}  // namespace ringfeed
