// The specification of workers/bitext/epoch_planner.h: which batches an epoch has, in which order,
// for which rank, whoever dies meanwhile. tests/data/fairseq has what fairseq made of real files.
#include "workers/bitext/epoch_planner.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "proto/control.pb.h"
#include "proto/stages/bitext.pb.h"
#include "tests/support/rig/stage_data.h"
#include "tests/support/rig/stage_views.h"
#include "workers/bitext/batch_plan.h"
#include "workers/io/token_file.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using formats::BatchKind;
using formats::BatchPlan;
using formats::BatchPlanHead;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Sentence = std::pair<std::uint32_t, std::uint64_t>;  // direction, number in it

// What a test wants to know of a batch plan.
struct Planned {
  std::uint64_t epoch;
  std::uint64_t batch;
  std::uint64_t batches;
  BatchKind kind;
  std::uint32_t generation;
  std::vector<Sentence> rows;
  friend bool operator==(const Planned&, const Planned&) = default;
};

Planned read_plan(const RigRecord& record) {
  std::vector<std::uint64_t> aligned(record.bytes.size() / 8);
  std::memcpy(aligned.data(), record.bytes.data(), 8 * aligned.size());
  BatchPlan plan;
  RF_CHECK(plan.read(std::as_bytes(std::span(aligned))), record.bytes.size());
  Planned planned{plan.head().epoch, plan.head().batch,      plan.head().batches,
                  plan.head().kind,  plan.head().generation, {}};
  for (const formats::BatchPlanRow& row : plan.rows()) {
    planned.rows.emplace_back(plan.parts()[row.part].direction, row.index);
  }
  return planned;
}

std::vector<Planned> plans_of(const std::vector<RigRecord>& records) {
  std::vector<Planned> plans;
  plans.reserve(records.size());
  for (const RigRecord& record : records) plans.push_back(read_plan(record));
  return plans;
}

// A direction that a test describes by its files.
struct TestDirection {
  std::string key;
  std::vector<std::vector<std::pair<std::string, std::string>>> shards =
      {};             // prefixes of the parts
  bool tags = false;  // the second part of each shard has one
  bool tokens = true;
};

std::vector<RigRecord> catalogue_records(const std::vector<TestDirection>& directions) {
  std::vector<RigRecord> records;
  std::size_t shards = 0;
  for (const TestDirection& direction : directions) {
    shards = std::max(shards, direction.shards.size());
  }
  for (std::size_t shard = 0; shard < shards; ++shard) {
    for (std::size_t i = 0; i < directions.size(); ++i) {
      const TestDirection& direction = directions[i];
      if (shard >= direction.shards.size()) continue;
      BitextDirection message;
      message.set_number(static_cast<std::uint32_t>(i));
      message.set_directions(static_cast<std::uint32_t>(directions.size()));
      message.set_key(direction.key);
      message.set_shard(static_cast<std::uint32_t>(shard));
      message.set_shards(static_cast<std::uint32_t>(direction.shards.size()));
      if (direction.tokens) {
        message.set_encoder_token(504);
        message.set_decoder_token(505);
      }
      for (const auto& [source, target] : direction.shards[shard]) {
        Result<formats::TokenFile> file = formats::TokenFile::open(source);
        RF_CHECK(file, errno);
        BitextPart& part = *message.add_parts();
        part.set_source(source);
        part.set_target(target);
        part.set_sentences(file->sentences());
        part.set_repeat(1);
        if (direction.tags && message.parts_size() == 2) part.set_source_tag(508);
      }
      records.push_back({.bytes = message.SerializeAsString()});
    }
  }
  return records;
}

// The corpus of tests/data/fairseq.
std::vector<TestDirection> example_corpus(bool folds) {
  const std::string root = RINGFEED_SOURCE_DIR "/tests/data/fairseq/inputs/data_bin/";
  const auto part = [&](int shard, const std::string& fold, const std::string& pair,
                        const std::string& source, const std::string& target) {
    const std::string begin = fmt::format("{}shard00{}/{}.{}.", root, shard, fold, pair);
    return std::pair(begin + source, begin + target);
  };
  std::vector<TestDirection> directions = {{.key = "main:eng_Latn-tur_Latn"},
                                           {.key = "main:eng_Latn-hin_Deva"},
                                           {.key = "main:fra_Latn-eng_Latn"}};
  const auto add = [&](TestDirection& direction, int shard, bool mined) {
    const std::string pair = direction.key.substr(5);
    const std::string source = pair.substr(0, 8);
    const std::string target = pair.substr(9);
    auto& parts = direction.shards.emplace_back();
    parts.push_back(part(shard, "train", pair, source, target));
    if (folds && mined) parts.push_back(part(shard, "train_mining", pair, source, target));
    direction.tags = folds;
  };
  add(directions[0], 0, false);
  add(directions[0], 1, false);
  add(directions[1], 0, true);
  add(directions[2], 0, true);
  add(directions[2], 1, true);
  return directions;
}

// The stage before the planner, as far as the planner looks at its configuration.
std::string corpus_stage(const std::string& planner) {
  return fmt::format(
      "stages {{ name: 'corpus' bitext_source {{ directory: '/a' directory: '/b' {} }} }} ",
      planner.find("compat: NLLB") == std::string::npos ? "" : "compat: NLLB");
}

struct RunSetup {
  std::string planner;
  std::string feed = "seed: 9 epochs: 1";
  double deaths = 0;
  std::uint64_t chance = 1;
};

std::vector<RigRecord> run_planner(const std::vector<TestDirection>& corpus, const RunSetup& setup,
                                   std::vector<std::string>* log = nullptr) {
  LaneRig rig(corpus_stage(setup.planner) + setup.feed);
  rig.add_source("corpus", 1, {.capacity = 8, .bytes = 64 * 1024});
  rig.add_stage("name: 'plan' epoch_planner { input: 'corpus' " + setup.planner + " }");
  rig.add_sink("out", "plan");
  rig.build();
  for (RigRecord& record : catalogue_records(corpus)) rig.feed("corpus", std::move(record));
  rig.finish("corpus");
  std::mt19937_64 random(setup.chance);
  EXPECT_TRUE(rig.run_until([&] {
    if (setup.deaths > 0) rig.run_with_restarts(random, setup.deaths);
    return rig.all_finished();
  }));
  if (log != nullptr) *log = rig.log();
  return rig.got("out");
}

