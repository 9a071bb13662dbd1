#include "supervisor/config/read.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "proto/config.pb.h"
#include "ringfeed/shm/result.h"
#include "tests/unit/supervisor/config/plan_maker.h"

namespace ringfeed::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> texts(const Configuration& configuration) {
  std::vector<std::string> all;
  for (const Problem& problem : configuration.problems()) all.push_back(problem.message());
  return all;
}

std::vector<std::string> problems(std::string_view text, std::string_view source = "f.textproto") {
  return texts(parse_config(text, source));
}

std::string file_content(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

// A file that lives as long as the test.
class ReadFile : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view content) {
    const std::filesystem::path path = directory_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  void SetUp() override {
    directory_ =
        std::filesystem::path(testing::TempDir()) /
        ("config_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

// ------------------------------------------------------------------------- what is read correctly

// Every kind of field, written in every notation that protobuf's own readers know.
constexpr std::string_view kEverything = R"(
# a comment
feed: "every" 'thing'
seed: 0xFFFFFFFFFFFFFFFF
epochs: 010
drop_remainder: True
stages {
  name: "provider"
  file_path_provider: < directory: "/da\164a\n\xE2\x82\xAC", queue_capacity: 0x20; >
}
stages: [ {
  name: "pool"
  shuffling_chunk_pool { input: "provider" hanse_sampling_gamma: 1.5f overflow_behavior: 2 }
}, {
  name: "unpacker"
  chunk_unpacker { position_sampling_rate: 1e-1 overflow_behavior: DROP_NEW }
} ]
stages { name: "tensors" tensor_generator { queue_capacity: 12 threads: 3 } }
stage_groups { name: "g" stages: "provider" stages: [ "pool", "unpacker" ] }
feed_output {
  dispatch: RELAXED checksum: 1 groups { name: "a" kind: RANKED world: 2 redeliver: f }
}
)";

TEST(ReadText, AgreesWithProtobufsOwnReader) {
  DataLoaderConfig expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(std::string(kEverything), &expected));
  const Configuration read = parse_config(kEverything, "f.textproto");
  EXPECT_THAT(texts(read), IsEmpty());
  EXPECT_TRUE(MessageDifferencer::Equals(read.message(), expected))
      << read.message().DebugString() << expected.DebugString();
}

TEST(ReadText, AgreesWithProtobufsOwnReaderOnTheLc0Pipeline) {
  const std::string text =
      file_content(std::filesystem::path(RINGFEED_SOURCE_DIR) / "workers/pipelines/lc0.textproto");
  DataLoaderConfig expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected));
  EXPECT_TRUE(MessageDifferencer::Equals(parse_config(text, "lc0.textproto").message(), expected));
}

TEST(ReadJson, AgreesWithProtobufsOwnReaderAndWriter) {
  DataLoaderConfig expected;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(std::string(kEverything), &expected));
  for (const bool original_names : {false, true}) {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = original_names;
    options.add_whitespace = original_names;
    std::string json;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(expected, &json, options).ok());
    const Configuration read = parse_config(json, "f.json");
    EXPECT_THAT(texts(read), IsEmpty()) << json;
    EXPECT_TRUE(MessageDifferencer::Equals(read.message(), expected)) << json;
  }
}

TEST(ReadJson, TakesNumbersAsTextAndWholeNumbersInEveryForm) {
  const Configuration read = parse_config(
      R"({"feed": "x", "seed": "18446744073709551615", "epochs": 2.0, "restart": {"within_s": 1e2},
          "log": null})",
      "f.json");
  EXPECT_THAT(texts(read), IsEmpty());
  EXPECT_EQ(read.message().seed(), 18446744073709551615U);
  EXPECT_EQ(read.message().epochs(), 2U);
  EXPECT_EQ(read.message().restart().within_s(), 100U);
  EXPECT_FALSE(read.message().has_log());
}

