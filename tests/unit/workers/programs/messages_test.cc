// What stages do with messages: whenever they come and whatever they say, each has an answer, no
// stage dies of it, and the stage goes on. That each kind answers is tests/conformance' business.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "proto/control.pb.h"
#include "ringfeed/worker/control.h"
#include "tests/support/makers/message_maker.h"
#include "tests/support/rig/stage_data.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

// Stages one behind the other, with what feeds them.
struct Pipeline {
  std::string name;
  std::string feed;
  std::vector<std::string> sources;
  std::vector<std::string> stages;
  std::vector<std::string> ends;  // outputs that nobody reads but the test
};

const std::string& bitext_data() {
  static const std::string path = RINGFEED_SOURCE_DIR "/tests/data/fairseq/inputs/data_bin";
  return path;
}

Pipeline bitext(const std::string& name, const std::string& compat, const std::string& planner) {
  const std::string source = fmt::format(
      "name: 'bitext' bitext_source {{ {1} directory: '{0}/shard000' directory: '{0}/shard001' "
      "lang_pairs: 'eng_Latn-tur_Latn' lang_pairs: 'fra_Latn-eng_Latn' encoder_langtok: SRC "
      "queue_capacity: 2 queue_bytes: 65536 }}",
      bitext_data(), compat);
  const std::string plans = fmt::format(
      "name: 'plans' epoch_planner {{ input: 'bitext' max_tokens: 300 world_size: 2 {} {} }}",
      compat, planner);
  const std::string batches = "name: 'batches' bitext_collator { input: 'plans' }";
  return {.name = name,
          .feed = fmt::format("epochs: 0 seed: 3 stages {{ {} }} stages {{ {} }} stages {{ {} }}",
                              source, plans, batches),
          .sources = {},
          .stages = {source, plans, batches},
          .ends = {}};
}

std::vector<Pipeline> pipelines(const TempDir& directory) {
  const std::string provider =
      fmt::format("name: 'provider' file_path_provider {{ directory: '{}' }}", directory.path());
  const std::string loader =
      "name: 'loader' chunk_source_loader { input: 'provider' queue_bytes: 65536 }";
  return {
      {.name = "frames",
       .feed = "epochs: 0 seed: 3",
       .sources = {},
       .stages = {provider, loader,
                  "name: 'pool' shuffling_chunk_pool { input: 'loader' chunk_pool_size: 60 "
                  "queue_bytes: 524288 queue_capacity: 2 }",
                  "name: 'validator' chunk_validator { input: 'pool' queue_bytes: 524288 "
                  "queue_capacity: 1 }",
                  "name: 'rescorer' chunk_rescorer { input: 'validator' queue_bytes: 524288 "
                  "queue_capacity: 1 }",
                  "name: 'unpacker' chunk_unpacker { input: 'rescorer' position_sampling_rate: 0.5 "
                  "queue_bytes: 65536 }",
                  "name: 'sampler' shuffling_frame_sampler { input: 'unpacker' "
                  "reservoir_size_per_thread: 25 queue_bytes: 65536 }",
                  "name: 'tensors' tensor_generator { input: 'sampler' batch_size: 8 }"},
       .ends = {}},
      {.name = "branches",
       .feed = "epochs: 1 seed: 3",
       .sources = {},
       .stages = {provider, loader,
                  "name: 'split' chunk_source_splitter { input: 'loader' outputs { name: 'a' } "
                  "outputs { name: 'b' } queue_capacity: 64 queue_bytes: 65536 }",
                  "name: 'first' simple_chunk_extractor { input: 'split.a' queue_bytes: 262144 "
                  "queue_capacity: 2 }",
                  "name: 'second' simple_chunk_extractor { input: 'split.b' queue_bytes: 262144 "
                  "queue_capacity: 2 }",
                  "name: 'once' chunk_unpacker { input: 'first' position_sampling_rate: 1 "
                  "queue_bytes: 65536 }",
                  "name: 'again' chunk_unpacker { input: 'second' position_sampling_rate: 1 "
                  "queue_bytes: 65536 }",
                  "name: 'join' join_positions { input: 'once' input: 'again' queue_bytes: 65536 }",
                  "name: 'tensors' tensor_generator { input: 'join' batch_size: 8 }"},
       .ends = {}},
      {.name = "games",
       .feed = "epochs: 1 seed: 5",
       .sources = {"rows", "other_rows"},
       .stages = {"name: 'games' chess_games { input: 'rows' queue_bytes: 131072 }",
                  "name: 'variations' chess_variations { input: 'other_rows' queue_bytes: 131072 }",
                  "name: 'mixer' variation_mixer { input: 'games' variations: 'variations' "
                  "variation_ratio: 0.4 queue_bytes: 131072 }",
                  "name: 'batches' sequence_batcher { input: 'mixer' length: 1024 batch_size: 4 }"},
       .ends = {}},
      bitext("epochs of our own", "", "sampling_method: TEMPERATURE virtual_epoch_size: 250"),
      bitext("epochs of fairseq", "compat: NLLB",
             "update_freq: 2 update_freq: 3 sampling_method: TEMPERATURE"),
      bitext("epochs of fairseq's main", "compat: MAIN", "virtual_epoch_size: 250"),
  };
}

