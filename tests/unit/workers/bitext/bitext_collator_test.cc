// The specification of bitext_collator.h: each plan becomes one batch at its place, whatever
// becomes of the lanes, the files and the plans. What the arrays of a batch are is
// tests/unit/workers/bitext/bitext_collate_test.cc's business.
#include "workers/bitext/bitext_collator.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "ringfeed/shm/lane_page.h"
#include "tests/support/makers/bitext_maker.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using formats::BatchKind;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename Message>
Message parsed(const std::string& text) {
  Message message;
  RF_CHECK(google::protobuf::TextFormat::ParseFromString(text, &message), text.size());
  return message;
}

std::string feed_text(const std::string& limits, const std::string& source = "") {
  return fmt::format(
      "feed_output {{ dispatch: ORDERED slots: 64 }} stages {{ name: 'plans' epoch_planner {{ "
      "input: 'text' {} }} }} stages {{ name: 'text' bitext_source {{ {} }} }}",
      limits, source);
}
std::string stage_text(const std::string& settings) {
  return fmt::format("name: 'collate' bitext_collator {{ input: 'plans' {} }}", settings);
}

BatchSchema schema_of(const std::string& limits, const std::string& settings) {
  BatchSchema schema;
  const StageViews stages(feed_text(limits) + "stages {" + stage_text(settings) + "}");
  bitext_collator_type().batch(stages["collate"], schema);
  return schema;
}
const TensorSpec* tensor(const BatchSchema& schema, std::string_view name) {
  for (const TensorSpec& spec : schema.tensors()) {
    if (spec.name() == name) return &spec;
  }
  return nullptr;
}

std::vector<std::string> limit_problems(const std::string& limits, const std::string& settings,
                                        const std::string& source = "") {
  std::vector<std::string> texts;
  const StageViews stages(feed_text(limits, source) + "stages {" + stage_text(settings) + "}");
  for (const Problem& problem : bitext_collator_type().problems(stages["collate"])) {
    texts.push_back(problem.field + ": " + problem.text);
  }
  return texts;
}

// An array of a batch as numbers; its shape is the batch's.
struct Array {
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> values;
};
Array array(const BatchSchema& schema, const RigBatch& batch, std::string_view name) {
  const TensorSpec* const spec = tensor(schema, name);
  RF_CHECK(spec != nullptr, name.size());
  Array result;
  std::uint64_t count = 1;
  for (const std::int64_t size : spec->shape()) {
    result.shape.push_back(size == -1  ? batch.rows
                           : size < -1 ? batch.ragged[static_cast<std::size_t>(-2 - size)]
                                       : static_cast<std::uint64_t>(size));
    count *= result.shape.back();
  }
  const std::uint64_t width = spec->dtype() == "int32" ? 4 : 8;
  EXPECT_LE(count * width, spec->bytes());
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* const at = batch.bytes.data() + spec->offset() + i * width;
    std::int32_t narrow = 0;
    std::int64_t wide = 0;
    std::memcpy(&narrow, at, 4);
    if (width == 8) std::memcpy(&wide, at, 8);
    result.values.push_back(width == 8 ? wide : narrow);
  }
  return result;
}
std::vector<std::int64_t> values_of(const BatchSchema& schema, const RigBatch& batch,
                                    std::string_view name) {
  return array(schema, batch, name).values;
}

