#include "supervisor/config/check.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>

#include "ringfeed/shm/result.h"
#include "supervisor/config/fields.h"
#include "supervisor/config/paths.h"
#include "tests/unit/supervisor/config/plan_maker.h"

namespace ringfeed::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

TEST(Check, TheLc0PipelineIsRight) {
  EXPECT_THAT(messages(lc0_text()), IsEmpty());
  const Configuration configuration =
      read_config(RINGFEED_SOURCE_DIR "/workers/pipelines/lc0.textproto");
  const PipelinePlan plan = lc0_plan(configuration.message());
  EXPECT_EQ(problem_report(check_config(configuration, plan).problems), "");
}

// Five mistakes of five kinds, each with its place; nothing that only follows from them.
TEST(Check, FiveMistakesGiveFiveMessages) {
  EXPECT_THAT(
      messages("feed: \"lc0\"\n"
               "epochs: 70000\n"
               "stages { name: \"provider\" file_path_provider { directory: \"/data\" } }\n"
               "stages { name: \"loader\" chunk_source_loader { input: \"provder\" } }\n"
               "stages {\n"
               "  name: \"pool\"\n"
               "  shuffling_chunk_pool { input: \"loader\" chunk_pool_sise: 1000 }\n"
               "}\n"
               "stages { name: \"unpacker\" chunk_unpacker { input: \"pool\" threads: 0 } }\n"
               "stages { name: \"sampler\" shuffling_frame_sampler { input: \"pool\" } }\n"
               "stages { name: \"tensors\" tensor_generator { input: \"sampler\" } }\n"),
      ElementsAre("lc0.textproto:2:1: epochs is 70000; give a whole number from 0 to 65535",
                  "lc0.textproto:4:47: stage 'loader': input is \"provder\", but there is no "
                  "stage 'provder'; did you mean 'provider'?",
                  "lc0.textproto:7:42: stage 'pool': unknown field 'chunk_pool_sise' in "
                  "shuffling_chunk_pool; did you mean 'chunk_pool_size'?",
                  "lc0.textproto:9:58: stage 'unpacker': threads is 0; give a whole number from "
                  "1 to 64",
                  "lc0.textproto:10:52: stage 'sampler': pool.output carries chunks, "
                  "sampler.input takes frames; frames come from unpacker.output"));
}

TEST(Check, AnAddressOfAnObjectStoreIsToldWhatToDo) {
  const std::string bitext =
      "feed: \"x\" stages { name: \"rows\" bitext_source { directory: \"s3://bucket/games\" } }";
  EXPECT_THAT(messages(bitext),
              Contains(AllOf(HasSubstr("stage 'rows'"),
                             HasSubstr("s3://bucket/games is the address of an object store"),
                             HasSubstr("mount the store"))));
  // A provider of files fetches them.
  EXPECT_THAT(messages(lc0_text_with("/data", "s3://bucket/games")),
              Not(Contains(HasSubstr("is the address of an object store"))));
  EXPECT_FALSE(is_address("/data/a://b") || is_address("C://x") || is_address("://x"));
}

TEST(Check, SnapshotsNeedAPlaceAndATime) {
  EXPECT_THAT(messages(lc0_text() + "snapshot { directory: \"/tmp\" every_s: 60 }"), IsEmpty());
  EXPECT_THAT(messages(lc0_text() + "snapshot { every_batches: 5 }"),
              ElementsAre(HasSubstr("snapshot.directory is missing")));
  EXPECT_THAT(messages(lc0_text() + "snapshot { directory: \"/tmp\" }"),
              ElementsAre(HasSubstr("neither every_batches nor every_s")));
  EXPECT_THAT(messages(lc0_text() + "snapshot { directory: \"/tmp\" every_s: 60 keep: 0 }"),
              SizeIs(1));
}

TEST(Check, AMistakeInASyntaxDoesNotHideTheOthers) {
  EXPECT_THAT(messages(lc0_text_with("name: \"pool\"", "name \"pool\"") + "seed: x\n"),
              ElementsAre(StartsWith("lc0.textproto:3:15: expected ':' after 'name'"),
                          StartsWith("lc0.textproto:7:7: seed is x;")));
}

TEST(Check, BrokenStructureIsAllThatIsReported) {
  EXPECT_THAT(messages("stages {"), SizeIs(1));
  EXPECT_THAT(messages("}"), SizeIs(1));
}

