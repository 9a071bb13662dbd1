#include "supervisor/import/lczero_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/lczero.pb.h"

namespace ringfeed::imports {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string data(const std::string& file) {
  return std::string(RINGFEED_SOURCE_DIR "/tests/data/lczero/") + file;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Imported import_text(std::string text, config::Format format = config::Format::kAuto) {
  const LczeroSource source{.name = "a.textproto", .content = std::move(text), .format = format};
  return import_lczero({&source, 1});
}

std::vector<std::string> messages(const std::vector<config::Problem>& problems) {
  std::vector<std::string> all;
  for (const config::Problem& problem : problems) all.push_back(problem.message());
  return all;
}

DataLoaderConfig parsed(const Imported& imported) {
  EXPECT_THAT(messages(imported.problems), IsEmpty());
  DataLoaderConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(imported.text, &config))
      << imported.text;
  return config;
}

const StageConfig& stage(const DataLoaderConfig& config, const std::string& name) {
  for (const StageConfig& found : config.stages()) {
    if (found.name() == name) return found;
  }
  ADD_FAILURE() << "no stage " << name;
  return StageConfig::default_instance();
}

// The shortest pipeline, with `pool` in the pool's configuration, `unpacker` in the unpacker's and
// `rest` at the end.
std::string pipeline(const std::string& pool = "", const std::string& unpacker = "",
                     const std::string& rest = "output: \"tensors\"") {
  return "stage { name: \"provider\" file_path_provider { directory: \"/d\" } }\n"
         "stage { name: \"loader\" input: \"provider\" chunk_source_loader {} }\n"
         "stage { name: \"pool\" input: \"loader\" shuffling_chunk_pool { " +
         pool +
         " } }\n"
         "stage { name: \"unpacker\" input: \"pool\" chunk_unpacker { " +
         (unpacker.empty() ? "position_sampling_rate: 0.5" : unpacker) +
         " } }\n"
         "stage { name: \"tensors\" input: \"unpacker\" tensor_generator {} }\n" +
         rest + "\n";
}

// ---- whole configurations ----

// RINGFEED_WRITE_GOLDEN=1 writes them anew: to be read before they are kept.
class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, IsConvertedAsWrittenDown) {
  const std::string name = GetParam();
  const LczeroSource source{.name = name + ".textproto",
                            .content = content(data(name + ".textproto"))};
  ASSERT_THAT(source.content, Not(IsEmpty()));
  const Imported imported = import_lczero({&source, 1});
  parsed(imported);
  std::string notes;
  for (const std::string& note : messages(imported.notes)) notes += note + "\n";
  if (std::getenv("RINGFEED_WRITE_GOLDEN") != nullptr) {
    std::ofstream(data(name + ".expected")) << imported.text;
    std::ofstream(data(name + ".notes")) << notes;
  }
  EXPECT_EQ(imported.text, content(data(name + ".expected")));
  EXPECT_EQ(notes, content(data(name + ".notes")));
}
INSTANTIATE_TEST_SUITE_P(Typical, Golden,
                         ::testing::Values("supervised", "reinforcement", "validation"));

TEST(LczeroImport, SerializedAndJsonGiveTheSame) {
  ::lczero::training::DataLoaderConfig theirs;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(content(data("validation.textproto")),
                                                            &theirs));
  const LczeroSource bytes{
      .name = "x", .content = theirs.SerializeAsString(), .format = config::Format::kSerialized};
  const Imported from_bytes = import_lczero({&bytes, 1});
  ::lczero::training::RootConfig root;
  *root.mutable_data_loader() = theirs;
  root.set_name("x");
  const LczeroSource whole{
      .name = "y", .content = root.SerializeAsString(), .format = config::Format::kSerialized};
  const DataLoaderConfig expected = parsed(from_bytes);
  EXPECT_EQ(expected.feed(), "x");
  EXPECT_EQ(expected.SerializeAsString(), parsed(import_lczero({&whole, 1})).SerializeAsString());
  const LczeroSource text{.name = "x", .content = content(data("validation.textproto"))};
  EXPECT_EQ(expected.SerializeAsString(), parsed(import_lczero({&text, 1})).SerializeAsString());
  const DataLoaderConfig json = parsed(import_text(
      R"({"dataLoader": {"stage": [
        {"name": "p", "filePathProvider": {"directory": "/d"}},
        {"name": "t", "input": ["p"], "tensorGenerator": {"batchSize": 7}}], "output": ["t"]},
        "training": {"unknown": 1}})"));
  EXPECT_EQ(stage(json, "t").tensor_generator().batch_size(), 7U);
}

