// What every kind of stage does with messages: whenever they come and whatever they say, each has
// an answer, no stage dies of it, and the stage goes on.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include "proto/control.pb.h"
#include "ringfeed/worker/control.h"
#include "tests/support/rig/stage_data.h"
#include "workers/programs/all.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

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
                  "name: 'mixer' sample_mixer { input: 'games' variations: 'variations' "
                  "variation_ratio: 0.4 queue_bytes: 131072 }",
                  "name: 'batches' sequence_batcher { input: 'mixer' length: 1024 batch_size: 4 }"},
       .ends = {}},
      bitext("epochs of our own", "", "sampling_method: TEMPERATURE virtual_epoch_size: 250"),
      bitext("epochs of fairseq", "compat: NLLB",
             "update_freq: 2 update_freq: 3 sampling_method: TEMPERATURE"),
      bitext("epochs of fairseq's main", "compat: MAIN", "virtual_epoch_size: 250"),
  };
}

// ---- messages

template <typename T>
T one_of(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

// Sets fields to what nobody means.
void spoil(Message& message, std::mt19937_64& random) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::uint64_t turns = field->is_repeated() ? random() % 4 : random() % 2;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
      const auto give = [&](auto set, auto add, auto value) {
        if (field->is_repeated()) {
          (reflection.*add)(&message, field, value);
        } else {
          (reflection.*set)(&message, field, value);
        }
      };
      constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
      const auto whole = one_of<std::uint64_t>(random, {0, 1, 1, 2, 2, 3, 7, 4096, 4097, 10'000'000,
                                                        10'000'001, kMost / 2, kMost - 1, kMost});
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          give(&Reflection::SetBool, &Reflection::AddBool, random() % 2 == 0);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          give(&Reflection::SetUInt64, &Reflection::AddUInt64, whole);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          give(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<std::uint32_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          give(&Reflection::SetInt64, &Reflection::AddInt64, static_cast<std::int64_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          give(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<std::int32_t>(whole));
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          give(&Reflection::SetDouble, &Reflection::AddDouble,
               one_of<double>(random, {0, 1, 3, -1, 1e12, 1e300, 1e-300,
                                       std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN()}));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          give(&Reflection::SetString, &Reflection::AddString,
               one_of<std::string>(
                   random, {"eng_Latn-tur_Latn", "fra_Latn-eng_Latn", "main:fra_Latn-eng_Latn", "",
                            "a\nb", std::string(5000, 'k')}));
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          spoil(field->is_repeated() ? *reflection.AddMessage(&message, field)
                                     : *reflection.MutableMessage(&message, field),
                random);
          break;
        default:
          FAIL() << field->full_name() << ": of a type that this test does not know";
      }
    }
  }
}

// Every message there is, empty; for a while those that mean something; then anything.
StageControlRequest message_number(std::uint64_t number, std::mt19937_64& random) {
  StageControlRequest request;
  const auto kinds = static_cast<std::uint64_t>(request.GetDescriptor()->field_count());
  if (number < kinds) {
    request.GetReflection()->MutableMessage(
        &request, request.GetDescriptor()->field(static_cast<int>(number)));
  } else if (number > kinds) {
    spoil(request, random);
  }
  return request;
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

// The tests above look at all kinds of stages that there are.
TEST(MessagesCover, EveryKind) {
  TempDir directory;
  std::string all;
  for (const Pipeline& pipeline : pipelines(directory)) {
    for (const std::string& stage : pipeline.stages) all += stage + "\n";
  }
  Registry registry;
  register_all_stages(registry);
  for (const StageType& type : registry.types()) {
    // In a program of its own, with Arrow.
    if (type.kind == "parquet_source") continue;
    EXPECT_THAT(all, ::testing::HasSubstr("' " + type.kind + " {"));
  }
}

}  // namespace
}  // namespace ringfeed