std::vector<std::uint64_t> sorted_ids(const std::vector<Sentence>& rows) {
  std::vector<std::uint64_t> ids;
  for (const Sentence& row : rows) ids.push_back(row.second);
  std::ranges::sort(ids);
  return ids;
}

struct Example {
  const char* name;
  const char* planner;
  bool folds = false;
  std::uint64_t frequency = 1;
};

class Examples : public ::testing::TestWithParam<Example> {};

// Every batch of every rank of every epoch, and the batches before the shuffle, row for row.
TEST_P(Examples, AreGivenExactly) {
  const Example& example = GetParam();
  const Json expected = Json::parse(std::ifstream(
      fmt::format("{}/tests/data/fairseq/outputs/{}.json", RINGFEED_SOURCE_DIR, example.name)));
  const std::size_t epochs = expected["epochs"].size();
  const std::vector<Planned> plans =
      plans_of(run_planner(example_corpus(example.folds),
                           {.planner = std::string(example.planner) +
                                       " max_source_positions: 60 max_target_positions: 60",
                            .feed = fmt::format("seed: 9 epochs: {}", epochs)}));
  std::size_t at = 0;
  for (const Json& epoch : expected["epochs"]) {
    const auto number = epoch["epoch"].get<std::uint64_t>();
    // Frozen batches are of virtual indices.
    const auto cumulated = epoch["cumulated"].get<std::vector<std::uint64_t>>();
    const auto drawn = epoch["cur_indices"].get<std::vector<std::uint64_t>>();
    const std::uint64_t start = epoch.value("start", std::uint64_t{0});
    std::multiset<std::vector<Sentence>> frozen;
    std::vector<Sentence> first;
    for (const Json& batch : epoch["frozen_batches"]) {
      std::vector<Sentence> rows;
      for (const Json& row : batch) {
        auto index = row.get<std::uint64_t>();
        if (epoch.contains("global_indices")) {
          index = epoch["global_indices"][start + index].get<std::uint64_t>();
        }
        const auto direction = std::ranges::upper_bound(cumulated, index) - cumulated.begin();
        rows.emplace_back(static_cast<std::uint32_t>(direction), drawn[index]);
      }
      if (first.empty()) first = rows;
      frozen.insert(std::move(rows));
    }
    const Json& ranks = epoch["ranks"];
    std::vector<std::vector<Json>> of_rank;
    for (const Json& rank : ranks) {
      std::vector<Json>& batches = of_rank.emplace_back();
      for (const Json& item : rank["batches"]) {
        if (item.is_array()) {
          batches.insert(batches.end(), item.begin(), item.end());
        } else {
          batches.push_back(item);
        }
      }
    }
    for (std::size_t i = 0; i < of_rank[0].size(); ++i) {
      for (std::size_t rank = 0; rank < of_rank.size(); ++rank, ++at) {
        ASSERT_LT(at, plans.size());
        const Planned& plan = plans[at];
        const Json& batch = of_rank[rank][i];
        ASSERT_EQ(plan.epoch, number);
        ASSERT_EQ(at % of_rank.size(), rank) << "a ranked group deals by the number of the batch";
        if (batch.is_null()) {
          EXPECT_EQ(plan.kind, BatchKind::kStandIn);
          EXPECT_EQ(plan.rows, first);
          continue;
        }
        ASSERT_EQ(plan.kind, BatchKind::kBatch) << number << " " << i << " " << rank;
        EXPECT_EQ(plan.batch, i * of_rank.size() + rank);
        auto ids = batch["id"].get<std::vector<std::uint64_t>>();
        std::ranges::sort(ids);
        ASSERT_EQ(sorted_ids(plan.rows), ids) << number << " " << i << " " << rank;
        ASSERT_TRUE(frozen.contains(plan.rows)) << number << " " << i << " " << rank;
      }
    }
  }
  EXPECT_EQ(at, plans.size());
}

constexpr std::array kExamples = {
    Example{"a_concat", "compat: NLLB max_tokens: 300 world_size: 2"},
    Example{"b_nllb",
            "compat: NLLB max_tokens: 300 world_size: 2 sampling_method: TEMPERATURE "
            "sampling_temperature: 1 use_local_shard_size: true seed: 2 update_freq: 2",
            true, 2},
    Example{"d_virtual_epochs",
            "compat: NLLB max_tokens: 300 world_size: 2 sampling_method: TEMPERATURE "
            "virtual_epoch_size: 250 virtual_data_size: 600 epoch_remainder_batch: true"},
    Example{"f_weights",
            "compat: NLLB max_tokens: 400 batch_size: 24 required_batch_size_multiple: 4 "
            "world_size: 2 virtual_data_size: 1000 epoch_remainder_batch: true "
            "sampling_weights { key: 'eng_Latn-tur_Latn' weight: 0.2 } "
            "sampling_weights { key: 'main:eng_Latn-hin_Deva' weight: 0.5 } "
            "sampling_weights { key: 'fra_Latn-eng_Latn' weight: 0.4 }"},
};

INSTANTIATE_TEST_SUITE_P(EpochPlanner, Examples, ::testing::ValuesIn(kExamples),
                         [](const auto& instance) { return std::string(instance.param.name); });

// ---- deaths