TEST(LczeroImport, NumbersOfOtherWidthsOnTheWireAreTheSameNumbers) {
  ::lczero::training::DataLoaderConfig theirs;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(pipeline(), &theirs));
  std::string bytes = theirs.SerializeAsString();
  // One more stage, a pool with hanse_sampling_gamma (7) 0.1 as a float.
  bytes += std::string("\x0a\x0a\x0a\x01\x71\x32\x05\x3d\xcd\xcc\xcc\x3d", 12);
  const LczeroSource source{.name = "x", .content = bytes, .format = config::Format::kSerialized};
  // Understood, and then refused only because it has no input.
  EXPECT_THAT(messages(import_lczero({&source, 1}).problems),
              ElementsAre(AllOf(HasSubstr("'q'"), HasSubstr("0 inputs"))));
}

TEST(LczeroImport, UnknownFieldsOnTheWireAreRefused) {
  const LczeroSource source{.name = "x",
                            .content = std::string("\x0a\x05\x0a\x01q\x70\x01", 7),
                            .format = config::Format::kSerialized};
  EXPECT_THAT(messages(import_lczero({&source, 1}).problems),
              Contains(AllOf(HasSubstr("stage[0]"), HasSubstr("field 14"))));
  const LczeroSource cut{
      .name = "x", .content = std::string("\x0a\x7f", 2), .format = config::Format::kSerialized};
  EXPECT_THAT(messages(import_lczero({&cut, 1}).problems),
              Contains(HasSubstr("truncated or damaged")));
}

TEST(LczeroImport, StagesOfOtherFilesAreAddedAndTheirOutputsAreNot) {
  const std::string all = pipeline();
  const std::size_t cut = all.find("stage { name: \"unpacker\"");
  const std::size_t output = all.find("output:");
  const LczeroSource sources[] = {
      {.name = "one", .content = all.substr(0, cut) + all.substr(output)},
      {.name = "two", .content = all.substr(cut, output - cut) + "output: \"nonsense\""}};
  const DataLoaderConfig config = parsed(import_lczero(sources));
  EXPECT_EQ(config.stages_size(), 5);
  EXPECT_EQ(config.feed(), "one");
}

// ---- what is different ----

TEST(LczeroImport, OtherPartsOfTheFileAreNotLookedAt) {
  const DataLoaderConfig config = parsed(import_text(
      "training { whatever { deep: [1, 2] } } data_loader { " + pipeline() + " } x: <>"));
  EXPECT_EQ(config.stages_size(), 5);
}

TEST(LczeroImport, DefaultsAreLeftOutAndTheirOtherDefaultsAreNot) {
  const Imported imported = import_text(pipeline());
  EXPECT_THAT(imported.text, AllOf(Not(HasSubstr("chunk_pool_size")), Not(HasSubstr("batch_size")),
                                   HasSubstr("threads: 4")));
  const DataLoaderConfig config = parsed(imported);
  EXPECT_EQ(stage(config, "pool").shuffling_chunk_pool().threads(), 4U);
  EXPECT_EQ(config.feed(), "a");
  EXPECT_EQ(config.feed_output_size(), 0);
  EXPECT_FALSE(config.has_seed());
}