// Every "lc0.textproto:12:3" or "lc0.json:12:3" in a message as "@".
std::string without_places(std::string message) {
  for (const std::string source : {"lc0.textproto:", "lc0.json:"}) {
    for (std::size_t at = message.find(source); at != std::string::npos;
         at = message.find(source)) {
      std::size_t end = message.find_first_not_of("0123456789:", at + source.size());
      if (end == std::string::npos) end = message.size();
      if (message[end - 1] == ':') --end;  // the colon after the place
      message.replace(at, end - at, "@");
    }
  }
  return message;
}

// The same mistakes in both notations: the same words, other places.
TEST(Check, JsonAndTextGiveEqualMessages) {
  const std::string text = R"(
    sede: 1
    epochs: 70000
    stages { nmae: "provider" file_path_provider { directory: "/data" threads: 2 } }
    stages { name: "loader" chunk_source_loader { input: "provder" overflow_behavior: BLOK } }
    stages { name: "loader" shuffling_chunk_pool { input: "loader" threads: 65 } }
    stages { name: "unpacker" chunk_unpacker { input: "poool" position_sampling_rate: 1.5 } }
    stages { name: "sampler" }
    stages {
      name: "tensors" tensor_generator { input: "unpacker.rows" batch_size: -1 } chunk_unpacker {}
    }
    stage_groups { name: "a" stages: "tensor" }
    feed_output { slots: 1000 groups { kind: RANKED } }
    drop_remainder: 7
  )";
  const std::string json = R"({
    "sede": 1,
    "epochs": 70000,
    "stages": [
      {"nmae": "provider", "file_path_provider": {"directory": "/data", "threads": 2}},
      {"name": "loader",
       "chunkSourceLoader": {"input": "provder", "overflow_behavior": "BLOK"}},
      {"name": "loader", "shuffling_chunk_pool": {"input": "loader", "threads": 65}},
      {"name": "unpacker", "chunk_unpacker": {"input": "poool", "positionSamplingRate": 1.5}},
      {"name": "sampler"},
      {"name": "tensors",
       "tensor_generator": {"input": "unpacker.rows", "batch_size": -1}, "chunk_unpacker": {}}
    ],
    "stage_groups": [{"name": "a", "stages": ["tensor"]}],
    "feed_output": {"slots": 1000, "groups": [{"kind": "RANKED"}]},
    "drop_remainder": 7
  })";
  const auto words = [](std::vector<std::string> all) {
    for (std::string& message : all) message = without_places(message);
    std::sort(all.begin(), all.end());
    return all;
  };
  const std::vector<std::string> of_text = words(messages(text));
  EXPECT_EQ(of_text, words(messages(json)));
  EXPECT_THAT(of_text, SizeIs(testing::Ge(14U)));
  for (const std::string& message : of_text) EXPECT_THAT(message, StartsWith("@: "));
}

// ------------------------------------------------------------------------------------------ stages

TEST(CheckStages, ThereMustBeOne) {
  EXPECT_THAT(messages("seed: 1"),
              ElementsAre("lc0.textproto: there are no stages; add stages { name: "
                          "\"...\" ... }"));
  EXPECT_THAT(messages("stagse: 1"), SizeIs(1)) << "the misspelt field is the one mistake";
}

TEST(CheckStages, HaveNames) {
  EXPECT_THAT(
      messages(lc0_text_with("name: \"tensors\" ", "")),
      ElementsAre(StartsWith("lc0.textproto:6:1: stage 'stages[5]': it has no name; add name:")));
  EXPECT_THAT(messages(lc0_text_with("name: \"tensors\"", "name: \"\"")), SizeIs(1));
}

TEST(CheckStages, HaveNamesWithoutADot) {
  EXPECT_THAT(messages(lc0_text_with("name: \"tensors\"", "name: \"ten.sors\"")),
              ElementsAre(StartsWith("lc0.textproto:6:10: stage 'ten.sors': \"ten.sors\" cannot be "
                                     "a name; use 1 to 64 letters")));
}

TEST(CheckStages, HaveDifferentNames) {
  EXPECT_THAT(messages(lc0_text() +
                       "stages { name: \"loader\" file_path_provider { directory: \"/d\" } }\n"),
              ElementsAre("lc0.textproto:7:10: stage 'loader': the stage at lc0.textproto:2:1 "
                          "already has this name; rename one of them"));
}

TEST(CheckStages, HaveAConfiguration) {
  std::string kinds;
  for (const auto* kind : kind_fields()) kinds += (kinds.empty() ? "" : ", ") + kind->name();
  ASSERT_THAT(kinds, AllOf(StartsWith("file_path_provider, chunk_source_loader, "),
                           HasSubstr(", tensor_generator, ")));
  EXPECT_THAT(
      messages(lc0_text() + "stages { name: \"empty\" }"),
      ElementsAre(
          "lc0.textproto:7:1: stage 'empty': it has no configuration; give exactly one of " +
          kinds));
}