// Everything that trainers see of a batch.
std::vector<std::int64_t> seen(const BatchSchema& schema, const RigBatch& batch) {
  std::vector<std::int64_t> all{static_cast<std::int64_t>(batch.token[0]),
                                static_cast<std::int64_t>(batch.token[1]), batch.rows,
                                batch.ragged[0], batch.ragged[1]};
  for (const TensorSpec& spec : schema.tensors()) {
    const std::vector<std::int64_t> own = values_of(schema, batch, spec.name());
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

// Sentence i of file f: i % 5 + 1 words that tell which it is.
Sentences sentences_of(std::uint32_t file, std::size_t count) {
  Sentences sentences;
  for (std::size_t i = 0; i < count; ++i) {
    sentences.emplace_back(i % 5 + 1, 1000 * (file + 1) + static_cast<std::int64_t>(i));
    sentences.back().push_back(2);
  }
  return sentences;
}

constexpr std::uint64_t kSentences = 40;
constexpr const char* kLimits = "max_tokens: 60 max_source_positions: 12 max_target_positions: 12";

// Pairs of files and plans over them, one for each batch.
struct Corpus {
  TempDir dir;
  std::uint32_t pairs;

  explicit Corpus(std::uint32_t count = 3) : pairs(count) {
    for (std::uint32_t p = 0; p < pairs; ++p) write(p);
  }
  void write(std::uint32_t pair, std::size_t count = kSentences) const {
    // New data in new files: the old ones may be mapped.
    remove(pair);
    write_token_file(source(pair), sentences_of(2 * pair, count));
    write_token_file(target(pair), sentences_of(2 * pair + 1, count));
  }
  void remove(std::uint32_t pair) const {
    for (const std::string& prefix : {source(pair), target(pair)}) {
      std::filesystem::remove(prefix + ".idx");
      std::filesystem::remove(prefix + ".bin");
    }
  }
  [[nodiscard]] std::string source(std::uint32_t pair) const {
    return dir.path(fmt::format("{}.src", pair));
  }
  [[nodiscard]] std::string target(std::uint32_t pair) const {
    return dir.path(fmt::format("{}.tgt", pair));
  }

  // The plan of batch `number`, with rows of `from` (all pairs: none named).
  [[nodiscard]] BatchPlanMaker plan(std::uint64_t number,
                                    std::vector<std::uint32_t> from = {}) const {
    BatchPlanMaker maker;
    maker.head.epoch = 1 + number / 10;
    maker.head.batch = number % 10;
    maker.head.batches = 10;
    maker.head.generation = 3;
    maker.head.world_size = 4;
    maker.head.kind = number % 7 == 6 ? BatchKind::kStandIn : BatchKind::kBatch;
    if (from.empty()) {
      from.resize(pairs);
      std::iota(from.begin(), from.end(), 0U);
    }
    for (const std::uint32_t pair : from) {
      formats::BatchPlanPart& part = maker.add_part(pair, kSentences, source(pair), target(pair));
      part.encoder_token = 500 + pair;
      part.decoder_token = 600 + pair;
      part.source_lang_id = 1 + pair;
      part.target_lang_id = 11 + pair;
    }
    std::mt19937_64 random(number);
    for (std::uint64_t row = 0; row < 2 + number % 5; ++row) {
      maker.add_row(static_cast<std::uint32_t>(row % from.size()), random() % kSentences);
    }
    return maker;
  }
};

struct CollatorRig {
  std::string settings;
  LaneRig rig;
  BatchSchema schema;

  explicit CollatorRig(const std::string& own = "", const char* limits = kLimits,
                       std::uint64_t queue = 64)
      : settings(own), rig(feed_text(limits)), schema(schema_of(limits, own)) {
    rig.add_source("plans", 1, {.capacity = queue, .bytes = 1 << 18});
    rig.add_stage(stage_text(own));
    rig.build();
  }
  void feed(const std::string& bytes) { rig.feed("plans", {.bytes = bytes}); }
  void run() {
    rig.finish("plans");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
  }
  std::uint64_t counter(std::string_view name) const { return rig.counter("collate", name); }
  std::vector<std::vector<std::int64_t>> all() {
    std::vector<std::vector<std::int64_t>> batches;
    for (const RigBatch& batch : rig.batches()) batches.push_back(seen(schema, batch));
    return batches;
  }
};

// ---- batches

TEST(BitextCollator, APlanBecomesABatch) {
  const Corpus corpus;
  CollatorRig one;
  BatchPlanMaker plan = corpus.plan(12, {0, 1});
  plan.rows = {{0, 0, 0}, {3, 1, 0}, {1, 1, 0}};
  one.feed(plan.bytes());
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(1));
  const RigBatch& batch = one.rig.batches()[0];
  EXPECT_EQ(batch.rows, 3U);
  EXPECT_EQ(batch.token[0], 2U);
  EXPECT_EQ(batch.token[1], 2U);
  const auto of = [&](const char* name) { return array(one.schema, batch, name); };
  EXPECT_THAT(of("id").values, ElementsAre(3, 1, 0));
  EXPECT_THAT(of("src_tokens").shape, ElementsAre(3, 6));
  EXPECT_THAT(of("src_tokens").values, ElementsAre(501, 3003, 3003, 3003, 3003, 2,  //
                                                   1, 1, 501, 3001, 3001, 2,        //
                                                   1, 1, 1, 500, 1000, 2));
  EXPECT_THAT(of("src_lengths").values, ElementsAre(6, 4, 3));
  EXPECT_THAT(of("target").values, ElementsAre(601, 4003, 4003, 4003, 4003, 2,  //
                                               601, 4001, 4001, 2, 1, 1,        //
                                               600, 2000, 2, 1, 1, 1));
  EXPECT_THAT(of("prev_output_tokens").values, ElementsAre(2, 601, 4003, 4003, 4003, 4003,  //
                                                           2, 601, 4001, 4001, 1, 1,        //
                                                           2, 600, 2000, 1, 1, 1));
  EXPECT_THAT(of("ntokens").values, ElementsAre(13));
  EXPECT_THAT(of("nsentences").values, ElementsAre(3));
  EXPECT_THAT(of("position").values, ElementsAre(2, 2, 10, 0, 3, 4, 1, 0));
  EXPECT_EQ(one.counter("rows"), 3U);
  EXPECT_EQ(one.counter("batches"), 1U);
  EXPECT_EQ(one.counter("tokens"), 26U);
  EXPECT_EQ(one.counter("padding"), 10U);
}

TEST(BitextCollator, OnDemandThereAreNarrowTokensLanguagesAndDirections) {
  const Corpus corpus;
  CollatorRig one("compact: true enable_lang_ids: true lineage: true pad_to_multiple: 8");
  BatchPlanMaker plan = corpus.plan(0, {0, 2});
  plan.rows = {{0, 0, 0}, {3, 1, 0}};
  one.feed(plan.bytes());
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(1));
  const RigBatch& batch = one.rig.batches()[0];
  EXPECT_EQ(tensor(one.schema, "src_tokens")->dtype(), "int32");
  EXPECT_THAT(array(one.schema, batch, "src_tokens").shape, ElementsAre(2, 8));
  EXPECT_THAT(values_of(one.schema, batch, "src_tokens"),
              ElementsAre(1, 1, 502, 5003, 5003, 5003, 5003, 2, 1, 1, 1, 1, 1, 500, 1000, 2));
  EXPECT_THAT(array(one.schema, batch, "src_lang_id").shape, ElementsAre(2, 1));
  EXPECT_THAT(values_of(one.schema, batch, "src_lang_id"), ElementsAre(3, 1));
  EXPECT_THAT(values_of(one.schema, batch, "tgt_lang_id"), ElementsAre(13, 11));
  EXPECT_THAT(values_of(one.schema, batch, "direction"), ElementsAre(2, 0));
}