TEST(Read, TellsJsonFromTextByItsFirstCharacter) {
  EXPECT_EQ(parse_config("\n  {\"feed\": \"j\"}", "stdin").message().feed(), "j");
  EXPECT_EQ(parse_config("# {\nfeed: \"t\"", "stdin").message().feed(), "t");
}

TEST_F(ReadFile, TakesTheFormatFromTheExtension) {
  DataLoaderConfig config;
  config.set_feed("binary");
  EXPECT_EQ(read_config(write("a.binpb", config.SerializeAsString())).message().feed(), "binary");
  EXPECT_EQ(read_config(write("a.json", R"({"feed": "json"})")).message().feed(), "json");
  EXPECT_EQ(read_config(write("a.pbtxt", "feed: \"text\"")).message().feed(), "text");
  EXPECT_THAT(texts(read_config(write("b.textproto", R"({"feed": "json"})"))),
              testing::Not(IsEmpty()));
}

TEST_F(ReadFile, AFeedWithoutANameIsCalledAsItsFile) {
  const std::filesystem::path path = write("my-run.2.textproto", "seed: 1");
  EXPECT_EQ(read_config(path).message().feed(), "my-run.2");
  EXPECT_EQ(read_config(path, std::vector<std::string>{"feed=other"}).message().feed(), "other");
  EXPECT_THAT(texts(read_config(write("my run.textproto", "seed: 1"))),
              ElementsAre(HasSubstr("my run.textproto: the feed has no name, and the name of the "
                                    "file, 'my run', cannot be one; add feed: \"NAME\"")));
}

TEST_F(ReadFile, AFileThatCannotBeReadIsAnError) {
  try {
    static_cast<void>(read_config(directory_ / "missing.textproto"));
    FAIL() << "a missing file was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), HasSubstr("missing.textproto: No such file or directory; check"));
  }
  EXPECT_THROW(static_cast<void>(read_config(directory_.string())), Error);
}

TEST_F(ReadFile, SerializedBytesThatAreNoneAreRefused) {
  const Configuration read = read_config(write("a.binpb", "\xFF\xFF\xFF"));
  EXPECT_FALSE(read.complete());
  EXPECT_THAT(texts(read),
              ElementsAre(HasSubstr("a.binpb: this is not a serialized DataLoaderConfig: its bytes "
                                    "are truncated or damaged, at byte 0")));
}

TEST_F(ReadFile, WhatIsTooLargeOrHasNoEndIsRefused) {
  const auto refusal = [](const std::string& file) {
    try {
      static_cast<void>(read_config(file));
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("/dev/zero has more than 4 MiB, or no end"));
  const std::string large = write("a.textproto", std::string(kConfigBytesMax + 1, '\n'));
  EXPECT_THAT(refusal(large), HasSubstr("a.textproto has more than 4 MiB"));
  EXPECT_THAT(texts(read_config(write("b.textproto", std::string(kConfigBytesMax, '\n')))),
              IsEmpty());
}

// ------------------------------------------------------------------------------------ serialized

// A field as it lies in a serialized message: its key, and what follows.
std::string key_of(int number, int wire_type) {
  return std::string(1, static_cast<char>(number << 3 | wire_type));
}
std::string number_field(int number, char value) { return key_of(number, 0) + value; }
std::string length_field(int number, const std::string& bytes) {
  return key_of(number, 2) + static_cast<char>(bytes.size()) + bytes;
}
// A configuration with one stage 'u' of kind chunk_unpacker, which has these bytes.
std::string with_unpacker(const std::string& own) {
  return length_field(1, length_field(1, "u") + length_field(5, own));
}
std::vector<std::string> serialized_problems(const std::string& bytes) {
  return texts(parse_config(bytes, "f.binpb", {}, Format::kSerialized));
}

TEST(ReadSerialized, TakesWhatIsByTheSchema) {
  DataLoaderConfig whole;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(std::string(kEverything), &whole));
  const Configuration read =
      parse_config(whole.SerializeAsString(), "f.binpb", {}, Format::kSerialized);
  EXPECT_THAT(texts(read), IsEmpty());
  EXPECT_TRUE(MessageDifferencer::Equals(read.message(), whole));
  // A list of numbers, one by one and packed.
  for (const char* const frequency : {"\xc8\x01\x01\xc8\x01\x02", "\xca\x01\x02\x01\x02"}) {
    const std::string planner =
        length_field(1, "p") + "\xfa\x01" + static_cast<char>(std::strlen(frequency)) + frequency;
    const Configuration list =
        parse_config(length_field(1, planner), "f.binpb", {}, Format::kSerialized);
    EXPECT_THAT(texts(list), IsEmpty());
    EXPECT_THAT(list.message().stages(0).epoch_planner().update_freq(), ElementsAre(1, 2));
  }
}