TEST(CheckStages, AnUnknownConfigurationIsOneMistake) {
  EXPECT_THAT(
      messages(lc0_text_with("tensor_generator", "tensor_generater")),
      ElementsAre(HasSubstr("6:26: stage 'tensors': unknown field 'tensor_generater' in stages[5]; "
                            "did you mean 'tensor_generator'?")));
  EXPECT_THAT(
      messages(lc0_text_with("tensor_generator", "blender")),
      ElementsAre(HasSubstr("unknown field 'blender' in stages[5]; it has name, file_path")));
  EXPECT_THAT(
      messages(lc0_text_with("tensor_generator { input: \"sampler\" }", "tensor_generator: 5")),
      ElementsAre(HasSubstr("tensor_generator is 5; give a message")));
}

TEST(CheckStages, HaveOneConfigurationOnly) {
  EXPECT_THAT(
      messages(lc0_text_with("tensor_generator {", "chunk_unpacker {} tensor_generator {")),
      testing::Contains("lc0.textproto:6:1: stage 'tensors': it has 2 configurations, "
                        "chunk_unpacker (lc0.textproto:6:26), tensor_generator "
                        "(lc0.textproto:6:44); keep one and make the others separate stages"));
}

// ------------------------------------------------------------------------------------------ ranges

// Every field that has a range: its ends are accepted, what lies beyond is refused. New fields are
// covered the day they are written.
TEST(CheckRanges, HoldForEveryFieldOfTheSchema) {
  int ranges = 0;
  const auto visit = [&ranges](const google::protobuf::Descriptor& descriptor,
                               const auto& self) -> void {
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *descriptor.field(i);
      if (field.message_type() != nullptr) self(*field.message_type(), self);
      if (range_of(field) == nullptr) continue;
      ++ranges;
      const Range& range = *range_of(field);
      EXPECT_TRUE(range.has_min() || range.has_above()) << field.full_name();
      if (range.has_min()) {
        EXPECT_TRUE(in_range(field, range.min())) << field.full_name();
        EXPECT_FALSE(in_range(field, range.min() - 1)) << field.full_name();
      }
      if (range.has_max()) {
        EXPECT_TRUE(in_range(field, range.max())) << field.full_name();
        EXPECT_FALSE(in_range(field, range.max() + 1)) << field.full_name();
      }
      if (range.has_above()) {
        EXPECT_FALSE(in_range(field, range.above())) << field.full_name();
      }
      EXPECT_FALSE(in_range(field, std::numeric_limits<double>::quiet_NaN())) << field.full_name();
      const bool number =
          field.cpp_type() == field.CPPTYPE_UINT32 || field.cpp_type() == field.CPPTYPE_UINT64 ||
          field.cpp_type() == field.CPPTYPE_FLOAT || field.cpp_type() == field.CPPTYPE_DOUBLE;
      EXPECT_TRUE(number) << field.full_name();
      // A default outside its own range would refuse who copies the documentation.
      if (field.has_default_value() && field.cpp_type() == field.CPPTYPE_UINT32) {
        EXPECT_TRUE(in_range(field, field.default_value_uint32())) << field.full_name();
      }
      if (field.has_default_value() && field.cpp_type() == field.CPPTYPE_UINT64) {
        EXPECT_TRUE(in_range(field, static_cast<double>(field.default_value_uint64())))
            << field.full_name();
      }
    }
  };
  visit(*DataLoaderConfig::descriptor(), visit);
  EXPECT_GE(ranges, 30);
}

TEST(CheckRanges, EveryNumberOfTheSchemaHasOneOrNeedsNone) {
  std::vector<std::string> without;
  std::set<const google::protobuf::Descriptor*> seen;
  const auto visit = [&](const google::protobuf::Descriptor& descriptor, const auto& self) -> void {
    if (!seen.insert(&descriptor).second) return;
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *descriptor.field(i);
      if (field.message_type() != nullptr) self(*field.message_type(), self);
      const bool number =
          field.cpp_type() != field.CPPTYPE_MESSAGE && field.cpp_type() != field.CPPTYPE_STRING &&
          field.cpp_type() != field.CPPTYPE_BOOL && field.cpp_type() != field.CPPTYPE_ENUM;
      if (number && range_of(field) == nullptr) without.push_back(field.name());
    }
  };
  visit(*DataLoaderConfig::descriptor(), visit);
  // The planner's: any number of epochs, any batch, any seed. Shapes and weights are looked at by
  // their stages.
  EXPECT_THAT(without,
              ElementsAre("key", "seed", "curriculum", "start_batch", "shape", "weight", "seed"));
}