TEST(EpochPlanner, DeathsChangeNothing) {
  for (const std::string& planner :
       {std::string(kExamples[1].planner), std::string(kExamples[2].planner),
        std::string("max_tokens: 300 world_size: 3 sampling_method: TEMPERATURE "
                    "virtual_epoch_size: 200")}) {
    const RunSetup setup = {.planner = planner, .feed = "seed: 9 epochs: 3"};
    const std::vector<RigRecord> plain = run_planner(example_corpus(true), setup);
    ASSERT_GT(plain.size(), 50U);
    for (std::uint64_t chance = 1; chance <= 10; ++chance) {
      RunSetup deaths = setup;
      deaths.deaths = 0.05;
      deaths.chance = chance;
      ASSERT_EQ(run_planner(example_corpus(true), deaths), plain) << planner << " " << chance;
    }
  }
}

// ---- ours

std::map<Sentence, int> counts_of(const std::vector<Planned>& plans, std::uint64_t epoch) {
  std::map<Sentence, int> counts;
  for (const Planned& plan : plans) {
    if (plan.kind != BatchKind::kBatch || plan.epoch != epoch) continue;
    for (const Sentence& row : plan.rows) ++counts[row];
  }
  return counts;
}

TEST(EpochPlanner, OursGivesEverySentenceOnce) {
  const std::vector<Planned> plans = plans_of(run_planner(
      example_corpus(true), {.planner = "max_tokens: 300", .feed = "seed: 9 epochs: 2"}));
  EXPECT_THAT(counts_of(plans, 1), SizeIs(300 + 180 + 500));
  EXPECT_THAT(counts_of(plans, 2), SizeIs(220 + 180 + 460));
  for (const std::uint64_t epoch : {1U, 2U}) {
    for (const auto& [sentence, count] : counts_of(plans, epoch)) ASSERT_EQ(count, 1);
  }
  std::set<std::uint64_t> sizes;
  for (const Planned& plan : plans) sizes.insert(plan.rows.size());
  EXPECT_TRUE(sizes.contains(8));
}

TEST(EpochPlanner, OursHasOneOrderForAnyWorld) {
  const auto rows_of = [&](const std::string& world) {
    std::vector<std::vector<Sentence>> rows;
    for (const Planned& plan :
         plans_of(run_planner(example_corpus(true), {.planner = "max_tokens: 300 " + world,
                                                    .feed = "seed: 9 epochs: 3"}))) {
      if (plan.kind == BatchKind::kBatch) rows.push_back(plan.rows);
    }
    return rows;
  };
  const auto one = rows_of("");
  EXPECT_EQ(rows_of("world_size: 7"), one);
  EXPECT_EQ(rows_of("world_size: 16 update_freq: 4 stand_in_first: true"), one);
}

TEST(EpochPlanner, OursDoesNotRepeatWhatItNeedNot) {
  // A third of the weight each, of shards of 300, 180 and 500.
  const std::vector<Planned> plans = plans_of(
      run_planner(example_corpus(true), {.planner = "max_tokens: 300 sampling_method: UNIFORM "
                                                    "virtual_data_size: 900",
                                         .feed = "seed: 9 epochs: 5"}));
  std::map<Sentence, int> all;  // of the first shard: epochs 1, 3, 5
  for (const std::uint64_t epoch : {1U, 3U, 5U}) {
    std::map<std::uint32_t, int> drawn;
    for (const auto& [sentence, count] : counts_of(plans, epoch)) {
      drawn[sentence.first] += count;
      // Of the second direction alone there are too few.
      ASSERT_LE(count, sentence.first == 1 ? 2 : 1);
      if (sentence.first == 2) all[sentence] += count;
    }
    EXPECT_THAT(drawn, ElementsAre(::testing::Pair(0, 300), ::testing::Pair(1, 300),
                                   ::testing::Pair(2, 300)));
  }
  // 900 of 500 in three visits: each once or twice.
  EXPECT_THAT(all, SizeIs(500));
  for (const auto& [sentence, count] : all) ASSERT_THAT(count, ::testing::AnyOf(1, 2));
}

TEST(EpochPlanner, VirtualEpochsCoverThePass) {
  const std::vector<Planned> plans =
      plans_of(run_planner(example_corpus(false), {.planner = "max_tokens: 300 "
                                                              "virtual_epoch_size: 250",
                                                   .feed = "seed: 9 epochs: 4"}));
  std::map<Sentence, int> all;
  for (const std::uint64_t epoch : {1U, 2U, 3U, 4U}) {
    const auto counts = counts_of(plans, epoch);
    EXPECT_THAT(counts, SizeIs(epoch < 4 ? 250 : 90));
    for (const auto& [sentence, count] : counts) all[sentence] += count;
  }
  EXPECT_THAT(all, SizeIs(300 + 120 + 420));
  for (const auto& [sentence, count] : all) ASSERT_EQ(count, 1);
}

TEST(EpochPlanner, ADirectionBatch) {
  for (const std::string& compat : {std::string("NLLB"), std::string("NONE")}) {
    const std::vector<Planned> plans = plans_of(
        run_planner(example_corpus(false),
                    {.planner = "max_tokens: 300 one_dataset_per_batch: true compat: " + compat}));
    std::set<std::uint32_t> seen;
    for (const Planned& plan : plans) {
      for (const Sentence& row : plan.rows) ASSERT_EQ(row.first, plan.rows[0].first);
      seen.insert(plan.rows[0].first);
    }
    EXPECT_THAT(seen, SizeIs(3));
  }
}

TEST(EpochPlanner, StandInsComeWhereTheyAreAskedFor) {
  const std::vector<Planned> plans = plans_of(run_planner(
      example_corpus(false), {.planner = "max_tokens: 300 world_size: 5 stand_in_first: true",
                              .feed = "seed: 9 epochs: 2"}));
  ASSERT_EQ(plans.size() % 5, 0U);
  for (std::size_t at = 0; at < 5; ++at) EXPECT_EQ(plans[at].kind, BatchKind::kFirstStandIn);
  EXPECT_EQ(plans[5].kind, BatchKind::kBatch);
  const std::uint64_t batches = plans[0].batches;
  const std::uint64_t missing = (5 - batches % 5) % 5;
  for (std::size_t at = 5; at < 5 + batches; ++at) EXPECT_EQ(plans[at].batch, at - 5);
  for (std::size_t at = 5 + batches; at < 5 + batches + missing; ++at) {
    EXPECT_EQ(plans[at].kind, BatchKind::kStandIn);
    EXPECT_EQ(plans[at].rows, plans[0].rows);
    EXPECT_EQ(plans[at].batch, batches);
  }
  EXPECT_EQ(plans[5 + batches + missing].epoch, 2U);
}