class Messages : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 12; ++i) {
      directory.write(fmt::format("{:02}.gz", i),
                      gzip_text(game(10U * static_cast<unsigned>(i), 9)));
    }
    pipeline = pipelines(directory).at(static_cast<std::size_t>(GetParam()));
    rig = std::make_unique<LaneRig>(pipeline.feed);
    for (const std::string& source : pipeline.sources) rig->add_source(source);
    for (const std::string& stage : pipeline.stages) rig->add_stage(stage);
    rig->build();
    for (const std::string& source : pipeline.sources) rig->finish(source);
  }

  // Asks a lane, which has then made a round. "": it has no answer for such a message.
  std::string ask(std::size_t lane, const StageControlRequest& request) {
    std::optional<std::string> answer;
    rig->lane(lane).post({.key = ++key,
                          .request = request.SerializeAsString(),
                          .answer = [&](const auto& given) { answer = given.value_or(""); }});
    rig->round(lane);
    EXPECT_TRUE(answer.has_value()) << rig->node_of(lane);
    StageControlResponse parsed;
    EXPECT_TRUE(parsed.ParseFromString(answer.value_or("")));
    EXPECT_LE(answer.value_or("").size(), ControlBox::kAnswerBytesMax);
    return answer.value_or("");
  }
  void ask_all(std::uint64_t each, std::mt19937_64& random) {
    for (std::size_t lane = 0; lane < rig->lane_count(); ++lane) {
      for (std::uint64_t i = 0; i < each; ++i) {
        if (rig->finished(lane)) break;
        ask(lane, message_number(i, random));
        ASSERT_FALSE(HasFailure());
      }
    }
  }

  TempDir directory;
  Pipeline pipeline;
  std::unique_ptr<LaneRig> rig;
  std::uint64_t key = 0;
};

// Its first messages find a stage that has not made a step.
TEST_P(Messages, AreAnsweredFromTheFirstMomentOn) {
  std::mt19937_64 random(1);
  const auto fields = static_cast<std::uint64_t>(StageControlRequest::descriptor()->field_count());
  for (int round = 0; round < 30 && !rig->all_finished(); ++round) {
    // At first no stage has anything to work on.
    ask_all(fields + 1, random);
    if (round < 3) continue;
    for (int turn = 0; turn < 40; ++turn) {
      for (std::size_t lane = 0; lane < rig->lane_count(); ++lane) rig->round(lane);
    }
  }
}

TEST_P(Messages, OfAnyContentLeaveTheStageAlive) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    SetUp();
    for (int round = 0; round < 12 && !rig->all_finished(); ++round) {
      ask_all(1 + random() % 12, random);
      if (random() % 3 == 0) rig->restart_all();
      for (std::uint64_t i = random() % 40; i > 0; --i) {
        for (std::size_t lane = 0; lane < rig->lane_count(); ++lane) rig->round(lane);
      }
      ASSERT_FALSE(HasFailure());
    }
    // The planner goes on wherever it was sent in between.
    const std::vector<std::size_t> planner =
        pipeline.name.starts_with("epochs") ? rig->lanes_of("plans") : std::vector<std::size_t>();
    if (planner.empty()) continue;
    ASSERT_TRUE(rig->run_until([&] { return rig->counter("plans", "batches") > 0; }) ||
                rig->finished(planner.front()));
    ASSERT_FALSE(rig->finished(planner.front())) << seed;
    StageControlRequest request;
    auto& seek = *request.mutable_epoch_planner_request()->mutable_seek();
    seek.set_epoch(1);
    seek.set_world_size(2);
    EpochPlannerControlResponse answer;
    {
      StageControlResponse parsed;
      ASSERT_TRUE(parsed.ParseFromString(ask(planner.front(), request)));
      answer = parsed.epoch_planner_response();
    }
    ASSERT_EQ(answer.error(), "");
    const std::uint64_t before = rig->counter("plans", "batches");
    ASSERT_TRUE(rig->run_until([&] { return rig->counter("plans", "batches") > before + 5; }));
  }
}

INSTANTIATE_TEST_SUITE_P(OfEveryPipeline, Messages, ::testing::Range(0, 6));

}  // namespace
}  // namespace ringfeed