// What is said once, of every stage that has the field: number, type and range.
TEST(CheckCommonFields, AreTheSameInEveryStage) {
  int common = 0;
  std::vector<std::string> others;
  for (const google::protobuf::FieldDescriptor* kind : kind_fields()) {
    const google::protobuf::Descriptor& stage = *kind->message_type();
    for (int i = 0; i < stage.field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *stage.field(i);
      const google::protobuf::FieldDescriptor* const shared = common_field(field);
      if (shared == nullptr) {
        const auto* const taken = CommonFields::descriptor()->FindFieldByNumber(field.number());
        if (taken != nullptr) others.push_back(field.full_name());
        continue;
      }
      ++common;
      if (field.number() != shared->number() || field.type() != shared->type()) {
        others.push_back(field.full_name());
      }
      if (field.has_default_value() && range_of(field) != nullptr) {
        const auto value = field.cpp_type() == field.CPPTYPE_UINT32 ? field.default_value_uint32()
                                                                    : field.default_value_uint64();
        EXPECT_TRUE(in_range(field, static_cast<double>(value))) << field.full_name();
      }
      // The range of the feed's slots is the only one that a stage narrows.
      if (field.options().HasExtension(::ringfeed::range)) {
        EXPECT_EQ(field.name(), "queue_capacity") << field.full_name();
        EXPECT_LE(range_of(field)->max(), range_of(*shared)->max()) << field.full_name();
      }
    }
  }
  EXPECT_GT(common, 60);
  // As lczero-training's documents have it; and a stage without threads.
  EXPECT_THAT(others, ElementsAre("ringfeed.ChunkUnpackerConfig.threads",
                                  "ringfeed.ChunkUnpackerConfig.queue_capacity",
                                  "ringfeed.VariationMixerConfig.variation_ratio"));
  EXPECT_EQ(common_field(*ConsumerGroupConfig::descriptor()->FindFieldByName("name")), nullptr);
}

TEST(CheckRanges, SayWhatIsAllowed) {
  EXPECT_THAT(messages(lc0_text(), {"stages.pool.threads=64"}), IsEmpty());
  EXPECT_THAT(
      messages(lc0_text(), {"stages.pool.threads=65"}),
      ElementsAre(
          "--set stages.pool.threads=65:1:13: stage 'pool': threads is 65; give a whole number "
          "from 1 to 64"));
  EXPECT_THAT(messages(lc0_text(), {"stages.tensors.batch_size=0"}),
              ElementsAre(HasSubstr("batch_size is 0; give a whole number from 1 to 1048576")));
  EXPECT_THAT(
      messages(lc0_text(), {"feed_output.slots=257"}),
      ElementsAre(HasSubstr("feed_output[0].slots is 257; give a whole number from 1 to 256")));
}

TEST(CheckRanges, OfRatesLeaveOutZeroAndNaN) {
  for (const char* bad : {"0", "-0.5", "1.01", "nan", "inf"}) {
    EXPECT_THAT(
        messages(lc0_text(), {std::string("stages.unpacker.position_sampling_rate=") + bad}),
        ElementsAre(AllOf(HasSubstr("position_sampling_rate is "),
                          HasSubstr("; give a number above 0 and at most 1"))))
        << bad;
  }
  EXPECT_THAT(messages(lc0_text(), {"stages.unpacker.position_sampling_rate=1e-9"}), IsEmpty());
}

// -------------------------------------------------------------------------- what stages refuse

TEST(CheckPlan, TheStagesOwnRefusalsHaveThePlaceOfTheirField) {
  EXPECT_THAT(
      messages(lc0_text_with("input: \"loader\"", "input: \"loader\" store_directory: \"/games\"")),
      ElementsAre("lc0.textproto:3:62: stage 'pool': store_directory needs store_bytes; give "
                  "both"));
  EXPECT_THAT(
      messages(lc0_text_with("directory: \"/data\"", "")),
      ElementsAre("lc0.textproto:1:27: stage 'provider': directory is missing; give the directory "
                  "to search"))
      << "a field that was not given has the place of what should contain it";
}