TEST(EpochPlanner, BeginsWhereItIsTold) {
  const RunSetup whole = {.planner = "max_tokens: 300", .feed = "seed: 9 epochs: 3"};
  const std::vector<Planned> all = plans_of(run_planner(example_corpus(false), whole));
  const std::vector<Planned> later = plans_of(run_planner(
      example_corpus(false),
      {.planner = "max_tokens: 300 start_epoch: 2 start_batch: 10", .feed = "seed: 9 epochs: 2"}));
  const auto begin =
      std::ranges::find_if(all, [](const Planned& p) { return p.epoch == 2 && p.batch == 10; });
  EXPECT_EQ(later, std::vector<Planned>(begin, all.end()));
}

TEST(EpochPlanner, ValidationIsInOrderAndTheSameEveryTime) {
  const std::vector<Planned> plans = plans_of(run_planner(
      example_corpus(false),
      {.planner = "compat: NLLB max_tokens: 300 validation: true", .feed = "seed: 9 epochs: 2"}));
  const std::size_t half = plans.size() / 2;
  std::size_t sentences = 0;
  for (std::size_t at = 0; at < half; ++at) {
    EXPECT_EQ(plans[at].rows, plans[at + half].rows);
    sentences += plans[at].rows.size();
    // Ties in the order of the directions.
    EXPECT_EQ(plans[at].batch, at);
  }
  EXPECT_EQ(sentences, 840U);
}

TEST(EpochPlanner, LeavesOutWhatIsTooLongAndSaysSo) {
  std::vector<std::string> log;
  const std::vector<Planned> plans = plans_of(run_planner(
      example_corpus(false),
      {.planner = "max_tokens: 300 max_source_positions: 20 max_target_positions: 15"}, &log));
  std::size_t sentences = 0;
  for (const Planned& plan : plans) sentences += plan.rows.size();
  ASSERT_LT(sentences, 840U);
  ASSERT_GT(sentences, 100U);
  EXPECT_THAT(log, ::testing::Contains(
                       HasSubstr(fmt::format("kept={} too_long={}", sentences, 840 - sentences))));
}

TEST(EpochPlanner, EndsWithAWordIfThereIsNothing) {
  std::vector<std::string> log;
  EXPECT_THAT(run_planner(example_corpus(false),
                          {.planner = "max_tokens: 300 max_source_positions: 1",
                           .feed = "seed: 9 epochs: 0"},
                          &log),
              ::testing::IsEmpty());
  EXPECT_THAT(log, ::testing::Contains(HasSubstr("no batch in any shard")));
}

// ---- more sentences than 32 bits can number

std::vector<RigRecord> run_node(const std::string& planner, std::uint64_t narrow_max) {
  LaneRig rig(corpus_stage(planner) + "seed: 9 epochs: 3");
  rig.add_source("corpus");
  DataLoaderConfig feed = rig.config();
  RF_CHECK(google::protobuf::TextFormat::ParseFromString(
               "name: 'plan' epoch_planner { input: 'corpus' " + planner + " }", feed.add_stages()),
           planner.size());
  const StageViews stages(std::move(feed));
  NodeSpec node = epoch_planner_type().nodes(stages["plan"]).front();
  node.inputs.front().from = "corpus.output";
  node.create = [&stages, narrow_max](const StageContext& context) {
    StageContext own{.config = stages["plan"].config,
                     .feed = context.feed,
                     .links = stages["plan"].links,
                     .stage = context.stage,
                     .seed = context.seed,
                     .state = context.state,
                     .state_bytes = context.state_bytes,
                     .input = context.input,
                     .output = context.output,
                     .counter = context.counter,
                     .note = context.note,
                     .progress = context.progress,
                     .info = context.info,
                     .warn = context.warn};
    return std::make_unique<EpochPlanner>(own, narrow_max);
  };
  std::vector<std::string> counters;
  for (const CounterSpec& counter : epoch_planner_type().counters) {
    counters.push_back(counter.name);
  }
  rig.add_node("plan", std::move(node), std::move(counters));
  rig.add_sink("out", "plan");
  rig.build();
  for (RigRecord& record : catalogue_records(example_corpus(true))) {
    rig.feed("corpus", std::move(record));
  }
  rig.finish("corpus");
  std::mt19937_64 random(2);
  EXPECT_TRUE(rig.run_until([&] {
    rig.run_with_restarts(random, 0.02);
    return rig.all_finished();
  }));
  return rig.got("out");
}

TEST(EpochPlanner, WideNumbersGiveTheSame) {
  for (const Example& example : kExamples) {
    const std::vector<RigRecord> narrow = run_node(example.planner, 0xffffffffU);
    ASSERT_GT(narrow.size(), 50U);
    EXPECT_EQ(run_node(example.planner, 100), narrow) << example.name;
  }
}

// ---- files that change

class ChangingFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::vector<std::uint32_t>& sizes) {
    std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
    const auto append = [&idx](auto value) {
      idx.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    append(static_cast<std::uint64_t>(sizes.size()));
    for (const std::uint32_t size : sizes) append(size);
    std::uint64_t at = 0;
    for (const std::uint32_t size : sizes) {
      append(at);
      at += 2 * size;
    }
    directory.write(name + ".idx", idx);
    directory.write(name + ".bin", std::string(at, '\7'));
  }
  std::vector<TestDirection> corpus() {
    return {{.key = "main:a-b", .shards = {{{directory.path("s"), directory.path("t")}}}}};
  }
  TempDir directory;
};