TEST(LczeroImport, TheStoreTakesTheMemoryOfTheCacheButNoMoreThanTheWindowNeeds) {
  const auto store = [](const std::string& pool) {
    std::string text = pipeline("cachehit_output { name: \"c\" } " + pool,
                                "position_count: 1 prefetch_count: 3 prefetch_output { name: "
                                "\"p\" }",
                                "stage { name: \"j\" input: \"pool.c\" input: \"unpacker\" "
                                "join_positions {} } output: \"tensors\"");
    const std::string reads = "\"loader\" shuffling";
    text.replace(text.find(reads), reads.size(), "\"loader\" input: \"unpacker.p\" shuffling");
    const std::string last = "\"unpacker\" tensor";
    text.replace(text.find(last), last.size(), "\"j\" tensor");
    const DataLoaderConfig config = parsed(import_text(text));
    EXPECT_EQ(stage(config, "tensors").tensor_generator().input(), "unpacker");
    return stage(config, "pool").shuffling_chunk_pool().store_bytes();
  };
  EXPECT_EQ(store("position_cache_size: 100000"), 839'600'000U);
  EXPECT_EQ(store("position_cache_size: 100000 chunk_pool_size: 1000"), 36'000'000U);
  EXPECT_EQ(store("position_cache_size: 1"), 16'777'216U);
  EXPECT_EQ(store("position_cache_size: 0"), 0U);
  EXPECT_GT(store("position_cache_size: 18446744073709551615"), 0U);
}

TEST(LczeroImport, AThresholdThatIsNotAboveZeroIsNone) {
  const Imported imported = import_text(pipeline("hanse_sampling_threshold: 0"));
  EXPECT_THAT(messages(imported.notes), Contains(HasSubstr("a.textproto:3:61: stage 'pool': "
                                                           "hanse_sampling_threshold 0")));
  EXPECT_FALSE(
      stage(parsed(imported), "pool").shuffling_chunk_pool().has_hanse_sampling_threshold());
}

// Their threshold is a switch: what counts is the length beside the longest game seen.
TEST(LczeroImport, AThresholdBecomesTheShareOfTheLongestGame) {
  const Imported imported =
      import_text(pipeline("hanse_sampling_threshold: 250 hanse_sampling_gamma: 0.5"));
  const DataLoaderConfig config = parsed(imported);
  const ShufflingChunkPoolConfig& pool = stage(config, "pool").shuffling_chunk_pool();
  EXPECT_FALSE(pool.has_hanse_sampling_threshold() || pool.has_hanse_sampling_gamma());
  EXPECT_TRUE(pool.has_position_sampling());
  EXPECT_EQ(pool.position_sampling().ByteSizeLong(), 0U) << "each position weighs 1";
  EXPECT_EQ(pool.weighted_sampling_gamma(), 0.5F);
  EXPECT_THAT(messages(imported.notes), Contains(HasSubstr("(n / largest n seen)^gamma")));
}

std::string tensors(const std::string& settings, const std::string& sampler = "") {
  std::string text = pipeline();
  const std::string last = "input: \"unpacker\" tensor_generator {}";
  if (sampler.empty()) {
    text.replace(text.find(last), last.size(),
                 "input: \"unpacker\" tensor_generator { " + settings + " }");
    return text;
  }
  text.replace(text.find(last), last.size(),
               "input: \"sampler\" tensor_generator { " + settings + " }");
  return "stage { name: \"sampler\" input: \"unpacker\" shuffling_frame_sampler { " + sampler +
         " } }\n" + text;
}

TEST(LczeroImport, TensorsThatDropNewBatchesKeepTheNewest) {
  const Imported imported =
      import_text(tensors("threads: 5 output { overflow_behavior: DROP_NEW }"));
  const DataLoaderConfig config = parsed(imported);
  EXPECT_EQ(stage(config, "tensors").tensor_generator().overflow_behavior(), KEEP_NEWEST);
  EXPECT_EQ(config.feed_output(0).slots(), 20U) << "four for each lane";
  EXPECT_THAT(messages(imported.notes), Contains(HasSubstr("DROP_NEW became KEEP_NEWEST")));
}

TEST(LczeroImport, LanesThatWouldWaitForEachOtherTakeWhatIsReady) {
  const auto dispatch = [](const std::string& text) {
    const Imported imported = import_text(text);
    const DataLoaderConfig config = parsed(imported);
    const bool relaxed = config.feed_output_size() > 0 &&
                         config.feed_output(0).dispatch() == FeedOutputConfig::RELAXED;
    const std::vector<std::string> notes = messages(imported.notes);
    const bool said = std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
      return note.find("dispatch is RELAXED") != std::string::npos;
    });
    EXPECT_EQ(relaxed, said);
    return relaxed;
  };
  EXPECT_TRUE(dispatch(tensors("threads: 2", "threads: 2")));
  EXPECT_TRUE(dispatch(tensors("threads: 2")));
  EXPECT_FALSE(dispatch(tensors("threads: 2", "threads: 1")));
  EXPECT_FALSE(dispatch(tensors("threads: 1", "threads: 2")));
  EXPECT_FALSE(
      dispatch(tensors("threads: 2", "threads: 2 output { overflow_behavior: KEEP_NEWEST }")));
}

