// The specification of workers/bitext/bitext_sampling.h and bitext_plan.h;
// tests/data/fairseq/outputs has vectors that NumPy and fairseq gave.
#include "workers/bitext/bitext_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

namespace ringfeed::formats {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::Eq;
using Numbers = std::vector<std::uint64_t>;

Json vectors(const std::string& name) {
  return Json::parse(std::ifstream(RINGFEED_SOURCE_DIR "/tests/data/fairseq/outputs/" + name));
}

NumpyRandom seeded(const Json& seed) {
  if (seed.is_number()) return NumpyRandom(seed.get<std::uint32_t>());
  const auto key = seed.get<std::vector<std::uint32_t>>();
  return NumpyRandom(std::span<const std::uint32_t>(key));
}

double number_of(const Json& hex) { return std::strtod(hex.get<std::string>().c_str(), nullptr); }
std::vector<double> numbers(const Json& hex) {
  std::vector<double> values;
  for (const Json& value : hex) values.push_back(number_of(value));
  return values;
}

TEST(NumpyRandom, GivesWhatNumpyGives) {
  const Json all = vectors("u_random.json");
  for (const Json& one : all["u32"]) {
    NumpyRandom random = seeded(one["seed"]);
    for (const Json& word : one["out"]) {
      ASSERT_EQ(random.at_most(0xffffffffU), word.get<std::uint64_t>());
    }
  }
  for (const Json& one : all["double"]) {
    NumpyRandom random = seeded(one["seed"]);
    for (const Json& value : one["out"]) ASSERT_EQ(random.uniform(), number_of(value));
  }
  for (const Json& one : all["randint"]) {
    NumpyRandom random = seeded(one["seed"]);
    const auto largest = one["high_inclusive"].get<std::uint64_t>();
    for (const Json& value : one["out"]) {
      ASSERT_EQ(random.at_most(largest), value.get<std::uint64_t>()) << largest;
    }
  }
  for (const Json& one : all["choice_replace"]) {
    NumpyRandom random = seeded(one["seed"]);
    for (const Json& value : one["out"]) {
      ASSERT_EQ(random.at_most(one["n"].get<std::uint64_t>() - 1), value.get<std::uint64_t>());
    }
  }
  for (const Json& one : all["permutation"]) {
    NumpyRandom random = seeded(one["seed"]);
    std::vector<std::uint32_t> items(one["n"].get<std::size_t>());
    std::iota(items.begin(), items.end(), 0U);
    random.shuffle(std::span(items));
    ASSERT_EQ(items, one["out"].get<std::vector<std::uint32_t>>());
  }
}

// Drawn ahead, in blocks with one mask: the same as one after the other, and nothing too many.
TEST(NumpyRandom, ShufflesAsOneByOne) {
  for (std::size_t count : {0U, 1U, 2U, 3U, 64U, 65U, 127U, 128U, 129U, 1000U, 4097U, 100000U}) {
    NumpyRandom random(7);
    NumpyRandom plain(7);
    std::vector<std::uint32_t> items(count);
    std::iota(items.begin(), items.end(), 0U);
    std::vector<std::uint32_t> expected = items;
    random.shuffle(std::span(items));
    for (std::size_t i = count; i-- > 1;) std::swap(expected[i], expected[plain.at_most(i)]);
    ASSERT_EQ(items, expected) << count;
    ASSERT_EQ(random.drawn(), plain.drawn()) << count;
  }
}

TEST(Sampling, RatiosAndVirtualSizesAreThoseOfFairseq) {
  const Json all = vectors("u_random.json");
  for (const Json& one : all["ratios"]) {
    const auto sizes = one["sizes"].get<Numbers>();
    SamplingSettings settings;
    settings.rules = BitextRules::kNllb;
    settings.method = SamplingMethod::kTemperature;
    settings.temperature = one["temperature"].get<double>();
    std::vector<ShardSizes> directions;
    for (const std::uint64_t size : sizes) directions.push_back({size});
    const EpochShape shape = epoch_shape(settings, directions, {}, 1);
    const std::vector<double> ratios = numbers(one["ratios"]);
    ASSERT_EQ(shape.ratios, ratios);
    ASSERT_EQ(shape.virtual_size, one["virtual_size"].get<std::uint64_t>());
    ASSERT_EQ(virtual_data_size(sizes, ratios), shape.virtual_size);
    const double sum = pairwise_sum(ratios);
    const std::vector<double> normalized = numbers(one["normalized"]);
    for (std::size_t i = 0; i < ratios.size(); ++i) ASSERT_EQ(ratios[i] / sum, normalized[i]);
    NumpyRandom random(1);
    const Numbers counts = random_counts(random, shape.virtual_size, ratios);
    const auto truncated = one["truncated_counts"].get<Numbers>();
    std::uint64_t dealt_out = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_GE(counts[i], truncated[i]);
      dealt_out += counts[i] - truncated[i];
    }
    ASSERT_EQ(dealt_out, one["missing"].get<std::uint64_t>());
    ASSERT_EQ(random.drawn(), 2 * dealt_out);
  }
}