TEST(CheckPlan, ProblemsOfAStageThatHasNodesAreWarnings) {
  CheckedText text = checked_text(lc0_text());
  PlanProblem* const doubt = text.plan.mutable_stages(2)->add_problems();
  doubt->set_field("chunk_pool_size");
  doubt->set_text("the stage's own words");
  const Checked checked = check_config(text.configuration, text.plan);
  EXPECT_THAT(checked.problems, IsEmpty());
  ASSERT_FALSE(checked.warnings.empty());
  EXPECT_THAT(checked.warnings.back().message(),
              HasSubstr("stage 'pool': chunk_pool_size: the stage's own words"));
  // What the nodes are is checked all the same.
  text.plan.mutable_stages(2)->mutable_nodes(0)->set_lanes(0);
  EXPECT_THROW(static_cast<void>(check_config(text.configuration, text.plan)), ringfeed::Error);
}

// A text that does not say which field it is about gets the field's name before it.
TEST(CheckPlan, ProblemsOfStagesHaveASubject) {
  const auto message = [](const std::string& field, const std::string& words) {
    CheckedText text = checked_text(lc0_text());
    PlanProblem* const problem = text.plan.mutable_stages(2)->add_problems();
    problem->set_field(field);
    problem->set_text(words);
    return check_config(text.configuration, text.plan).warnings.back().message();
  };
  EXPECT_THAT(message("threads", "threads are many"), EndsWith("stage 'pool': threads are many"));
  EXPECT_THAT(message("outputs[3].name", "is wrong"),
              EndsWith("stage 'pool': outputs[3].name: is wrong"));
  EXPECT_THAT(message("files[2]", "files come twice"), EndsWith("stage 'pool': files come twice"));
  EXPECT_THAT(message("", "it stands alone"), EndsWith("stage 'pool': it stands alone"));
}

TEST(CheckPlan, AValueIsRefusedOnce) {
  const std::vector<std::string> all =
      messages(lc0_text(), {"stages.unpacker.position_sampling_rate=2"});
  EXPECT_THAT(all, ElementsAre(testing::Not(HasSubstr("the stage's own words"))));
}

// What lczero-training's documents write down with numbers has the same ones here.
TEST(CheckPlan, FieldsOfTheDocumentsHaveTheirNumbersAndTypes) {
  using google::protobuf::Descriptor;
  using google::protobuf::FieldDescriptor;
  const auto expect = [](const Descriptor& message, const char* name, int number,
                         FieldDescriptor::Type type) {
    const FieldDescriptor* const field = message.FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(field->number(), number) << field->full_name();
    EXPECT_EQ(field->type(), type) << field->full_name();
  };
  const Descriptor& pool = *ShufflingChunkPoolConfig::descriptor();
  expect(pool, "hanse_sampling_threshold", 6, FieldDescriptor::TYPE_UINT64);
  expect(pool, "hanse_sampling_gamma", 7, FieldDescriptor::TYPE_DOUBLE);
  EXPECT_EQ(ShufflingChunkPoolConfig().hanse_sampling_gamma(), 1.0);
  const Descriptor& unpacker = *ChunkUnpackerConfig::descriptor();
  expect(unpacker, "input", 1, FieldDescriptor::TYPE_STRING);
  expect(unpacker, "threads", 2, FieldDescriptor::TYPE_UINT64);
  expect(unpacker, "queue_capacity", 3, FieldDescriptor::TYPE_UINT64);
  EXPECT_EQ(ChunkUnpackerConfig().threads(), 1U);
  EXPECT_EQ(ChunkUnpackerConfig().queue_capacity(), 16U);
  EXPECT_EQ(ChunkUnpackerConfig().position_sampling_rate(), 1.0) << "all positions";
  expect(*DataLoaderConfig::descriptor(), "stages", 1, FieldDescriptor::TYPE_MESSAGE);
  const Descriptor& stage = *StageConfig::descriptor();
  expect(stage, "name", 1, FieldDescriptor::TYPE_STRING);
  int number = 2;
  for (const char* const kind :
       {"file_path_provider", "chunk_source_loader", "shuffling_chunk_pool", "chunk_unpacker",
        "shuffling_frame_sampler", "tensor_generator"}) {
    expect(stage, kind, number++, FieldDescriptor::TYPE_MESSAGE);
  }
}

// ------------------------------------------------------------------------------------ stage groups

const char* const kTwoGroups =
    "stage_groups { name: \"in\" stages: [\"provider\", \"loader\", \"pool\"] }\n"
    "stage_groups { name: \"out\" stages: [\"unpacker\", \"sampler\", \"tensors\"] }\n";

TEST(CheckGroups, HoldEveryStageOnce) { EXPECT_THAT(messages(lc0_text() + kTwoGroups), IsEmpty()); }

TEST(CheckGroups, RefuseAnUnknownStage) {
  EXPECT_THAT(messages(lc0_text() + kTwoGroups,
                       {"stage_groups.in.stages=[\"provider\", \"loader\", \"pol\"]"}),
              ElementsAre(HasSubstr(
                  "stage group 'in' names 'pol', but there is no such stage; did you mean "
                  "'pool'?")));
}