// By lczero-training's documents: threads 2, queue_capacity 3.
TEST(ReadSerialized, AnUnpackerOfTheDocumentsMeansTheSame) {
  const Configuration read = parse_config(
      with_unpacker(length_field(1, "pool") + number_field(2, 5) + number_field(3, 22)), "f.binpb",
      {}, Format::kSerialized);
  EXPECT_THAT(texts(read), IsEmpty());
  const ChunkUnpackerConfig& unpacker = read.message().stages(0).chunk_unpacker();
  EXPECT_EQ(unpacker.input(), "pool");
  EXPECT_EQ(unpacker.threads(), 5U);
  EXPECT_EQ(unpacker.queue_capacity(), 22U);
}

TEST(ReadSerialized, AnUnknownFieldIsSaidWithNumberPlaceAndValue) {
  EXPECT_THAT(serialized_problems(with_unpacker(number_field(2, 1) + number_field(12, 9))),
              ElementsAre("f.binpb: stage 'u': unknown field 12 in stages[0].chunk_unpacker, at "
                          "byte 9: the number 9; ChunkUnpackerConfig has the numbers 1-3, 5-6, "
                          "8-11. Write it with ringfeed's proto/config.proto"));
  EXPECT_THAT(serialized_problems(number_field(9, 1)),
              ElementsAre(HasSubstr("unknown field 9 in the configuration, at byte 0")));
}

TEST(ReadSerialized, AnotherWireTypeIsSaidWithWhatBelongsThere) {
  EXPECT_THAT(
      serialized_problems(with_unpacker(length_field(3, "16"))),
      ElementsAre("f.binpb: stage 'u': stages[0].chunk_unpacker.queue_capacity (field 3) is 2 "
                  "bytes of text or of a message, at byte 7; give a whole number from 1 to "
                  "1048576, as a uint64"));
  // 0.5 as a float, where a double belongs.
  EXPECT_THAT(
      serialized_problems(with_unpacker(key_of(11, 5) + std::string("\0\0\0\x3f", 4))),
      ElementsAre(HasSubstr("position_sampling_rate (field 11) is 4 bytes (as a float 0.5), "
                            "at byte 7; give a number above 0 and at most 1, as a double")));
  EXPECT_THAT(serialized_problems(length_field(1, number_field(5, 3))),
              testing::Contains(HasSubstr("stages[0].chunk_unpacker (field 5) is the number 3, at "
                                          "byte 2; give a message ChunkUnpackerConfig")));
}

// protobuf's own parser takes the lower 32 bits: 2^32 + 1 lanes are one.
TEST(ReadSerialized, AValueThatDoesNotFitIsNotCut) {
  EXPECT_THAT(serialized_problems(with_unpacker(key_of(9, 0) + "\x81\x80\x80\x80\x10")),
              ElementsAre(HasSubstr("max_threads (field 9) is 4294967297, at byte 7; give a whole "
                                    "number from 1 to 64, as a uint32")));
  EXPECT_THAT(
      serialized_problems(with_unpacker(number_field(8, 7))),
      ElementsAre(HasSubstr("overflow_behavior (field 8) is 7, at byte 7; give one of BLOCK "
                            "(0), DROP_NEW (1), KEEP_NEWEST (2)")));
  EXPECT_THAT(serialized_problems(number_field(13, 2)),
              ElementsAre(HasSubstr("drop_remainder (field 13) is 2, at byte 0; give true (1)")));
}