TEST(LczeroImport, WhatASplitterDropsIsDroppedBehindIt) {
  const auto import_splitter = [](const std::string& behind) {
    return import_text(
        "stage { name: \"p\" file_path_provider { directory: \"/d\" } }\n"
        "stage { name: \"s\" input: \"p\" chunk_source_splitter {\n"
        "  output { name: \"a\" } output { name: \"b\" overflow_behavior: DROP_NEW }\n"
        "  weight: [1, 1] } }\n"
        "stage { name: \"one\" input: \"s.a\" simple_chunk_extractor {} }\n"
        "stage { name: \"t1\" input: \"one\" tensor_generator {} }\n" +
        behind +
        "stage { name: \"t2\" input: \"two\" tensor_generator {} }\n"
        "output: \"t1\" output: \"v:t2\"");
  };
  const Imported extractor =
      import_splitter("stage { name: \"two\" input: \"s.b\" simple_chunk_extractor {} }\n");
  EXPECT_EQ(stage(parsed(extractor), "one").simple_chunk_extractor().overflow_behavior(), BLOCK);
  EXPECT_EQ(stage(parsed(extractor), "two").simple_chunk_extractor().overflow_behavior(), DROP_NEW);
  EXPECT_THAT(messages(extractor.notes),
              Contains(AllOf(StartsWith("a.textproto:3:"),
                             HasSubstr("overflow_behavior DROP_NEW of output \"b\""),
                             HasSubstr("behind it, 'two', drops chunks instead"))));
  const Imported pool =
      import_splitter("stage { name: \"two\" input: \"s.b\" shuffling_chunk_pool {} }\n");
  EXPECT_EQ(stage(parsed(pool), "two").shuffling_chunk_pool().overflow_behavior(), BLOCK);
  EXPECT_THAT(messages(pool.notes), Contains(HasSubstr("whether anybody reads from it or not")));
}

TEST(LczeroImport, NumbersThatAreTooLargeHereAreMadeToFit) {
  const Imported imported = import_text(pipeline("chunk_loading_threads: 400"));
  EXPECT_EQ(stage(parsed(imported), "pool").shuffling_chunk_pool().threads(), 64U);
  EXPECT_THAT(messages(imported.notes),
              Contains(HasSubstr("chunk_loading_threads 400 became 64: a stage has 1 to 64 here")));
}

TEST(LczeroImport, TensorsThatAreInNoOutputBecomeOne) {
  EXPECT_EQ(parsed(import_text(pipeline("", "", ""))).feed_output_size(), 0);
  const std::string two =
      "stage { name: \"p2\" file_path_provider { directory: \"/e\" } }\n"
      "stage { name: \"t2\" input: \"p2\" tensor_generator {} }\n output: \"tensors\"";
  const DataLoaderConfig config = parsed(import_text(pipeline("", "", two)));
  ASSERT_EQ(config.feed_output_size(), 2);
  EXPECT_EQ(config.feed_output(0).alias(), "");
  EXPECT_EQ(config.feed_output(0).stage(), "tensors");
  EXPECT_EQ(config.feed_output(1).alias(), "t2");
}

TEST(LczeroImport, JoinsThatReadEachOtherAreRefused) {
  std::string text;
  for (const std::string one : {"1", "2"}) {
    const std::string other = one == "1" ? "2" : "1";
    text += "stage { name: \"u" + one + "\" input: \"p" + one +
            "\" chunk_unpacker { position_count: 1 prefetch_output { name: \"r\" } } }\n"
            "stage { name: \"p" +
            one + "\" input: \"f" + one + "\" input: \"u" + one +
            ".r\" shuffling_chunk_pool { cachehit_output { name: \"c\" } } }\n"
            "stage { name: \"f" +
            one +
            "\" file_path_provider { directory: \"/\" } }\n"
            "stage { name: \"j" +
            one + "\" input: \"j" + other + "\" input: \"p" + one +
            ".c\" join_positions {} }\n"
            "stage { name: \"t" +
            one + "\" input: \"u" + one + "\" tensor_generator {} }\n";
  }
  EXPECT_THAT(messages(import_text(text).problems), Contains(HasSubstr("it reads only itself")));
}