TEST_F(ChangingFiles, AreWaitedFor) {
  write("s", {3, 4, 5});
  write("t", {5, 4, 3});
  LaneRig rig(corpus_stage("") + "seed: 1 epochs: 1");
  rig.add_source("corpus");
  rig.add_stage("name: 'plan' epoch_planner { input: 'corpus' max_tokens: 100 }");
  rig.add_sink("out", "plan");
  rig.build();
  for (RigRecord& record : catalogue_records(corpus())) rig.feed("corpus", std::move(record));
  rig.finish("corpus");
  write("s", {3, 4});
  ASSERT_TRUE(rig.run_until([&] { return !rig.log("2 sentences now, 3 when").empty(); }));
  EXPECT_THAT(rig.note("plan"), HasSubstr("s.idx: 2 sentences now, 3 when the feed was started"));
  write("s", {3, 4, 5});
  ASSERT_TRUE(rig.run_until([&] { return rig.all_finished(); }));
  const std::vector<Planned> plans = plans_of(rig.got("out"));
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_THAT(plans[0].rows, ElementsAre(Sentence{0, 0}, Sentence{0, 1}, Sentence{0, 2}));
  EXPECT_EQ(rig.note("plan"), "");
}

// ---- messages

class Talking : public ::testing::Test {
 protected:
  void start(const std::string& planner, const std::string& feed = "seed: 9 epochs: 0") {
    rig = std::make_unique<LaneRig>(corpus_stage(planner) + feed);
    rig->add_source("corpus");
    rig->add_stage("name: 'plan' epoch_planner { input: 'corpus' queue_capacity: 4 " + planner +
                   " }");
    rig->add_sink("out", "plan");
    rig->build();
    for (RigRecord& record : catalogue_records(example_corpus(false))) {
      rig->feed("corpus", std::move(record));
    }
    rig->finish("corpus");
    rig->allow("out", 0);
  }
  // So many plans more.
  void take(std::size_t count) {
    const std::size_t want = rig->got("out").size() + count;
    rig->allow("out", count);
    ASSERT_TRUE(rig->run_until([&] { return rig->got("out").size() == want; }));
  }
  EpochPlannerControlResponse ask(const EpochPlannerControlRequest& request) {
    StageControlRequest message;
    *message.mutable_epoch_planner_request() = request;
    std::optional<EpochPlannerControlResponse> answer;
    const std::size_t lane = rig->lanes_of("plan").front();
    rig->lane(lane).post(
        {.key = ++key, .request = message.SerializeAsString(), .answer = [&](const auto& response) {
           StageControlResponse parsed;
           EXPECT_TRUE(response && parsed.ParseFromString(*response));
           answer = parsed.epoch_planner_response();
         }});
    rig->round(lane);
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(EpochPlannerControlResponse());
  }
  std::vector<Planned> got() { return plans_of(rig->got("out")); }

  std::unique_ptr<LaneRig> rig;
  std::uint64_t key = 0;
};

EpochPlannerControlRequest seek_to(std::uint64_t epoch, std::uint64_t batch,
                                   std::uint32_t world = 0) {
  EpochPlannerControlRequest request;
  request.mutable_seek()->set_epoch(epoch);
  request.mutable_seek()->set_batch(batch);
  if (world != 0) request.mutable_seek()->set_world_size(world);
  return request;
}

EpochPlannerControlRequest weights_of(const std::vector<double>& weights) {
  constexpr std::array kKeys = {"eng_Latn-tur_Latn", "eng_Latn-hin_Deva", "fra_Latn-eng_Latn"};
  EpochPlannerControlRequest request;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    request.add_weights()->set_key(kKeys[i]);
    request.mutable_weights(static_cast<int>(i))->set_weight(weights[i]);
  }
  return request;
}

TEST_F(Talking, GoesOnWhereItIsTold) {
  const std::vector<Planned> whole = plans_of(run_planner(
      example_corpus(false), {.planner = "max_tokens: 300", .feed = "seed: 9 epochs: 4"}));
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    const auto world = static_cast<std::uint32_t>(1 + random() % 6);
    const Planned& to = whole[random() % whole.size()];
    start(fmt::format("max_tokens: 300 world_size: {}", 1 + random() % 6));
    take(random() % 40);
    const EpochPlannerControlResponse answer = ask(seek_to(to.epoch, to.batch, world));
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.generation(), 1U);
    EXPECT_EQ(answer.epoch(), to.epoch);
    if (round % 2 == 0) rig->restart_all();
    take(60);
    const std::vector<Planned> plans = got();
    const auto first = std::ranges::find(plans, 1U, &Planned::generation);
    ASSERT_NE(first, plans.end());
    EXPECT_EQ((first - plans.begin()) % world, 0) << "ranks are in step";
    auto expected = std::ranges::find_if(whole, [&](const Planned& plan) {
      return plan.epoch == to.epoch && plan.batch == to.batch;
    });
    for (auto plan = first; plan != plans.end() && expected != whole.end(); ++plan) {
      if (plan->kind != BatchKind::kBatch) continue;
      ASSERT_EQ(plan->rows, expected->rows);
      ++expected;
    }
  }
}

TEST_F(Talking, RefusesWhatThereIsNot) {
  start("max_tokens: 300");
  take(1);
  EXPECT_THAT(ask(seek_to(0, 0)).error(), HasSubstr("count from 1"));
  EXPECT_THAT(ask(seek_to(1, 0, 17)).error(), HasSubstr("1 to 16"));
  EpochPlannerControlRequest weights;
  weights.add_weights()->set_key("eng_Latn-tur_Latn");
  EXPECT_THAT(ask(weights).error(), HasSubstr("eng_Latn-hin_Deva has no weight"));
  EXPECT_EQ(ask({}).error(), "");
  EXPECT_EQ(ask({}).epoch(), 1U);
  take(30);
  EXPECT_THAT(got(), Each(::testing::Field(&Planned::generation, 0U)));
}