TEST(BitextCollator, FixedLengthsAreTheLongestSentencesThatArePlanned) {
  const Corpus corpus;
  CollatorRig one("pad_to_fixed_length: true left_pad_source: false left_pad_target: true");
  BatchPlanMaker plan = corpus.plan(0, {0});
  plan.rows = {{1, 0, 0}};
  one.feed(plan.bytes());
  one.run();
  const RigBatch& batch = one.rig.batches()[0];
  EXPECT_THAT(values_of(one.schema, batch, "src_tokens"),
              ElementsAre(500, 1001, 1001, 2, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(values_of(one.schema, batch, "prev_output_tokens"),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 2, 600, 2001, 2001));
}

// The order of the feed is that of the plans, over any lanes and deaths.
TEST(BitextCollator, LanesAndRestartsChangeNothing) {
  const Corpus corpus;
  const auto run = [&corpus](std::uint32_t lanes, std::uint64_t seed, double restarts) {
    CollatorRig one(fmt::format("threads: {} enable_lang_ids: true", lanes), kLimits, 3);
    for (std::uint64_t number = 0; number < 40; ++number) {
      one.feed(number % 11 == 5 ? "no plan" : corpus.plan(number).bytes());
    }
    one.rig.finish("plans");
    std::mt19937_64 random(seed);
    one.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(one.rig.all_finished());
    EXPECT_EQ(one.counter("batches"), 40U);
    EXPECT_EQ(one.counter("plans_damaged"), 4U);
    return one.all();
  };
  const auto undisturbed = run(1, 0, 0);
  ASSERT_THAT(undisturbed, SizeIs(40));
  for (std::uint64_t number = 0; number < 40; ++number) {
    if (number % 11 == 5) continue;
    EXPECT_EQ(static_cast<std::uint64_t>(undisturbed[number][0]), 1 + number / 10);
    EXPECT_EQ(static_cast<std::uint64_t>(undisturbed[number][1]), number % 10);
    EXPECT_EQ(static_cast<std::uint64_t>(undisturbed[number][2]), 2 + number % 5);
  }
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto lanes = static_cast<std::uint32_t>(1 + seed % 4);
    ASSERT_EQ(run(lanes, seed, seed % 3 == 0 ? 0 : 0.25), undisturbed) << "seed " << seed;
  }
}