TEST(CheckGroups, RefuseAStageTwice) {
  EXPECT_THAT(
      messages(lc0_text() + "stage_groups { name: \"more\" stages: \"pool\" }\n" + kTwoGroups),
      ElementsAre(StartsWith(
          "lc0.textproto:8:58: stage group 'in' names 'pool', which is already in group 'more'")));
}

TEST(CheckGroups, RefuseToLeaveStagesOut) {
  EXPECT_THAT(
      messages(lc0_text() + "stage_groups { name: \"a\" stages: [\"provider\", \"loader\"] }\n"),
      ElementsAre("lc0.textproto:7:1: these stages are in no stage group: pool, unpacker, sampler, "
                  "tensors; add every stage to a group, or remove stage_groups and let the "
                  "supervisor group "
                  "them"));
}

TEST(CheckGroups, HaveNamesAndStages) {
  EXPECT_THAT(
      messages(lc0_text() + kTwoGroups + "stage_groups { name: \"in\" }\nstage_groups {}\n"),
      ElementsAre(HasSubstr("9:1: stage group 'in' has no stages"),
                  HasSubstr("9:16: the stage group 'in' already exists, at lc0.textproto:7:1"),
                  HasSubstr("10:1: this stage group has no name"),
                  HasSubstr("10:1: stage group '' has no stages")));
  EXPECT_THAT(messages(lc0_text() + kTwoGroups, {"stage_groups.in.name=a b"}),
              ElementsAre(HasSubstr("\"a b\" cannot be the name of a stage group")));
}

// -------------------------------------------------------------------------------- the feed's end

TEST(CheckFeed, HasAValidName) {
  EXPECT_THAT(messages(lc0_text(), {"feed=lc0.run-1"}), IsEmpty());
  EXPECT_THAT(messages(lc0_text(), {"feed=lc0/run"}),
              ElementsAre("--set feed=lc0/run:1:1: feed is \"lc0/run\"; use 1 to 64 letters, "
                          "digits, '_', '.' or '-', and none of the last two at the beginning"));
  EXPECT_THAT(messages(lc0_text() + "feed: \"\""),
              ElementsAre(HasSubstr("7:1: feed is \"\"; use")));
}

TEST(CheckConsumers, RankedGroupsNeedAWorldAndSharedOnesHaveNone) {
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { groups { name: \"a\" kind: RANKED world: 4 } groups { "
                            "name: \"b\" } }"),
      IsEmpty());
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { groups { name: \"a\" kind: RANKED } }"),
      ElementsAre(HasSubstr("7:15: consumer group 'a' is RANKED without world; add world: N")));
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { groups { name: \"a\" world: 4 } }"),
      ElementsAre(HasSubstr("consumer group 'a' is SHARED but has a world of 4; remove world")));
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { groups { name: \"a\" kind: RANKED world: 17 } }"),
      ElementsAre(
          HasSubstr("feed_output[0].groups[0].world is 17; give a whole number from 1 to 16")));
}

TEST(CheckConsumers, HaveDifferentNames) {
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { groups { name: \"a\" } groups { name: \"a\" } groups {} "
                            "groups { name: \"a b\" } }"),
      ElementsAre(HasSubstr("the consumer group 'a' already exists, at lc0.textproto:7:15"),
                  HasSubstr("this consumer group has no name"),
                  HasSubstr("\"a b\" cannot be the name of a consumer group")));
}

TEST(CheckConsumers, AreAtMostSixteen) {
  const auto with_groups = [](int count) {
    std::string text = lc0_text() + "feed_output {";
    for (int i = 0; i < count; ++i) text += " groups { name: \"g" + std::to_string(i) + "\" }";
    return text + " }";
  };
  EXPECT_THAT(messages(with_groups(16)), IsEmpty());
  EXPECT_THAT(
      messages(with_groups(17)),
      ElementsAre(HasSubstr("this is consumer group number 17 of 17; an output has at most 16")));
}

TEST(CheckSlots, EachProducingLaneNeedsItsOwn) {
  EXPECT_THAT(messages(lc0_text() + "feed_output { slots: 4 }", {"stages.tensors.threads=4"}),
              IsEmpty());
  EXPECT_THAT(
      messages(lc0_text() + "feed_output { slots: 3 }", {"stages.tensors.threads=4"}),
      ElementsAre(HasSubstr("7:15: the feed has 3 slots for 4 lanes of stage 'tensors', each of "
                            "which needs its own; set feed_output.slots to at least 4")));
}