// ---- what is refused ----

struct Mistake {
  std::string text;
  std::string place;
  std::string said;
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.text; }
class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreSaidWithTheirPlace) {
  const Imported imported = import_text(GetParam().text);
  EXPECT_THAT(messages(imported.problems),
              Contains(AllOf(StartsWith(GetParam().place), HasSubstr(GetParam().said))));
  EXPECT_EQ(imported.text, "");
}
INSTANTIATE_TEST_SUITE_P(
    OfEveryKind, Mistakes,
    ::testing::Values(
        Mistake{"", "a.textproto", "neither a data_loader nor a stage"},
        Mistake{"stages { name: \"x\" }", "a.textproto", "already a configuration of ringfeed"},
        Mistake{"data_loader: 3", "a.textproto:1:1", "not a message"},
        Mistake{"data_loader {} data_loader {}", "a.textproto:1:16", "twice"},
        Mistake{"data_loader {}", "a.textproto", "no stages"},
        Mistake{"stage {", "a.textproto:1", ""},
        Mistake{pipeline("chunk_pool_siz: 3"), "a.textproto:3:61",
                "unknown field 'chunk_pool_siz'"},
        Mistake{pipeline("chunk_pool_size: \"3\""), "a.textproto:3:", "chunk_pool_size"},
        Mistake{pipeline("chunk_pool_size: -3"), "a.textproto:3:", "chunk_pool_size"},
        Mistake{pipeline("output { overflow_behavior: DROP }"), "a.textproto:3:", "KEEP_NEWEST"},
        Mistake{pipeline("cachehit_output {}"), "a.textproto:3:", "outputs are called \"\""},
        Mistake{pipeline("cachehit_output { name: \"c\" }"), "a.textproto:3:1", "1 inputs"},
        Mistake{pipeline("output { name: \"c\" }"), "a.textproto:4:26",
                "no output for \"pool\"; it has pool.c"},
        Mistake{pipeline("", "threads: 2"), "a.textproto:4:", "either position_sampling_rate"},
        Mistake{pipeline("", "position_count: 1 position_sampling_rate: 1"),
                "a.textproto:4:", "either position_sampling_rate"},
        Mistake{pipeline("", "", "output: \"tenors\""), "a.textproto:6:1",
                "no stage 'tenors'; did you mean 'tensors'?"},
        Mistake{pipeline("", "", "output: \"pool\""), "a.textproto:6:1", "which gives no tensors"},
        Mistake{pipeline("", "", "output: \"a:tensors\" output: \"b:tensors\""), "a.textproto:6:21",
                "already an output"},
        Mistake{pipeline("", "", "output: \"a b:tensors\""), "a.textproto:6:1",
                "cannot be an alias"},
        Mistake{pipeline("", "", "stage { name: \"pool\" join_positions {} }"), "a.textproto:6:9",
                "another stage has this name, at a.textproto:3:9"},
        Mistake{pipeline("", "", "stage { join_positions {} }"), "a.textproto:6:1", "no name"},
        Mistake{pipeline("", "", "stage { name: \"x\" }"), "a.textproto:6:1", "what it is"},
        Mistake{pipeline("", "", "stage { name: \"x\" join_positions {} tensor_generator {} }"),
                "a.textproto:6:1", "2 things at once"},
        Mistake{pipeline("", "", "stage { name: \"x\" input: \"pool\" chunk_rescorer {} }"),
                "a.textproto:6:19", "stage 'unpacker' reads"},
        Mistake{pipeline("", "",
                         "stage { name: \"s\" input: \"tensors\" chunk_source_splitter { output {} "
                         "weight: [1, 2] } }"),
                "a.textproto:6:", "1 outputs and 2 weights"},
        Mistake{pipeline("", "",
                         "stage { name: \"s\" input: \"tensors\" chunk_source_splitter { output {} "
                         "weight: 0 } }"),
                "a.textproto:6:", "weight 0"}));

}  // namespace
}  // namespace ringfeed::imports