TEST_F(Talking, APlaceBeyondAnEpochThatIsKnownIsRefused) {
  start("max_tokens: 300 world_size: 2");
  take(5);
  const std::uint64_t batches = ask({}).batches();
  ASSERT_GT(batches, 20U);
  const std::uint64_t beyond = batches + batches % 2;
  EXPECT_THAT(ask(seek_to(1, beyond)).error(),
              HasSubstr(fmt::format("epoch 1 has {} batches, and batch {}", batches, beyond)));
  EXPECT_EQ(ask({}).generation(), 0U);
  EXPECT_EQ(ask(seek_to(1, beyond - 1)).error(), "");
  EXPECT_EQ(ask({}).generation(), 1U);
}

// Whoever asks how long an epoch is before he goes there moves nothing.
TEST_F(Talking, AnEpochCanBeLookedAtBefore) {
  for (const std::uint64_t epoch : {1U, 2U, 7U}) {
    start("max_tokens: 300 world_size: 2 compat: NLLB sampling_method: TEMPERATURE");
    take(3);
    EpochPlannerControlRequest look = seek_to(epoch, 4);
    look.mutable_seek()->set_only_look(true);
    EpochPlannerControlResponse answer;
    ASSERT_TRUE(rig->run_until([&] {
      answer = ask(look);
      return answer.has_epoch_batches() || !answer.error().empty();
    }));
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.generation(), 0U);
    EXPECT_EQ(ask({}).epoch(), 1U);
    take(2);
    EpochPlannerControlRequest beyond = seek_to(epoch, answer.epoch_batches() + 2);
    EXPECT_THAT(ask(beyond).error(), HasSubstr("is beyond them"));
    EXPECT_EQ(ask(seek_to(epoch, 4)).error(), "");
    take(30);
    const std::vector<Planned> plans = got();
    const auto first = std::ranges::find(plans, 1U, &Planned::generation);
    ASSERT_NE(first, plans.end());
    EXPECT_EQ(first->epoch, epoch);
    EXPECT_EQ(first->batch, 4U);
  }
}

// Nor does it keep anything from going on.
TEST_F(Talking, WhatWasLookedAtNeedNotBeGoneTo) {
  start("max_tokens: 300");
  take(3);
  EpochPlannerControlRequest look = seek_to(9, 4);
  look.mutable_seek()->set_only_look(true);
  ask(look);
  take(20);
  EXPECT_EQ(got().back().epoch, 1U);
  EXPECT_EQ(ask(seek_to(2, 0)).error(), "");
  take(20);
  EXPECT_EQ(got().back().epoch, 2U);
}

TEST_F(Talking, AnEpochThatIsTooShortIsFollowedByTheNext) {
  start("max_tokens: 300");
  EXPECT_EQ(ask(seek_to(1, 1000000)).error(), "");
  take(40);
  const std::vector<Planned> plans = got();
  const auto first = std::ranges::find(plans, 1U, &Planned::generation);
  ASSERT_NE(first, plans.end());
  EXPECT_EQ(first->epoch, 2U);
  EXPECT_EQ(first->batch, 0U);
  EXPECT_THAT(rig->log("not 1000000"), SizeIs(1));
}

TEST_F(Talking, WeightsChangeFromABatchOn) {
  for (const bool dies : {false, true}) {
    start("max_tokens: 300 sampling_method: TEMPERATURE world_size: 2");
    take(10);
    EpochPlannerControlRequest request;
    for (const char* direction : {"eng_Latn-tur_Latn", "eng_Latn-hin_Deva", "fra_Latn-eng_Latn"}) {
      SamplingWeight& weight = *request.add_weights();
      weight.set_key(direction);
      weight.set_weight(direction[0] == 'f' ? 0 : 1);
    }
    request.set_from_batch(21);
    const EpochPlannerControlResponse answer = ask(request);
    EXPECT_EQ(answer.error(), "");
    EXPECT_EQ(answer.from_batch(), 21U);
    EXPECT_GT(answer.sentences_left(), 0U);
    if (dies) rig->restart_all();
    take(70);
    std::uint64_t sentences = 0;
    for (const Planned& plan : got()) {
      if (plan.epoch == 1 && plan.kind == BatchKind::kBatch) {
        EXPECT_LT(plan.batch, 21U);
        sentences += plan.rows.size();
      }
      if (plan.epoch > 1) {
        for (const Sentence& row : plan.rows) ASSERT_NE(row.first, 2U);
      }
    }
    EXPECT_EQ(rig->counter("plan", "sentences_dropped"), answer.sentences_left());
    EXPECT_GT(sentences, 0U);
    // The end of the epoch is filled up for the second rank.
    EXPECT_EQ(got()[21].kind, BatchKind::kStandIn);
    EXPECT_EQ(got()[22].epoch, 2U);
  }
}

// What a run gives in which weights were changed is given by one that is told of it at once.
TEST_F(Talking, WeightsOfAStateComeWithTheSeek) {
  const std::string planner = "max_tokens: 300 virtual_epoch_size: 200";
  start(planner);
  take(15);
  EpochPlannerControlRequest change = weights_of({1, 2, 3});
  change.set_from_batch(17);
  ASSERT_EQ(ask(change).error(), "");
  take(60);
  const std::vector<Planned> whole = got();
  ASSERT_GE(whole.back().epoch, 3U);
  EXPECT_EQ(std::ranges::count(whole, 1U, &Planned::epoch), 17);
  for (const std::size_t at : {4U, 16U, 17U, 30U, 50U}) {
    const Planned& to = whole[at];
    start(planner);
    take(3);
    EpochPlannerControlRequest seek = seek_to(to.epoch, to.batch);
    if (to.epoch > 1) {
      // Behind the change: with its weights, and the chain that began with it.
      *seek.mutable_seek()->mutable_weights() = weights_of({1, 2, 3}).weights();
      seek.mutable_seek()->set_chain_epoch(2);
      seek.mutable_seek()->set_chain_pass(1);
    }
    ASSERT_EQ(ask(seek).error(), "");
    if (to.epoch == 1) {
      EXPECT_EQ(ask(change).from_batch(), 17U);
    }
    if (at == 30) rig->restart_all();
    take(40);
    std::vector<Planned> plans = got();
    plans.erase(plans.begin(), std::ranges::find(plans, 1U, &Planned::generation));
    ASSERT_GE(plans.size(), 20U);
    for (std::size_t i = 0; i < std::min(plans.size(), whole.size() - at); ++i) {
      ASSERT_EQ(plans[i].rows, whole[at + i].rows) << at << " " << i;
      ASSERT_EQ(plans[i].epoch, whole[at + i].epoch);
      ASSERT_EQ(plans[i].batch, whole[at + i].batch);
    }
  }
}