TEST(Sampling, MissingSentencesAreDealtOutByTheShares) {
  const Json all = vectors("u_random.json");
  for (const Json& one : all["choice_p"]) {
    NumpyRandom random = seeded(one["seed"]);
    // As many are missing as are drawn: nothing is left of shares of less than one.
    const std::vector<double> shares = numbers(one["p"]);
    Numbers expected(shares.size());
    for (const Json& chosen : one["out"]) ++expected[chosen.get<std::size_t>()];
    std::vector<double> upto(shares.size());
    std::partial_sum(shares.begin(), shares.end(), upto.begin());
    Numbers counts(shares.size());
    for (std::size_t i = 0; i < one["k"].get<std::size_t>(); ++i) {
      ++counts[static_cast<std::size_t>(
          std::ranges::upper_bound(upto, random.uniform() * upto.back()) - upto.begin())];
    }
    EXPECT_EQ(counts, expected);
  }
}

TEST(Sampling, PairwiseSumsAreOfHalvesOfEights) {
  // The parts in their order, by hand, for a length of each kind.
  EXPECT_EQ(pairwise_sum({}), 0.0);
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> some(0, 1e9);
  std::vector<double> v(300);
  for (double& value : v) value = some(random);
  const auto eights = [&](std::size_t first, std::size_t count) {
    double r[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= count; ++i) r[i % 8] = i < 8 ? v[first + i] : r[i % 8] + v[first + i];
    for (; i < count / 8 * 8; ++i) r[i % 8] += v[first + i];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < count; ++i) sum += v[first + i];
    return sum;
  };
  EXPECT_EQ(pairwise_sum(std::span(v).first(5)), v[0] + v[1] + v[2] + v[3] + v[4]);
  EXPECT_EQ(pairwise_sum(std::span(v).first(100)), eights(0, 100));
  EXPECT_EQ(pairwise_sum(std::span(v).first(128)), eights(0, 128));
  EXPECT_EQ(pairwise_sum(std::span(v).first(129)), eights(0, 64) + eights(64, 65));
  EXPECT_EQ(pairwise_sum(v),
            (eights(0, 72) + eights(72, 72)) + (eights(144, 72) + eights(216, 84)));
  // What the order of the additions decides.
  std::vector<double> small(300, 1.0);
  small[0] = 0x1.0p53;
  EXPECT_EQ(pairwise_sum(small), 0x1.0p53 + 290.0);
}

TEST(Sampling, OursApportionsWithoutChance) {
  const std::vector<double> ratios = {1.0, 1.0, 1.0};
  EXPECT_THAT(apportioned_counts(10, ratios), ElementsAre(4, 3, 3));
  EXPECT_THAT(apportioned_counts(0, ratios), ElementsAre(0, 0, 0));
  EXPECT_THAT(apportioned_counts(7, std::vector<double>{0.0, 0.0}), ElementsAre(0, 0));
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> some(1 + random() % 50);
    for (double& ratio : some) ratio = std::uniform_real_distribution<double>(0.001, 5)(random);
    const std::uint64_t total = random() % 1000000;
    const Numbers counts = apportioned_counts(total, some);
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), total);
    const double sum = pairwise_sum(some);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(counts[i]), static_cast<double>(total) * some[i] / sum, 1.0);
    }
  }
}