TEST(CheckSlots, SkipAndDetachNeedRoomToMakeProgress) {
  const std::string groups =
      "feed_output { groups { name: \"a\" max_hold: 3 } groups { name: \"b\" policy: SKIP "
      "max_hold: 3 } }";
  EXPECT_THAT(messages(lc0_text() + groups), IsEmpty());  // 8 slots: 3 + 3 held, 2 to spare
  EXPECT_THAT(
      messages(lc0_text() + groups, {"feed_output.slots=7"}),
      ElementsAre(HasSubstr("policy SKIP of consumer group 'b' needs 8 there: 2 more than the "
                            "max_hold of all groups; set feed_output.slots to at least 8")));
  EXPECT_THAT(messages(lc0_text() + groups, {"stages.tensors.threads=2"}),
              ElementsAre(HasSubstr("set feed_output.slots to at least 16")));
  EXPECT_THAT(
      messages(lc0_text() + groups, {"feed_output.groups.b.policy=BLOCK", "feed_output.slots=2"}),
      IsEmpty());
}

TEST(CheckSlots, QueueCapacityOfTheLastStageIsTheNumberOfSlotsUnlessSlotsIsGiven) {
  const auto slots = [](const std::vector<std::string>& overrides) {
    const CheckedText text = checked_text(lc0_text(), overrides);
    EXPECT_EQ(problem_report(text.checked.problems), "");
    return slot_count(text.configuration.message(), text.checked.wiring.outputs.at(0));
  };
  EXPECT_EQ(slots({}), 8U);
  EXPECT_EQ(slots({"stages.tensors.queue_capacity=12"}), 12U);
  EXPECT_EQ(slots({"stages.tensors.queue_capacity=12", "feed_output.slots=5"}), 5U);
}

TEST(CheckSlots, AnOutputThatKeepsTheNewestGivesWayToEverybody) {
  const std::string text =
      lc0_text_with("input: \"sampler\"", "input: \"sampler\" overflow_behavior: KEEP_NEWEST");
  EXPECT_THAT(messages(text), IsEmpty());
  EXPECT_THAT(messages(text + "feed_output { slots: 3 }"),
              ElementsAre(HasSubstr("overflow_behavior KEEP_NEWEST of stage 'tensors' needs 4")));
  EXPECT_THAT(messages(text + "feed_output { groups { name: \"a\" policy: BLOCK } }"),
              ElementsAre(HasSubstr("consumer group 'a' has policy BLOCK, but its output keeps the "
                                    "newest batches")));
  EXPECT_THAT(messages(lc0_text_with("input: \"sampler\"",
                                     "input: \"sampler\" overflow_behavior: DROP_NEW")),
              ElementsAre(HasSubstr("use BLOCK, or KEEP_NEWEST")));
}

TEST(CheckRestarts, BackoffDoesNotShrink) {
  EXPECT_THAT(messages(lc0_text(), {"restart.backoff_ms_min=5000"}), IsEmpty());
  EXPECT_THAT(messages(lc0_text(), {"restart.backoff_ms_min=5001"}),
              ElementsAre(HasSubstr(
                  "restart.backoff_ms_max (5000) is below restart.backoff_ms_min (5001)")));
}

// ---------------------------------------------------------------------------------------- warnings

std::vector<std::string> warnings(const std::vector<std::string>& overrides) {
  std::vector<std::string> all;
  for (const Problem& warning : checked_text(lc0_text(), overrides).checked.warnings) {
    all.push_back(warning.message());
  }
  return all;
}

class CheckData : public testing::Test {
 protected:
  CheckData() {
    std::string pattern = testing::TempDir() + "data_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~CheckData() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] std::string override_to(const std::string& below) const {
    return "stages.provider.directory=" + directory_ + below;
  }
  std::string directory_;
};

TEST_F(CheckData, ADirectoryThatDoesNotExistIsWaitedFor) {
  EXPECT_THAT(warnings({override_to("/later")}),
              ElementsAre(AllOf(HasSubstr("stage 'provider'"),
                                HasSubstr(directory_ + "/later does not exist: the feed will wait "
                                                       "for it"))));
  EXPECT_THAT(warnings({override_to("/later"), "epochs=1"}),
              ElementsAre(HasSubstr("does not exist: a finite run then has no data")));
}