// The same, told of before it takes effect, in the epoch that is gone on with or a later one.
TEST_F(Talking, WeightsToComeComeWithTheSeek) {
  const std::string planner = "max_tokens: 300 virtual_epoch_size: 200";
  start(planner);
  take(8);
  while (ask({}).epoch() < 3) take(1);
  take(5);
  EpochPlannerControlRequest change = weights_of({1, 2, 3});
  change.set_from_batch(12);
  const EpochPlannerControlResponse answer = ask(change);
  ASSERT_EQ(answer.error(), "");
  ASSERT_EQ(answer.epoch(), 3U);
  take(60);
  const std::vector<Planned> whole = got();
  ASSERT_GE(whole.back().epoch, 5U);
  for (const auto& [epoch, batch] : {std::pair(1U, 4U), {2U, 0U}, {3U, 2U}, {3U, 11U}}) {
    const auto first =
        std::ranges::find_if(whole, [epoch = epoch, batch = batch](const Planned& plan) {
          return plan.epoch == epoch && plan.batch == batch;
        });
    ASSERT_NE(first, whole.end());
    start(planner);
    take(3);
    EpochPlannerControlRequest seek = seek_to(epoch, batch);
    *seek.mutable_seek()->mutable_coming_weights() = weights_of({1, 2, 3}).weights();
    if (epoch != 3) seek.mutable_seek()->set_coming_epoch(3);
    seek.mutable_seek()->set_coming_from_batch(answer.from_batch());
    ASSERT_EQ(ask(seek).error(), "");
    if (epoch == 2) rig->restart_all();
    take(60);
    std::vector<Planned> plans = got();
    plans.erase(plans.begin(), std::ranges::find(plans, 1U, &Planned::generation));
    const auto count = std::min<std::ptrdiff_t>(std::ssize(plans), whole.end() - first);
    ASSERT_GE(count, 30);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      ASSERT_EQ(plans[static_cast<std::size_t>(i)].rows, first[i].rows) << epoch << " " << i;
      ASSERT_EQ(plans[static_cast<std::size_t>(i)].epoch, first[i].epoch);
    }
  }
}

TEST_F(Talking, WeightsToComeBeforeThePlaceAreRefused) {
  start("max_tokens: 300");
  take(1);
  EpochPlannerControlRequest seek = seek_to(5, 0);
  *seek.mutable_seek()->mutable_coming_weights() = weights_of({1, 2, 3}).weights();
  seek.mutable_seek()->set_coming_epoch(4);
  EXPECT_THAT(ask(seek).error(), HasSubstr("coming_epoch 4 is before epoch 5"));
  seek.mutable_seek()->clear_coming_epoch();
  seek.mutable_seek()->mutable_coming_weights()->RemoveLast();
  EXPECT_THAT(ask(seek).error(), HasSubstr("has no weight"));
  EXPECT_EQ(ask({}).epoch(), 1U);
}

TEST_F(Talking, WeightsChangeOverAndOver) {
  for (const bool dies : {false, true}) {
    start("max_tokens: 300");
    std::uint64_t epoch = 0;
    for (std::uint32_t round = 0; round < 12; ++round) {
      take(3);
      // Now and then twice in one epoch: the later one holds.
      for (std::uint32_t again = 0; again <= round % 2; ++again) {
        const std::uint32_t only = (round + again) % 3;
        std::vector<double> weights(3);
        weights[only] = 1;
        ASSERT_EQ(ask(weights_of(weights)).error(), "");
      }
      if (dies) rig->restart_all();
      take(6);
      const Planned last = got().back();
      EXPECT_GT(last.epoch, epoch);
      epoch = last.epoch;
      for (const Sentence& row : last.rows) ASSERT_EQ(row.first, (round + round % 2) % 3);
    }
  }
}

// The rows of an epoch, by direction.
std::map<std::uint32_t, int> directions_in(const std::vector<Planned>& plans, std::uint64_t epoch,
                                           std::uint32_t generation) {
  std::map<std::uint32_t, int> count;
  for (const Planned& plan : plans) {
    if (plan.epoch != epoch || plan.generation != generation) continue;
    for (const Sentence& row : plan.rows) ++count[row.first];
  }
  return count;
}

// With so many ranks an epoch has no batch for any of them; another message helps.
TEST_F(Talking, WhereThereIsNothingAnotherMessageIsWaitedFor) {
  start("max_tokens: 6000 compat: NLLB");
  take(3);
  ASSERT_EQ(ask(seek_to(2, 0, 16)).error(), "");
  const auto says = [this] { return rig->note("plan").find("no batch in any shard"); };
  ASSERT_TRUE(rig->run_until([&] {
    rig->allow("out", 4096);
    return says() != std::string::npos;
  }));
  EXPECT_FALSE(rig->finished(rig->lanes_of("plan").front()));
  ASSERT_EQ(ask(seek_to(3, 2, 2)).error(), "");
  ASSERT_TRUE(rig->run_until([&] {
    rig->allow("out", 4096);
    const std::vector<Planned> plans = got();
    return !plans.empty() && plans.back().generation == 2 && plans.back().batch > 2;
  }));
  const std::vector<Planned> plans = got();
  const auto first = std::ranges::find(plans, 2U, &Planned::generation);
  EXPECT_EQ(first->epoch, 3U);
  EXPECT_EQ(first->batch, 2U);
  EXPECT_EQ((first - plans.begin()) % 2, 0);
}