// protobuf's own parser keeps the last one, or mixes two messages.
TEST(ReadSerialized, AFieldThatIsGivenTwiceIsRefusedAsInText) {
  EXPECT_THAT(serialized_problems(with_unpacker(number_field(2, 1) + number_field(2, 5))),
              ElementsAre(HasSubstr("stages[0].chunk_unpacker.threads (field 2) is given twice, at "
                                    "byte 7 and at byte 9; keep one")));
  EXPECT_THAT(serialized_problems(length_field(15, "") + length_field(15, "")),
              ElementsAre(HasSubstr("storage (field 15) is given twice")));
}

TEST(ReadSerialized, BytesBehindTheMessageAndCutMessagesAreRefused) {
  const std::string good = with_unpacker(number_field(2, 1));
  for (const std::string& behind : {std::string(1, '\0'), std::string("\x0a"), std::string("}")}) {
    const Configuration read = parse_config(good + behind, "f.binpb", {}, Format::kSerialized);
    EXPECT_FALSE(read.complete()) << behind;
    EXPECT_THAT(
        texts(read),
        ElementsAre(HasSubstr(fmt::format("truncated or damaged, at byte {}", good.size()))));
  }
  // In a stage: its length is right, and what it holds is cut.
  EXPECT_THAT(serialized_problems(length_field(1, length_field(1, "u") + key_of(5, 2) + "\x09")),
              ElementsAre(HasSubstr("stages[0] is not a serialized StageConfig: its bytes are "
                                    "truncated or damaged, at byte 5")));
}

// Every byte changed and every length: never taken for something that protobuf reads otherwise, and
// never a death.
TEST(ReadSerialized, AnyChangeIsReadAsItLiesThereOrRefused) {
  DataLoaderConfig whole;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(std::string(kEverything), &whole));
  whole.set_seed(7);  // of the largest seed a change can be the same number in more bytes
  const std::string bytes = whole.SerializeAsString();
  int refused = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      const Configuration read = parse_config(changed, "f.binpb", {}, Format::kSerialized);
      if (!read.problems().empty()) {
        ++refused;
        continue;
      }
      // What was taken holds all that lies there.
      DataLoaderConfig again;
      ASSERT_TRUE(again.ParseFromString(read.message().SerializeAsString()));
      EXPECT_EQ(again.SerializeAsString().size(), changed.size())
          << "byte " << i << ", bit " << bit;
    }
    EXPECT_FALSE(parse_config(std::string_view(bytes).substr(0, i), "f", {}, Format::kSerialized)
                     .message()
                     .stages_size() > whole.stages_size());
  }
  EXPECT_GT(refused, 0);
}

// ------------------------------------------------------------------------------- what is refused

TEST(ReadRefuses, UnknownFieldsWithTheNearestName) {
  EXPECT_THAT(
      problems("stages { name: \"pool\"\n"
               "  shuffling_chunk_pool { chunk_pool_sise: 5 }\n"
               "}\n"
               "colour: 7\n"),
      ElementsAre("f.textproto:2:26: stage 'pool': unknown field 'chunk_pool_sise' in "
                  "shuffling_chunk_pool; did you mean 'chunk_pool_size'?",
                  HasSubstr("f.textproto:4:1: unknown field 'colour' in the configuration; it has "
                            "stages, feed, seed")));
}