TEST(BitextCollator, WaitsForAFreeSlotAndGoesOn) {
  const Corpus corpus;
  LaneRig rig("feed_output { slots: 2 } stages { name: 'plans' epoch_planner { max_tokens: 60 } }");
  rig.add_source("plans");
  rig.add_stage(stage_text(""));
  rig.build();
  for (std::uint64_t number = 0; number < 5; ++number) {
    rig.feed("plans", {.bytes = corpus.plan(number).bytes()});
  }
  rig.finish("plans");
  rig.hold_batches(true);
  rig.run();
  EXPECT_THAT(rig.batches(), SizeIs(2));
  EXPECT_EQ(rig.counter("collate", "batches"), 2U) << "what found no slot left no trace";
  rig.hold_batches(false);
  static_cast<void>(rig.batches());  // gives them back
  rig.run();
  EXPECT_THAT(rig.batches(), SizeIs(5));
}

// ---- one batch for each plan

void expect_empty(CollatorRig& one, const RigBatch& batch) {
  EXPECT_EQ(batch.rows, 0U);
  EXPECT_THAT(values_of(one.schema, batch, "src_tokens"), IsEmpty());
  EXPECT_THAT(values_of(one.schema, batch, "ntokens"), ElementsAre(0));
  EXPECT_THAT(values_of(one.schema, batch, "nsentences"), ElementsAre(0));
}

TEST(BitextCollator, ARecordThatIsNoPlanBecomesABatchOfNoRows) {
  const Corpus corpus;
  const std::string good = corpus.plan(1).bytes();
  std::vector<std::string> bad = {"", "short", good.substr(0, 64), good.substr(0, good.size() - 8)};
  {
    BatchPlanMaker plan = corpus.plan(1);
    plan.rows[0].part = 3;  // which there is not
    bad.push_back(plan.bytes());
    plan = corpus.plan(1);
    plan.parts[1].target_bytes = 60000;
    bad.push_back(plan.bytes());
    plan = corpus.plan(1);
    plan.parts[0].sentences = 0;
    bad.push_back(plan.bytes());
  }
  CollatorRig one;
  for (const std::string& bytes : bad) one.feed(bytes);
  one.feed(good);
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(bad.size() + 1));
  for (std::size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    expect_empty(one, one.rig.batches()[i]);
    EXPECT_THAT(values_of(one.schema, one.rig.batches()[i], "position"), Each(0));
  }
  EXPECT_EQ(one.rig.batches().back().rows, 3U);
  EXPECT_EQ(one.counter("plans_damaged"), bad.size());
  EXPECT_THAT(one.rig.log("plans_damaged"), Not(IsEmpty()));
}