// What a temperature of 1 must give: every sentence once.
TEST(Sampling, OursGivesEverySentenceOnceAtTemperatureOne) {
  SamplingSettings settings;
  settings.method = SamplingMethod::kTemperature;
  settings.temperature = 1;
  const std::vector<ShardSizes> directions = {{300}, {180}, {500}, {1}, {77777}};
  const EpochShape shape = epoch_shape(settings, directions, {}, 5);
  EXPECT_THAT(apportioned_counts(shape.virtual_size, shape.ratios),
              ElementsAre(300, 180, 500, 1, 77777));
}

TEST(Shapes, FairseqChangesShardsOneVirtualEpochLate) {
  SamplingSettings settings;
  settings.rules = BitextRules::kNllb;
  settings.method = SamplingMethod::kTemperature;
  settings.virtual_data_size = 600;
  settings.virtual_epoch_size = 250;
  settings.sharded = true;
  const std::vector<ShardSizes> directions = {{300, 220}, {120}, {420, 410}};
  std::vector<std::uint32_t> shards;
  Numbers begins;
  Numbers drawn;
  for (std::uint64_t epoch = 1; epoch <= 8; ++epoch) {
    const EpochShape shape = epoch_shape(settings, directions, {}, epoch);
    shards.push_back(shape.shards[0]);
    begins.push_back(shape.slice_begin);
    drawn.push_back(shape.drawn_in);
    EXPECT_EQ(shape.shards[1], 0U);
    // Lengths are filed under the wrong shard, so that ratios stay.
    EXPECT_EQ(shape.ratios, epoch_shape(settings, directions, {}, 1).ratios);
  }
  EXPECT_THAT(shards, ElementsAre(0, 0, 0, 0, 1, 1, 1, 0));
  EXPECT_THAT(begins, ElementsAre(0, 250, 500, 0, 250, 500, 0, 250));
  EXPECT_THAT(drawn, ElementsAre(1, 1, 1, 4, 5, 5, 7, 8));
  // With one virtual epoch a pass every shard serves two epochs running.
  settings.virtual_epoch_size = 600;
  shards.clear();
  for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) {
    const EpochShape shape = epoch_shape(settings, directions, {}, epoch);
    shards.push_back(shape.shards[0]);
    EXPECT_EQ(shape.drawn_in, epoch);
  }
  EXPECT_THAT(shards, ElementsAre(0, 0, 1, 1, 0, 0));
  // After a resume it is on time.
  settings.virtual_epoch_size = 250;
  const EpochShape resumed = epoch_shape(settings, directions, {.epoch = 4}, 4);
  EXPECT_EQ(resumed.shards[0], 1U);
  EXPECT_EQ(resumed.drawn_in, 4U);
}

// Of our rules: how late an epoch is does not decide how long its shape takes.
TEST(Shapes, OursComeAgainWithTheShards) {
  SamplingSettings settings;
  settings.method = SamplingMethod::kTemperature;
  settings.virtual_epoch_size = 37;
  const std::vector<ShardSizes> directions = {{100, 50}, {30}, {10, 200, 30}};
  std::vector<EpochShape> period;
  for (std::uint64_t epoch = 3;; ++epoch) {
    period.push_back(epoch_shape(settings, directions, {3, 5}, epoch));
    if (period.back().pass == 5 + 6) break;
  }
  const std::uint64_t epochs = period.size() - 1;
  ASSERT_GT(epochs, 12U);
  for (const std::uint64_t epoch : {epochs + 3, 5 * epochs + 7, std::uint64_t{10'000'000}}) {
    EpochShape expected = period[(epoch - 3) % epochs];
    const std::uint64_t later = (epoch - 3) / epochs * 6;
    expected.pass += later;
    expected.drawn_in += later;
    EXPECT_EQ(epoch_shape(settings, directions, {3, 5}, epoch), expected) << epoch;
  }
}