// A plan that was made with weights which a seek has forgotten is of no use to others.
TEST_F(Talking, WeightsThatASeekForgotAreForgotten) {
  start("max_tokens: 300");
  take(5);
  EpochPlannerControlRequest first = weights_of({0, 1, 0});
  first.set_from_batch(65);
  ASSERT_EQ(ask(first).error(), "");
  const auto planned = [this] { return rig->log("planned epoch=2").size(); };
  const std::size_t plans = planned();
  for (int taken = 5; taken < 55 && planned() == plans; ++taken) {
    take(1);
    // It is made by a thread of its own, which needs time more than batches.
    int rounds = 0;
    ASSERT_TRUE(rig->run_until([&] { return planned() > plans || ++rounds > 2000; }));
  }
  ASSERT_GT(planned(), plans);
  take(2);
  ASSERT_EQ(ask(seek_to(1, 20)).error(), "");
  EpochPlannerControlRequest second = weights_of({0, 0, 1});
  second.set_from_batch(65);
  ASSERT_EQ(ask(second).error(), "");
  take(80);
  EXPECT_THAT(directions_in(got(), 2, 1), ElementsAre(::testing::Pair(2U, ::testing::Gt(50))));
}

TEST_F(Talking, AStateWithoutWeightsHasThoseOfTheConfiguration) {
  const std::string planner = "max_tokens: 300 sampling_method: TEMPERATURE";
  const std::vector<Planned> whole = plans_of(
      run_planner(example_corpus(false), {.planner = planner, .feed = "seed: 9 epochs: 2"}));
  start(planner);
  take(3);
  ASSERT_EQ(ask(weights_of({0, 1, 0})).error(), "");
  take(20);
  EpochPlannerControlRequest seek = seek_to(1, 0);
  seek.mutable_seek()->set_configured_weights(true);
  ASSERT_EQ(ask(seek).error(), "");
  rig->restart_all();
  take(60);
  std::vector<Planned> plans = got();
  plans.erase(plans.begin(), std::ranges::find(plans, 1U, &Planned::generation));
  ASSERT_GT(plans.size(), 30U);
  for (std::size_t i = 0; i < std::min(plans.size(), whole.size()); ++i) {
    ASSERT_EQ(plans[i].rows, whole[i].rows) << i;
  }
}

// Whenever the message comes, all ranks make the same number of steps.
TEST_F(Talking, RanksStayInStepWhateverChanges) {
  for (std::size_t before = 1; before < 12; ++before) {
    start("max_tokens: 300 world_size: 8 stand_in_first: true");
    take(before);
    ASSERT_EQ(ask(weights_of({1, 1, 1})).error(), "");
    take(40);
    const std::vector<Planned> plans = got();
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (plans[i].kind != BatchKind::kBatch) continue;
      ASSERT_EQ(plans[i].batch % 8, i % 8) << before << " " << i;
    }
  }
}

TEST_F(Talking, LongNamesAreCutShort) {
  start("max_tokens: 300");
  take(1);
  EpochPlannerControlRequest request;
  request.add_weights()->set_key(std::string(5000, 'k'));
  request.mutable_weights(0)->set_weight(1e13);
  EXPECT_THAT(ask(request).error(), HasSubstr("kkk is not in 0 to"));
  take(1);
}

// The ranks are members of one consumer group.
TEST(EpochPlanner, AWorldThatNoGroupHasIsRefused) {
  const auto problems = [](std::uint32_t world) {
    const StageViews stages(fmt::format(
        "stages {{ name: 'plan' epoch_planner {{ batch_size: 1 world_size: {} }} }}", world));
    return epoch_planner_type().problems(stages["plan"]);
  };
  EXPECT_THAT(problems(16), ::testing::IsEmpty());
  ASSERT_THAT(problems(17), ::testing::SizeIs(1));
  EXPECT_EQ(problems(17).front().field, "world_size");
  EXPECT_FALSE(problems(17).front().warning);
  EXPECT_THAT(problems(32).front().text,
              HasSubstr("world_size is 32, but a consumer group has at most 16 ranks"));
}

TEST(EpochPlanner, AQueueThatMayBeTooSmallIsWarnedOf) {
  const auto warnings = [](const std::string& own) {
    const StageViews stages("stages { name: 'plan' epoch_planner { input: 'c' " + own + " } }");
    std::vector<std::string> texts;
    for (const Problem& problem : epoch_planner_type().problems(stages["plan"])) {
      EXPECT_TRUE(problem.warning) << problem.text;
      texts.push_back(problem.field + ": " + problem.text);
    }
    return texts;
  };
  // 100 rows of 16 bytes, a part, its paths and the head.
  EXPECT_THAT(warnings("batch_size: 100 queue_bytes: 8192"),
              ElementsAre(AllOf(HasSubstr("queue_bytes: "), HasSubstr("give at least 8592"))));
  EXPECT_THAT(warnings("batch_size: 100 queue_bytes: 8592"), ::testing::IsEmpty());
  EXPECT_THAT(warnings("batch_size: 100"), ::testing::IsEmpty());
}

TEST(EpochPlanner, ADirectionWithoutWeightDoesNotCount) {
  const std::vector<Planned> plans = plans_of(run_planner(
      example_corpus(false),
      {.planner = "max_tokens: 300 sampling_weights { key: 'eng_Latn-tur_Latn' weight: 1 } "
                  "sampling_weights { key: 'eng_Latn-hin_Deva' weight: 1 } "
                  "sampling_weights { key: 'fra_Latn-eng_Latn' weight: 0 }"}));
  // The larger one keeps its size, the other one grows to it.
  EXPECT_THAT(directions_in(plans, 1, 0),
              ElementsAre(::testing::Pair(0U, 300), ::testing::Pair(1U, 300)));
}

}  // namespace
}  // namespace ringfeed