TEST(ReadRefuses, ValuesOfTheWrongKind) {
  EXPECT_THAT(
      problems("seed: -1\n"
               "epochs: \"two\"\n"
               "drop_remainder: maybe\n"
               "stages: 5\n"
               "feed: lc0\n"
               "storage { memory_budget_bytes: 1.5 }\n"
               "feed_output { dispatch: RELAXD }\n"
               "log { level: \"INFO\" }\n"
               "restart: [1]\n"),
      ElementsAre(
          "f.textproto:1:7: seed is -1; give a whole number from 0 to 18446744073709551615",
          "f.textproto:2:9: epochs is \"two\"; give a whole number from 0 to 65535",
          "f.textproto:3:17: drop_remainder is maybe; give true or false",
          HasSubstr("f.textproto:4:9: stage 'stages[0]': stages[0] is 5; give a message"),
          "f.textproto:5:7: feed is lc0; give a string in double quotes",
          "f.textproto:6:32: storage.memory_budget_bytes is 1.5; give a size of at least 1 MiB: "
          "a number of bytes, or with a unit, such as \"64 MiB\"",
          "f.textproto:7:25: feed_output[0].dispatch is RELAXD; give one of ORDERED, RELAXED; did "
          "you mean 'RELAXED'?",
          "f.textproto:8:14: log.level is \"INFO\"; write INFO without quotes",
          HasSubstr("f.textproto:9:10: restart is a list; give a message")));
}

TEST(Read, SizesMayHaveUnits) {
  const auto budget = [](const char* text, const char* file, std::vector<std::string> set = {}) {
    const Configuration read = parse_config(text, file, set);
    EXPECT_THAT(read.problems(), IsEmpty());
    return read.message().storage().memory_budget_bytes();
  };
  EXPECT_EQ(budget("storage { memory_budget_bytes: \"1.5 GiB\" }", "f.textproto"), 3ULL << 29);
  EXPECT_EQ(budget("storage { memory_budget_bytes: 4096 }", "f.textproto"), 4096U);
  EXPECT_EQ(budget(R"({"storage": {"memory_budget_bytes": "2 MB"}})", "f.json"), 2'000'000U);
  EXPECT_EQ(budget(R"({"storage": {"memoryBudgetBytes": "4096"}})", "f.json"), 4096U);
  EXPECT_EQ(budget("", "f.textproto", {"storage.memory_budget_bytes=1.5GiB"}), 3ULL << 29);
  EXPECT_EQ(budget("", "f.textproto", {"storage.memory_budget_bytes=\"64 KiB\""}), 65536U);
  EXPECT_EQ(budget("", "f.textproto", {"storage.memory_budget_bytes=65536"}), 65536U);
  EXPECT_EQ(budget("", "f.textproto", {"storage.memory_budget_bytes=0x10000"}), 65536U);
  EXPECT_EQ(budget("", "f.textproto", {"storage.memory_budget_bytes=010"}), 8U) << "as in a file";
}

TEST(ReadRefuses, SizesWithUnitsThatThereAreNot) {
  EXPECT_THAT(problems("storage { memory_budget_bytes: \"1.5 G\" }"),
              ElementsAre("f.textproto:1:32: storage.memory_budget_bytes is \"1.5 G\"; give a size "
                          "of at least 1 MiB: a number of bytes, or with a unit, such as \"64 "
                          "MiB\""));
  EXPECT_THAT(problems("seed: \"1 KiB\""), ElementsAre(HasSubstr("give a whole number")))
      << "no size";
}

TEST(ReadRefuses, NumbersThatDoNotFitTheirType) {
  EXPECT_THAT(problems("epochs: 4294967296"), ElementsAre(HasSubstr("epochs is 4294967296; give")));
  EXPECT_THAT(problems("seed: 18446744073709551616"),
              ElementsAre(HasSubstr("seed is 1844674407370")));
  EXPECT_THAT(problems("seed: 0x"), ElementsAre(HasSubstr("seed is 0x; give")));
  EXPECT_THAT(problems("seed: 12a"), ElementsAre(HasSubstr("seed is 12a; give")));
  EXPECT_THAT(problems("epochs: 08"), ElementsAre(HasSubstr("epochs is 08; give")));
  EXPECT_THAT(problems(R"({"epochs": 1.5})", "f.json"),
              ElementsAre(HasSubstr("epochs is 1.5; give")));
}