TEST(Shapes, FairseqForgetsLengthsAtAResume) {
  SamplingSettings settings;
  settings.rules = BitextRules::kNllb;
  settings.method = SamplingMethod::kTemperature;
  settings.sharded = true;
  const std::vector<ShardSizes> directions = {{300, 100}, {120}};
  const double total = 400 + 120;
  EXPECT_EQ(epoch_shape(settings, directions, {}, 1).ratios[0], std::pow(600.0 / 720, 1 / 1.5));
  EXPECT_EQ(epoch_shape(settings, directions, {}, 2).ratios[0], std::pow(400.0 / total, 1 / 1.5));
  EXPECT_EQ(epoch_shape(settings, directions, {.epoch = 2}, 2).ratios[0],
            std::pow(200.0 / 320, 1 / 1.5));
  settings.use_local_shard_size = true;
  EXPECT_EQ(epoch_shape(settings, directions, {}, 2).ratios[0], std::pow(100.0 / 220, 1 / 1.5));
}

TEST(Shapes, OursChangesShardsOnTimeAndCoversEachPass) {
  SamplingSettings settings;
  settings.virtual_epoch_size = 100;
  const std::vector<ShardSizes> directions = {{250, 120}, {10}};
  std::vector<std::uint32_t> shards;
  Numbers sizes;
  for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) {
    const EpochShape shape = epoch_shape(settings, directions, {}, epoch);
    shards.push_back(shape.shards[0]);
    sizes.push_back(shape.slice_size);
  }
  EXPECT_THAT(shards, ElementsAre(0, 0, 0, 1, 1, 0));
  EXPECT_THAT(sizes, ElementsAre(100, 100, 60, 100, 30, 100));
  // A chain that begins later, with a pass of its own.
  const EpochShape later = epoch_shape(settings, directions, {.epoch = 5, .pass = 1}, 6);
  EXPECT_EQ(later.shards[0], 1U);
  EXPECT_EQ(later.slice_size, 30U);
}

TEST(Shapes, OursKnowsAllShardsFromTheBegin) {
  SamplingSettings settings;
  settings.method = SamplingMethod::kTemperature;
  const std::vector<ShardSizes> directions = {{300, 100}, {100}};
  const EpochShape first = epoch_shape(settings, directions, {}, 1);
  EXPECT_EQ(first.ratios, epoch_shape(settings, directions, {}, 2).ratios);
  EXPECT_EQ(first.ratios[0], std::pow(400.0 / 500, 1 / 1.5));
  // An empty shard has no share.
  const std::vector<ShardSizes> uneven = {{300, 0}, {100}};
  EXPECT_EQ(epoch_shape(settings, uneven, {}, 2).ratios[0], 0.0);
}

TEST(BatchCutter, CutsAsFairseqDoes) {
  const Json all = vectors("u_batch_by_size.json");
  for (const Json& one : all["cases"]) {
    BatchRules rules;
    rules.max_tokens = static_cast<std::uint32_t>(std::max(0, one["max_tokens"].get<int>()));
    rules.batch_size = static_cast<std::uint32_t>(std::max(0, one["max_sentences"].get<int>()));
    rules.multiple = one["mult"].get<std::uint32_t>();
    Numbers lengths;
    std::uint64_t before = 0;
    const auto emit = [&](std::uint64_t position) {
      lengths.push_back(position - before);
      before = position;
    };
    BatchCutter cutter(rules);
    for (const Json& tokens : one["num_tokens"]) cutter.add(tokens.get<std::uint64_t>(), 1, emit);
    cutter.finish(emit);
    EXPECT_EQ(lengths, one["batch_lengths"].get<Numbers>()) << one.dump();
  }
}

// Keys by which each sentence of a direction is known.
std::vector<LengthKey> own_keys(std::uint64_t count) {
  std::vector<LengthKey> keys(count);
  std::iota(keys.begin(), keys.end(), 1000U);
  return keys;
}