// Whatever a plan says, nothing is written outside of the arrays, and nothing else happens.
TEST(BitextCollator, ScribbledPlansBecomeBatchesToo) {
  const Corpus corpus;
  std::mt19937_64 random(5);
  CollatorRig one("threads: 2 enable_lang_ids: true lineage: true", kLimits, 1024);
  for (std::uint64_t number = 0; number < 600; ++number) {
    std::string bytes = corpus.plan(number).bytes();
    for (std::uint64_t i = 0; i < 1 + random() % 4; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    one.feed(bytes);
  }
  one.run();
  EXPECT_THAT(one.rig.batches(), SizeIs(600));
  EXPECT_EQ(one.counter("batches"), 600U);
  EXPECT_GT(one.counter("plans_damaged"), 10U);
  EXPECT_GT(one.counter("rows"), 600U);
}

// The plan that has killed its worker too often is replaced by a batch of no rows, so that those
// behind it keep their numbers, and with them their ranks.
TEST(BitextCollator, APlanThatIsSetAsideBecomesABatchOfNoRowsAtItsPlace) {
  const Corpus corpus;
  for (const std::uint32_t lanes : {1U, 3U}) {
    for (const std::uint64_t bad : {0U, 4U, 11U}) {
      SCOPED_TRACE(fmt::format("{} lanes, plan {}", lanes, bad));
      CollatorRig one(fmt::format("threads: {}", lanes));
      for (std::uint64_t number = 0; number < 12; ++number) {
        one.feed(corpus.plan(number).bytes());
      }
      // Record seq of the ring to lane bad % lanes.
      one.rig.condemn(one.rig.lanes_of("collate")[bad % lanes], shm::record_key(0, 0, bad / lanes));
      one.run();
      ASSERT_THAT(one.rig.batches(), SizeIs(12));
      for (std::uint64_t number = 0; number < 12; ++number) {
        const RigBatch& batch = one.rig.batches()[number];
        EXPECT_EQ(batch.token[0], 1 + number / 10);
        EXPECT_EQ(batch.token[1], number % 10);
        EXPECT_EQ(batch.rows, number == bad ? 0 : 2 + number % 5);
        EXPECT_THAT(values_of(one.schema, batch, "position"),
                    ElementsAre(1 + number / 10, number % 10, 10, number == 6 ? 1 : 0, 3, 4, 1, 0));
      }
      expect_empty(one, one.rig.batches()[bad]);
      EXPECT_THAT(one.rig.dead_letters(), ElementsAre(corpus.plan(bad).bytes()));
      EXPECT_EQ(one.counter("batches"), 12U);
    }
  }
}

TEST(BitextCollator, WhatIsOwedForAPlanThatWasSetAsideSurvivesDeathsAndFullSlots) {
  const Corpus corpus;
  const auto run = [&corpus](std::uint64_t seed) {
    LaneRig rig(
        "feed_output { slots: 2 dispatch: ORDERED } stages { name: 'plans' epoch_planner { "
        "max_tokens: 60 } }");
    rig.add_source("plans");
    rig.add_stage(stage_text("threads: 2"));
    rig.build();
    for (std::uint64_t number = 0; number < 10; ++number) {
      rig.feed("plans", {.bytes = corpus.plan(number).bytes()});
    }
    rig.finish("plans");
    const std::size_t lane = rig.lanes_of("collate")[1];
    const std::uint64_t key = shm::record_key(0, 0, 2);  // plan 5
    rig.condemn(lane, key);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 400 && !rig.all_finished(); ++i) {
      rig.hold_batches(random() % 3 != 0);
      for (std::uint64_t rounds = 0; rounds < random() % 9; ++rounds) {
        const std::size_t any = random() % rig.lane_count();
        if (random() % 3 == 0) any == lane ? rig.condemn(lane, key) : rig.restart(any);
        rig.round(any);
      }
      static_cast<void>(rig.batches());
    }
    rig.hold_batches(false);
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    std::vector<std::uint64_t> rows;
    for (const RigBatch& batch : rig.batches()) {
      EXPECT_EQ(batch.token[1], rows.size());
      rows.push_back(batch.rows);
    }
    EXPECT_THAT(rig.dead_letters(), Each(corpus.plan(5).bytes()));
    EXPECT_THAT(rows, ElementsAre(2, 3, 4, 5, 6, 0, 3, 4, 5, 6));
  };
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    run(seed);
  }
}