TEST(ReadRefuses, AFieldThatIsGivenTwice) {
  EXPECT_THAT(problems("seed: 1\nepochs: 2\nseed: 3"),
              ElementsAre("f.textproto:3:1: seed is given twice, first at line 1; keep one"));
  EXPECT_THAT(problems("storage { directory: \"a\" }\nstorage { directory: \"b\" }"),
              ElementsAre("f.textproto:2:1: storage is given twice, first at line 1; keep one"));
  EXPECT_THAT(problems("{\"stages\": [],\n \"stages\": []}", "f.json"),
              ElementsAre("f.json:2:2: stages is given twice, first at line 1; keep one"));
}

TEST(ReadRefuses, BrokenStructureAndSaysSo) {
  const Configuration read = parse_config("seed: 1\nstages {\n  name: \"a\"\n", "f.textproto");
  EXPECT_FALSE(read.complete());
  EXPECT_THAT(texts(read), ElementsAre("f.textproto:2:8: this message is never closed; add '}'"));
  EXPECT_THAT(problems("{\"seed\": 1,\n \"epochs\" }", "f.json"),
              testing::Contains(HasSubstr("f.json:2:")));
}

TEST(ReadRefuses, SyntaxAndMeaningTogether) {
  EXPECT_THAT(
      problems("seed 1\nepochs: many\n"),
      ElementsAre(HasSubstr("1:6: expected ':' after 'seed'"), HasSubstr("2:9: epochs is many")));
}

TEST(ReadMeanings, AMisspeltFieldCountsAsTheOneThatWasMeant) {
  const Configuration read = parse_config("sede: 9\nstages { nmae: \"p\" }", "f.textproto");
  EXPECT_EQ(read.problems().size(), 2U);
  EXPECT_EQ(read.message().seed(), 9U);
  ASSERT_EQ(read.message().stages_size(), 1);
  EXPECT_EQ(read.message().stages(0).name(), "p");
}

TEST(ReadMeanings, AMisspeltFieldDoesNotReplaceTheRightOne) {
  EXPECT_EQ(parse_config("sede: 9\nseed: 8", "f.textproto").message().seed(), 8U);
  EXPECT_EQ(parse_config("seed: 8\nsede: 9", "f.textproto").message().seed(), 8U);
}

// ---------------------------------------------------------------------------------------- places

TEST(ReadPlaces, KnowWhereEachValueWasWritten) {
  const Configuration read = parse_config(lc0_text(), "f.textproto");
  const Places& places = read.places();
  EXPECT_EQ(places.find("stages[2]").text(), "f.textproto:3:1");
  EXPECT_EQ(places.find("stages[2].name").text(), "f.textproto:3:10");
  EXPECT_EQ(places.find("stages[2].shuffling_chunk_pool.input").text(), "f.textproto:3:46");
  EXPECT_EQ(places.find("stages[2].shuffling_chunk_pool.threads").text(), "f.textproto:3:23")
      << "what was not written is at what contains it";
  EXPECT_EQ(places.find("feed").text(), "f.textproto");
}

TEST(ReadPlaces, OfJsonAreThoseOfItsNamesAndElements) {
  const Configuration read = parse_config("{\"stages\": [\n  {\"name\": \"a\"}]}", "f.json");
  EXPECT_EQ(read.places().find("stages[0]").text(), "f.json:2:3");
  EXPECT_EQ(read.places().find("stages[0].name").text(), "f.json:2:4");
}

// ------------------------------------------------------------------------------------- overrides