// Their numbers; all have their keys.
template <typename Index>
std::vector<Index> numbers_of(const LargeVector<DrawnSentence<Index>>& drawn, std::uint64_t first) {
  std::vector<Index> all;
  for (const auto& [sentence, key] : drawn) {
    if (sentence != 99) {
      EXPECT_EQ(key, 1000 + sentence - first);
    }
    all.push_back(sentence);
  }
  return all;
}

TEST(Drawing, TheFirstOfAPermutationOrEachForItself) {
  const std::vector<LengthKey> keys = own_keys(10);
  NumpyRandom random(0);
  LargeVector<DrawnSentence<std::uint32_t>> drawn = {{99, 0}};
  draw_sentences(random, 100, keys, 4, drawn);
  EXPECT_THAT(numbers_of(drawn, 100), ElementsAre(99, 102, 108, 104, 109));
  NumpyRandom whole(0);
  LargeVector<DrawnSentence<std::uint64_t>> none;
  draw_sentences(whole, 0, keys, 0, none);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(whole.drawn(), random.drawn()) << "all of it is drawn, however little is wanted";
  NumpyRandom again(0);
  LargeVector<DrawnSentence<std::uint32_t>> repeated;
  draw_sentences(again, 0, std::span(keys).first(5), 12, repeated);
  EXPECT_THAT(numbers_of(repeated, 0), ElementsAre(4, 0, 3, 3, 3, 1, 3, 2, 4, 0, 0, 4));
}

// Many are drawn in blocks: the same as one after the other.
TEST(Drawing, EachForItselfInBlocksAsOneByOne) {
  const std::vector<LengthKey> keys = own_keys(1000);
  for (const std::uint64_t count : {1001U, 1023U, 1024U, 5000U}) {
    NumpyRandom random(3);
    NumpyRandom plain(3);
    LargeVector<DrawnSentence<std::uint64_t>> drawn;
    draw_sentences(random, 7, keys, count, drawn);
    for (const std::uint64_t sentence : numbers_of(drawn, 7)) {
      ASSERT_EQ(sentence, 7 + plain.at_most(999));
    }
    ASSERT_EQ(drawn.size(), count);
    ASSERT_EQ(random.drawn(), plain.drawn());
  }
}

TEST(Drawing, TurnsGoRoundAndRound) {
  const std::vector<LengthKey> keys = own_keys(10);
  std::vector<std::uint32_t> visits;
  const auto turn = [&](std::uint64_t count, std::uint64_t visit) {
    NumpyRandom random(3);
    LargeVector<DrawnSentence<std::uint32_t>> drawn;
    take_turns(random, 50, keys, count, visit, drawn);
    return numbers_of(drawn, 50);
  };
  const std::vector<std::uint32_t> all = turn(10, 0);
  EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), 10U);
  for (std::uint64_t visit = 0; visit < 10; ++visit) {
    for (const std::uint32_t sentence : turn(7, visit)) visits.push_back(sentence);
    EXPECT_EQ(std::set<std::uint32_t>(visits.end() - 7, visits.end()).size(), 7U)
        << "no sentence twice in a visit";
  }
  // Seven rounds of all.
  for (std::size_t i = 0; i < visits.size(); ++i) ASSERT_EQ(visits[i], all[i % 10]);
  const std::vector<std::uint32_t> more = turn(23, 1);
  for (std::size_t i = 0; i < more.size(); ++i) ASSERT_EQ(more[i], all[(23 + i) % 10]);
}