// ---- files that are not as planned

// Rows of pair 0 are in every batch, rows of pair 1 are what becomes of it.
BatchPlanMaker of_two_pairs(const Corpus& corpus) {
  BatchPlanMaker plan = corpus.plan(0, {0, 1});
  plan.rows = {{3, 0, 0}, {2, 1, 0}, {4, 0, 0}, {1, 1, 0}, {0, 1, 0}};
  return plan;
}

TEST(BitextCollator, SentencesOfFilesThatVanishAreMissingUntilTheyAreBack) {
  const Corpus corpus;
  corpus.remove(1);
  CollatorRig one;
  one.feed(of_two_pairs(corpus).bytes());
  one.rig.run();
  corpus.write(1);
  one.feed(of_two_pairs(corpus).bytes());
  one.rig.run();
  // What is open stays readable.
  corpus.remove(1);
  one.feed(of_two_pairs(corpus).bytes());
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(3));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[0], "id"), ElementsAre(4, 3));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[1], "id"), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[2], "id"), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_EQ(one.counter("skipped_unreadable"), 3U);
  EXPECT_EQ(one.counter("rows"), 12U);
  EXPECT_THAT(one.rig.log("skipped_unreadable"), Contains(HasSubstr(corpus.source(1))));
}

TEST(BitextCollator, SentencesOfFilesWithAnotherNumberOfThemAreMissingUntilThatChanges) {
  const Corpus corpus;
  corpus.write(1, kSentences + 1);
  CollatorRig one("threads: 2");
  for (int i = 0; i < 2; ++i) one.feed(of_two_pairs(corpus).bytes());
  one.rig.run();
  corpus.write(1);
  for (int i = 0; i < 2; ++i) one.feed(of_two_pairs(corpus).bytes());
  one.run();
  std::vector<std::uint32_t> rows;
  for (const RigBatch& batch : one.rig.batches()) rows.push_back(batch.rows);
  EXPECT_THAT(rows, ElementsAre(2, 2, 5, 5));
  EXPECT_EQ(one.counter("skipped_changed"), 6U);
  EXPECT_THAT(one.rig.log("skipped_changed"),
              Contains(AllOf(HasSubstr(" sentence=2: "), HasSubstr("41 sentences, but had 40"))));
}

TEST(BitextCollator, SentencesBehindTheEndOfACutOffFileAreMissing) {
  const Corpus corpus;
  // Of sentences 0, 1 and 2 with 2, 3 and 4 tokens of 2 bytes the third lies behind the end.
  std::filesystem::resize_file(corpus.target(1) + ".bin", 10);
  CollatorRig one;
  one.feed(of_two_pairs(corpus).bytes());
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(1));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[0], "id"), ElementsAre(4, 3, 1, 0));
  EXPECT_EQ(one.counter("skipped_out_of_bounds"), 1U);
  EXPECT_THAT(one.rig.log("skipped_out_of_bounds"),
              Contains(HasSubstr(fmt::format("path={} sentence=2: ", corpus.target(1)))));
}

TEST(BitextCollator, SentencesThatAreLongerThanPlannedAreMissing) {
  const Corpus corpus;
  corpus.remove(1);
  Sentences longer = sentences_of(2, kSentences);
  longer[1].insert(longer[1].begin(), 9, 7);  // 12 tokens, and the language's
  longer[2].insert(longer[2].begin(), 7, 7);  // 11 of them: five rows of 12 fit
  write_token_file(corpus.source(1), longer);
  write_token_file(corpus.target(1), sentences_of(3, kSentences));
  CollatorRig one;
  BatchPlanMaker plan = of_two_pairs(corpus);
  plan.add_row(0, 0);  // five rows are there already
  one.feed(plan.bytes());
  one.run();
  ASSERT_THAT(one.rig.batches(), SizeIs(1));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[0], "id"), ElementsAre(2, 4, 3, 0, 0));
  EXPECT_EQ(one.counter("skipped_too_large"), 1U);
  EXPECT_THAT(one.rig.log("skipped_too_large"), Contains(HasSubstr(" sentence=1: ")));
}