DataLoaderConfig with(const std::vector<std::string>& overrides) {
  const Configuration read = parse_config(lc0_text(), "f.textproto", overrides);
  EXPECT_THAT(texts(read), IsEmpty());
  return read.message();
}

TEST(Override, SetsAFieldByIndexByNameAndWithoutTheKind) {
  for (const char* path : {"stages[2].shuffling_chunk_pool.chunk_pool_size=1000",
                           "stages.pool.shuffling_chunk_pool.chunk_pool_size=1000",
                           "stages.pool.chunk_pool_size=1000", "stages[2].chunk_pool_size=1000"}) {
    EXPECT_EQ(with({path}).stages(2).shuffling_chunk_pool().chunk_pool_size(), 1000U) << path;
  }
  EXPECT_EQ(with({"seed=7"}).seed(), 7U);
  EXPECT_EQ(with({"feed_output.slots=3"}).feed_output(0).slots(), 3U);
  EXPECT_EQ(with({"feed_output.dispatch=RELAXED"}).feed_output(0).dispatch(),
            FeedOutputConfig::RELAXED);
}

TEST(Override, StringsNeedNoQuotesAndMayHaveThem) {
  EXPECT_EQ(with({"stages.provider.directory=/d a=ta"}).stages(0).file_path_provider().directory(),
            "/d a=ta");
  EXPECT_EQ(
      with({"stages.provider.directory=\"/d\\n\""}).stages(0).file_path_provider().directory(),
      "/d\n");
  EXPECT_EQ(with({"storage.directory="}).storage().directory(), "");
}

TEST(Override, SetsMessagesAndLists) {
  EXPECT_EQ(with({"storage={directory: \"/x\"}"}).storage().directory(), "/x");
  const DataLoaderConfig config =
      with({"stages.pool={name: \"pool\" chunk_unpacker {input: \"loader\"}}"});
  EXPECT_TRUE(config.stages(2).has_chunk_unpacker());
  EXPECT_FALSE(config.stages(2).has_shuffling_chunk_pool());
  const DataLoaderConfig groups = with({"stage_groups=[{name: \"g\" stages: [\"pool\"]}]",
                                        "stage_groups.g.stages=[\"loader\", \"pool\"]"});
  ASSERT_EQ(groups.stage_groups_size(), 1);
  EXPECT_THAT(groups.stage_groups(0).stages(), ElementsAre("loader", "pool"));
}

TEST(Override, TheLastOneWins) { EXPECT_EQ(with({"seed=1", "seed=2"}).seed(), 2U); }

TEST(Override, ComesAfterTheFileAndIsThePlaceOfItsValue) {
  const Configuration read =
      parse_config("seed: 1", "f.textproto", std::vector<std::string>{"seed=x"});
  EXPECT_THAT(
      texts(read),
      ElementsAre(
          "--set seed=x:1:6: seed is x; give a whole number from 0 to 18446744073709551615"));
}