// Against a stable sort; of so many sentences out of `sentences`.
template <typename Index>
void check_order(std::uint32_t longest, std::uint64_t seed, std::uint64_t sentences,
                 std::uint64_t count, bool by_chance) {
  std::mt19937_64 random(seed);
  std::vector<LengthKey> keys(sentences);
  for (LengthKey& key : keys) {
    key = length_key(random() % (longest + longest / 5 + 1), random() % (longest + longest / 5 + 1),
                     longest, longest);
  }
  keys[0] = kNoTokens;
  LargeVector<DrawnSentence<Index>> drawn(count);
  for (auto& [sentence, key] : drawn) {
    sentence = static_cast<Index>(random() % keys.size());
    key = keys[sentence];
  }
  LargeVector<DrawnSentence<Index>> shuffled = drawn;
  NumpyRandom ties(5);
  if (by_chance) {
    NumpyRandom same(5);
    same.shuffle(std::span(shuffled));
  }
  std::vector<Index> expected;
  std::uint64_t too_long = 0;
  for (const auto& [sentence, key] : shuffled) {
    if (key < kLeftOutFrom) expected.push_back(sentence);
    too_long += key == kBeyondLimits ? 1 : 0;
  }
  std::ranges::stable_sort(expected, {}, [&](Index i) { return keys[i]; });
  BatchRules rules;
  rules.max_tokens = 3 * longest;
  rules.multiple = 4;
  OrderedBatches<Index> batches;
  batches.sentences = {7};
  batches.ends = {1};
  order_and_cut(drawn, by_chance ? &ties : nullptr, rules, batches);
  ASSERT_EQ(drawn.capacity(), 0U);
  ASSERT_TRUE(std::equal(batches.sentences.begin() + 1, batches.sentences.end(), expected.begin(),
                         expected.end()));
  ASSERT_EQ(batches.too_long, too_long);
  ASSERT_EQ(batches.too_long + batches.without_tokens + expected.size(), count);
  Numbers ends = {1};
  BatchCutter cutter(rules);
  const auto emit = [&](std::uint64_t position) { ends.push_back(1 + position); };
  for (const Index i : expected) cutter.add(std::max(keys[i] >> 16, keys[i] & 0xffffU), 1, emit);
  cutter.finish(emit);
  ASSERT_EQ(Numbers(batches.ends.begin(), batches.ends.end()), ends);
}

TEST(Order, BySourceThenTargetThenAsGiven) {
  std::mt19937_64 random(1);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::uint64_t sentences = 1 + random() % 3000;
    const std::uint64_t count = random() % 4000;
    const bool by_chance = seed % 2 == 1;
    check_order<std::uint32_t>(30, seed, sentences, count, by_chance);
    check_order<std::uint64_t>(200, seed, sentences, count, by_chance);
    // Too many pairs of lengths for one table.
    check_order<std::uint32_t>(kPositionsMax, seed, sentences, count, by_chance);
    check_order<std::uint64_t>(9000, seed, sentences, count, by_chance);
  }
}

// Enough for two threads; with few and with many pairs of lengths, which are two passes of one.
TEST(Order, OfManySentencesIsTheSame) {
  for (const std::uint32_t longest : {1U, 60U, 1500U, kPositionsMax}) {
    for (const bool by_chance : {false, true}) {
      check_order<std::uint32_t>(longest, longest, 200'000, 300'001, by_chance);
    }
  }
  check_order<std::uint64_t>(60, 1, 300'000, 1'000'003, true);
}

TEST(Order, MainThrowsAnOddLastBatchAway) {
  const LengthKey key = length_key(3, 4, 10, 10);
  BatchRules rules;
  rules.batch_size = 8;
  for (const bool drop : {false, true}) {
    rules.drop_odd_last = drop;
    LargeVector<DrawnSentence<std::uint32_t>> drawn;
    for (std::uint32_t i = 0; i < 21; ++i) drawn.push_back({i, key});
    OrderedBatches<std::uint32_t> batches;
    order_and_cut(drawn, nullptr, rules, batches);
    EXPECT_THAT(batches.ends, Eq(drop ? LargeVector<std::uint32_t>{8, 16}
                                      : LargeVector<std::uint32_t>{8, 16, 21}));
    EXPECT_EQ(batches.sentences.size(), drop ? 16U : 21U);
    LargeVector<DrawnSentence<std::uint32_t>> few = {{1, key}, {2, key}, {3, key}};
    OrderedBatches<std::uint32_t> small;
    order_and_cut(few, nullptr, rules, small);
    EXPECT_EQ(small.ends.size(), drop ? 0U : 1U);
  }
}

}  // namespace
}  // namespace ringfeed::formats