TEST(BitextCollator, APlanWithMoreRowsThanFitLosesThose) {
  const Corpus corpus;
  CollatorRig one("", "batch_size: 3 max_source_positions: 12 max_target_positions: 12");
  BatchPlanMaker plan = corpus.plan(0, {0});
  plan.rows.clear();
  for (std::uint64_t i = 0; i < 1000; ++i) plan.add_row(0, i % kSentences);
  one.feed(plan.bytes());
  one.run();
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[0], "id"), ElementsAre(2, 1, 0));
  EXPECT_EQ(one.counter("skipped_too_large"), 997U);
}

// A plan that names two pairs of files by one number is damaged in a way that its reader cannot
// see.
TEST(BitextCollator, OneNumberForTwoPairsOfFilesIsNotMixedUp) {
  const Corpus corpus;
  CollatorRig one;
  BatchPlanMaker plan = corpus.plan(0, {0, 1});
  plan.parts[1].number = 0;
  plan.rows = {{0, 0, 0}, {1, 1, 0}};
  one.feed(plan.bytes());
  BatchPlanMaker other = corpus.plan(0, {2});
  other.parts[0].number = 0;
  other.rows = {{2, 0, 0}};
  one.feed(other.bytes());
  one.run();
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[0], "id"), ElementsAre(0));
  EXPECT_THAT(values_of(one.schema, one.rig.batches()[1], "src_tokens"),
              ElementsAre(502, 5002, 5002, 5002, 2));
  EXPECT_EQ(one.counter("skipped_changed"), 1U);
}

std::size_t mappings(const std::string& of) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(of) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(BitextCollator, LanesShareTheirMappings) {
  const Corpus corpus;
  CollatorRig one("threads: 8");
  for (std::uint64_t number = 0; number < 32; ++number) one.feed(corpus.plan(number).bytes());
  one.run();
  EXPECT_EQ(mappings(corpus.dir.path()), 3U * 4);
  one.rig.restart_all();
  EXPECT_EQ(mappings(corpus.dir.path()), 0U);
}

TEST(BitextCollator, NoMoreFilesAreOpenThanALaneMayHave) {
  const Corpus corpus(200);
  constexpr std::uint32_t kLanes = 64;  // each may have 128 pairs
  CollatorRig one(fmt::format("threads: {}", kLanes));
  std::size_t most = 0;
  for (std::uint32_t pair = 0; pair < corpus.pairs; ++pair) {
    one.feed(corpus.plan(2, {pair}).bytes());
    for (std::uint32_t lane = 1; lane < kLanes; ++lane) one.feed(BatchPlanMaker{}.bytes());
    one.rig.run();
    most = std::max(most, mappings(corpus.dir.path()));
  }
  EXPECT_EQ(most, 128U * 4);
  // A plan gets what it needs, whatever that is, for as long as it is at hand.
  BatchPlanMaker plan;
  for (std::uint32_t pair = 0; pair < corpus.pairs; ++pair) {
    plan.add_part(pair, kSentences, corpus.source(pair), corpus.target(pair));
    if (pair % 10 == 0) plan.add_row(pair, 0);
  }
  one.feed(plan.bytes());
  one.run();
  EXPECT_EQ(one.rig.batches().back().rows, 20U);
  EXPECT_EQ(one.counter("rows"), 200U * 4 + 20);
  EXPECT_THAT(one.rig.log("skipped"), IsEmpty());
}

// ---- the schema