TEST_F(CheckData, ADirectoryWithoutAFileIsEmptyWhateverDirectoriesAndHiddenNamesItHas) {
  std::filesystem::create_directories(directory_ + "/a/b");
  std::filesystem::create_directories(directory_ + "/.hidden");
  std::ofstream(directory_ + "/.hidden/game.gz") << "x";
  std::ofstream(directory_ + "/a/.game.gz") << "x";
  EXPECT_THAT(warnings({override_to("")}), ElementsAre(HasSubstr("has no files yet")));
  std::ofstream(directory_ + "/a/b/game.gz") << "x";
  EXPECT_THAT(warnings({override_to("")}), IsEmpty());
}

TEST_F(CheckData, AFileIsNoDirectory) {
  std::ofstream(directory_ + "/file") << "x";
  EXPECT_THAT(warnings({override_to("/file")}), ElementsAre(HasSubstr("/file is not a directory")));
}

// Several directories, one file that the data are not understood without.
TEST_F(CheckData, ListsOfDirectoriesAndSingleFilesAreWhatTheyAreCalled) {
  std::filesystem::create_directories(directory_ + "/shard");
  std::ofstream(directory_ + "/shard/train.idx") << "x";
  const auto doubts = [&](const std::string& second, const std::string& dictionary) {
    const std::string text =
        lc0_text() +
        fmt::format(
            "stages {{ name: 'text' bitext_source {{ directory: '{0}/shard' directory: "
            "'{0}/{1}' dictionary: '{0}/{2}' }} }}\n",
            directory_, second, dictionary);
    std::vector<std::string> all;
    for (const Problem& warning : checked_text(text, {override_to("")}).checked.warnings) {
      all.push_back(warning.message());
    }
    return all;
  };
  EXPECT_THAT(doubts("shard", "shard/train.idx"), IsEmpty());
  EXPECT_THAT(doubts("later", "shard/train.idx"),
              ElementsAre(AllOf(HasSubstr("/later does not exist"), HasSubstr("will wait"))));
  EXPECT_THAT(doubts("shard", "dict.txt"),
              ElementsAre(HasSubstr("dict.txt does not exist: it is needed when the feed starts")));
  EXPECT_THAT(doubts("shard", "shard"),
              ElementsAre(HasSubstr("/shard is a directory, not a file")));
}

TEST_F(CheckData, MoreAttemptsThanRestartsAreDoubted) {
  std::ofstream(directory_ + "/game.gz") << "x";
  const std::string data = override_to("");
  EXPECT_THAT(warnings({data, "restart.max_attempts=10"}), IsEmpty());
  EXPECT_THAT(
      warnings({data, "restart.max_attempts=11"}),
      ElementsAre(HasSubstr("restart.max_attempts (11) is above restart.max_restarts (10)")));
  EXPECT_THAT(warnings({data, "restart.max_restarts=2"}),
              ElementsAre(HasSubstr("restart.max_attempts (3) is above restart.max_restarts (2)")));
  EXPECT_THAT(warnings({data, "restart.max_restarts=0"}), IsEmpty())
      << "the first death is to stop the feed";
}

TEST(Paths, RelativeOnesCountFromTheGivenDirectoryAndOthersStay) {
  DataLoaderConfig config = parse_config(lc0_text(), "x.textproto").message();
  config.mutable_stages(0)->mutable_file_path_provider()->set_directory("games/../more");
  config.mutable_stages(1)->mutable_chunk_source_loader()->set_cache_directory("/var/cache");
  config.mutable_storage()->set_directory("shm");
  config.mutable_log()->set_file("feed.log");
  config.mutable_control()->set_directory("run");
  config.mutable_restart()->set_dead_letters("dead");
  make_paths_absolute(config, "/work");
  EXPECT_EQ(config.stages(0).file_path_provider().directory(), "/work/games/../more");
  EXPECT_EQ(config.stages(1).chunk_source_loader().cache_directory(), "/var/cache");
  EXPECT_EQ(config.storage().directory(), "/work/shm");
  EXPECT_EQ(config.log().file(), "/work/feed.log");
  EXPECT_EQ(config.control().directory(), "/work/run");
  EXPECT_EQ(config.restart().dead_letters(), "/work/dead");
  EXPECT_EQ(config.stages(1).chunk_source_loader().input(), "provider") << "no path";
}

// ---------------------------------------------------------------------------------------- messages

TEST(CheckMessages, OfAMessageThatWasNeverTextHaveAPath) {
  DataLoaderConfig config = parse_config(lc0_text(), "x.textproto").message();
  config.mutable_stages(2)->mutable_shuffling_chunk_pool()->set_threads(0);
  const Configuration configuration(config, "DataLoader");
  EXPECT_EQ(problem_report(check_config(configuration, lc0_plan(config)).problems),
            "DataLoader: stage 'pool': threads is 0; give a whole number from 1 to 64\n");
}

}  // namespace
}  // namespace ringfeed::config