TEST(OverrideRefuses, WhatItDoesNotUnderstand) {
  const auto refused = [](const std::string& argument) {
    const Configuration read =
        parse_config(lc0_text(), "f.textproto", std::vector<std::string>{argument});
    const std::vector<std::string> all = texts(read);
    return all.size() == 1 ? all[0] : std::to_string(all.size()) + " messages";
  };
  EXPECT_EQ(refused("seed"),
            "--set seed:1:1: write path=value, for example seed=7 or stages.pool.threads=2");
  EXPECT_THAT(refused("=5"), HasSubstr("write path=value"));
  EXPECT_EQ(refused("sed=7"),
            "--set sed=7:1:1: unknown field 'sed' in the configuration; did you mean 'seed'?");
  EXPECT_EQ(refused("stages.pol.threads=2"),
            "--set stages.pol.threads=2:1:8: stages has no element 'pol'; did you mean 'pool'?");
  EXPECT_EQ(
      refused("stages[6].threads=2"),
      "--set stages[6].threads=2:1:1: there is no stages[6]; stages has 6 elements, counted from "
      "0");
  EXPECT_THAT(refused("stages.pool.chunk_pool_sise=1"),
              HasSubstr("stage 'pool': unknown field 'chunk_pool_sise' in stages[2]; did you mean "
                        "'chunk_pool_size'?"));
  EXPECT_THAT(refused("seed.x=1"), HasSubstr("seed has no fields; write seed=VALUE"));
  EXPECT_THAT(refused("seed[0]=1"), HasSubstr("seed is not a list"));
  EXPECT_THAT(refused("stages[x].threads=1"), HasSubstr("'stages[x]' is not an element of a list"));
  EXPECT_THAT(refused("storage=5"), HasSubstr("storage is 5; give a message"));
  EXPECT_THAT(refused("storage={"), HasSubstr("never closed"));
  EXPECT_THAT(refused("stages=5"), HasSubstr("stages takes a list, [ ... ]"));
  EXPECT_THAT(refused("seed=1 2"), HasSubstr("'2' after the value"));
  EXPECT_THAT(refused("stages..threads=1"), HasSubstr("stages has no element ''"));
}

TEST(OverrideRefuses, WithLineAndColumnInTheArgument) {
  const auto refused = [](const std::string& argument) {
    return texts(parse_config(lc0_text(), "f.textproto", std::vector<std::string>{argument}));
  };
  EXPECT_THAT(refused("stages.pool.chunk_pool_sise=1"), ElementsAre(HasSubstr("=1:1:13: stage")));
  EXPECT_THAT(refused("seed=1 2"), ElementsAre(HasSubstr("=1 2:1:8: ")));
  EXPECT_THAT(refused("storage={\n  directry: \"/x\" }"),
              ElementsAre(HasSubstr(":2:3: unknown field 'directry'")));
  EXPECT_THAT(refused("storage={ directory: 5 }"), ElementsAre(HasSubstr("}:1:22: ")));
}

// -------------------------------------------------------------------------------------- how much

TEST(ReadBounds, MistakesAreCountedWhereNobodyReadsThemAll) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "feed: \"x\"\n";
  const Configuration read = parse_config(text, "f.textproto");
  EXPECT_EQ(read.problems().size(), kProblemsKept);
  EXPECT_EQ(read.problems().size() + read.problems_left_out(), 19'999U);
  const std::string report = problem_report(read.problems(), read.problems_left_out());
  EXPECT_EQ(std::count(report.begin(), report.end(), '\n'), 101);
  EXPECT_THAT(report, testing::StartsWith("f.textproto:2:1: feed is given twice, first at line 1"));
  EXPECT_THAT(report, testing::EndsWith("and 19899 more problems: fix these first\n"));
}

TEST(ReadBounds, ManyUnknownFieldsAreNotEachGuessedAt) {
  std::string text;
  std::string bytes;
  for (int i = 0; i < 20'000; ++i) text += "colour: 7\n";
  for (int i = 0; i < 20'000; ++i) bytes += number_field(9, 1);
  for (const Configuration& read : {parse_config(text, "f.textproto"),
                                    parse_config(bytes, "f.binpb", {}, Format::kSerialized)}) {
    EXPECT_EQ(read.problems().size(), kProblemsKept);
    EXPECT_EQ(read.problems().size() + read.problems_left_out(), 20'000U);
  }
}

TEST(ReadBounds, AFeedHasNotThousandsOfStages) {
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += "stages { name: \"a\" }\n";
  const Configuration read = parse_config(text, "f.textproto");
  EXPECT_FALSE(read.complete());
  EXPECT_THAT(texts(read), ElementsAre(HasSubstr("f.textproto:1025:1: there are 2000 stages; a "
                                                 "feed has at most 1024")));
}

}  // namespace
}  // namespace ringfeed::config