TEST(BitextCollatorSchema, TellsWhichLengthsVary) {
  const BatchSchema schema = schema_of("max_tokens: 1000 max_source_positions: 100 batch_size: 50",
                                       "enable_lang_ids: true lineage: true");
  std::vector<std::string> lines;
  std::uint64_t end = 0;
  for (const TensorSpec& spec : schema.tensors()) {
    lines.push_back(fmt::format("{} {} [{}] {}", spec.name(), spec.dtype(),
                                fmt::join(spec.shape(), ","), spec.bytes()));
    EXPECT_EQ(spec.offset() % 64, 0U);
    EXPECT_GE(spec.offset(), end);
    end = spec.offset() + spec.bytes();
  }
  EXPECT_THAT(
      lines,
      ElementsAre("id int64 [-1] 400", "src_tokens int64 [-1,-2] 8000",
                  "src_lengths int64 [-1] 400", "prev_output_tokens int64 [-1,-3] 8000",
                  "target int64 [-1,-3] 8000", "ntokens int64 [1] 8", "nsentences int64 [1] 8",
                  "position int64 [8] 64", "src_lang_id int64 [-1,1] 400",
                  "tgt_lang_id int64 [-1,1] 400", "direction int32 [-1] 200"));
  EXPECT_EQ(schema.rows_max(), 50U);
  EXPECT_GE(schema.slot_bytes(), end);
}

TEST(BitextCollatorSchema, HasRoomForTheLargestBatchOfThePlanner) {
  const auto bytes = [](const char* limits, const char* settings, const char* name) {
    return tensor(schema_of(limits, settings), name)->bytes();
  };
  const char* const by_tokens = "max_tokens: 100 max_source_positions: 30";
  EXPECT_EQ(bytes(by_tokens, "", "id"), 8U * 100) << "sentences of one token";
  EXPECT_EQ(bytes(by_tokens, "", "src_tokens"), 8U * 100);
  EXPECT_EQ(bytes(by_tokens, "compact: true", "target"), 4U * 100);
  // 100 sentences of one token become 8 wide; and 11 of nine 16.
  EXPECT_EQ(bytes(by_tokens, "pad_to_multiple: 8", "src_tokens"), 8U * 800);
  EXPECT_EQ(bytes(by_tokens, "pad_to_fixed_length: true", "src_tokens"), 8U * 3000);
  EXPECT_EQ(bytes(by_tokens, "pad_to_fixed_length: true", "target"), 8U * 100 * 1024);
  const char* const by_rows = "batch_size: 10 max_source_positions: 30 max_target_positions: 20";
  EXPECT_EQ(bytes(by_rows, "", "src_tokens"), 8U * 300);
  EXPECT_EQ(bytes(by_rows, "", "target"), 8U * 200);
  EXPECT_EQ(bytes(by_rows, "pad_to_multiple: 16", "target"), 8U * 320);
}

TEST(BitextCollatorProblems, ASlotThatNoMachineWouldWantIsRefused) {
  EXPECT_THAT(limit_problems(kLimits, ""), IsEmpty());
  EXPECT_THAT(limit_problems("max_tokens: 16384", "pad_to_multiple: 8 pad_to_fixed_length: true"),
              IsEmpty());
  EXPECT_THAT(limit_problems("max_tokens: 65536", "pad_to_fixed_length: true"),
              ElementsAre(HasSubstr("pad_to_fixed_length: the largest batch of 65536 sentences")));
  EXPECT_THAT(
      limit_problems("max_tokens: 16777216 max_source_positions: 65534 max_target_positions: 65534",
                     "pad_to_multiple: 65536"),
      ElementsAre(HasSubstr("pad_to_multiple: ")));
  EXPECT_THAT(limit_problems("batch_size: 1048576 max_source_positions: 65534", ""),
              ElementsAre(HasSubstr("lower max_tokens, batch_size")));
}

TEST(BitextCollatorProblems, TokensInThePlacesOfEosNeedTargetsPaddedOnTheRight) {
  EXPECT_THAT(limit_problems(kLimits, "left_pad_target: true", "lang_tok_replacing_bos_eos: true"),
              ElementsAre(HasSubstr("left_pad_target: ")));
  EXPECT_THAT(limit_problems(kLimits, "", "lang_tok_replacing_bos_eos: true"), IsEmpty());
  EXPECT_THAT(limit_problems(kLimits, "left_pad_target: true"), IsEmpty());
}

}  // namespace
}  // namespace ringfeed
