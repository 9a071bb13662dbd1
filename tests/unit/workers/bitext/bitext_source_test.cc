// The specification of workers/bitext/bitext_source.h and workers/bitext/bitext_files.h.
#include "workers/bitext/bitext_source.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "proto/stages/bitext.pb.h"
#include "tests/support/makers/token_maker.h"
#include "tests/support/rig/lane_rig.h"
#include "workers/bitext/bitext_files.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
namespace fs = std::filesystem;

// Three directions, two shards, subsets train, train_mining and valid, 500 symbols.
const std::string kExample = RINGFEED_SOURCE_DIR "/tests/data/fairseq/inputs/data_bin";
const std::string kExampleShards =
    fmt::format("directory: '{0}/shard000' directory: '{0}/shard001' ", kExample);
const std::string kExamplePairs =
    "lang_pairs: ['eng_Latn-tur_Latn', 'eng_Latn-hin_Deva', 'fra_Latn-eng_Latn'] ";

// "eng-tur 0/2: train.eng-tur.eng|train.eng-tur.tur 300 x2 tag 508; ...", the names from the last
// two parts of the path on.
std::string told_of(const BitextDirection& direction) {
  std::vector<std::string> parts;
  for (const BitextPart& part : direction.parts()) {
    const auto name = [](const std::string& path) {
      const fs::path at(path);
      return (at.parent_path().filename() / at.filename()).string();
    };
    parts.push_back(fmt::format(
        "{}|{} {}{}{}", name(part.source()), name(part.target()), part.sentences(),
        part.repeat() == 1 ? "" : fmt::format(" x{}", part.repeat()),
        part.has_source_tag() ? fmt::format(" tag {}", part.source_tag()) : std::string()));
  }
  return fmt::format("{} {}/{}: {}", direction.key(), direction.shard(), direction.shards(),
                     fmt::join(parts, "; "));
}

std::vector<BitextDirection> directions_of(const std::vector<RigRecord>& records) {
  std::vector<BitextDirection> all;
  for (const RigRecord& record : records) {
    EXPECT_TRUE(all.emplace_back().ParseFromString(record.bytes));
  }
  return all;
}

struct Source {
  explicit Source(const std::string& own, const std::string& feed = "epochs: 1") : rig(feed) {
    rig.add_stage(fmt::format("name: 'source' bitext_source {{ {} }}", own));
    rig.add_sink("out", "source");
    rig.build();
  }
  Source& finish() {
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    return *this;
  }
  [[nodiscard]] std::vector<BitextDirection> directions() const {
    return directions_of(rig.got("out"));
  }
  [[nodiscard]] std::vector<std::string> all() const {
    std::vector<std::string> all;
    for (const BitextDirection& direction : directions()) all.push_back(told_of(direction));
    return all;
  }
  // Of shard 0: "504 507" or "- -" for each direction.
  [[nodiscard]] std::vector<std::string> tokens() const {
    std::vector<std::string> all;
    for (const BitextDirection& direction : directions()) {
      if (direction.shard() != 0) continue;
      all.push_back(fmt::format(
          "{} {}", direction.has_encoder_token() ? std::to_string(direction.encoder_token()) : "-",
          direction.has_decoder_token() ? std::to_string(direction.decoder_token()) : "-"));
    }
    return all;
  }
  [[nodiscard]] std::uint64_t counter(std::string_view name) const {
    return rig.counter("source", name);
  }
  LaneRig rig;
};

std::vector<std::string> source_problems(const std::string& own, bool warnings = false) {
  BitextSourceConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(own, &config)) return {"not understood"};
  std::vector<std::string> all;
  for (const Problem& problem : bitext_problems(config)) {
    if (problem.warning == warnings) all.push_back(problem.field + ": " + problem.text);
  }
  return all;
}
std::vector<std::string> warnings_of(const std::string& own) { return source_problems(own, true); }

// A direction's two files in a directory.
void write_pair(const TokenDir& directory, const std::string& name, const std::string& first,
                const std::string& second, std::size_t sentences) {
  directory.write(fmt::format("{}.{}-{}.{}", name, first, second, first),
                  MadeTokens{made_sentences(sentences, 1)});
  directory.write(fmt::format("{}.{}-{}.{}", name, first, second, second),
                  MadeTokens{made_sentences(sentences, 2)});
}
void write_dictionaries(const TokenDir& directory, const std::string& shard,
                        const std::vector<std::string>& langs,
                        std::string_view text = "x 1\ny 1\n") {
  for (const std::string& lang : langs) {
    directory.write(fmt::format("{}/dict.{}.txt", shard, lang), text);
  }
}
// Directories s0 and s1 with some directions of a, b and c.
struct Made {
  Made() {
    write_dictionaries(directory, "s0", {"a", "b", "c"});
    write_pair(directory, "s0/train", "a", "b", 10);
    write_pair(directory, "s1/train", "a", "b", 11);
    write_pair(directory, "s0/train", "c", "a", 12);
    write_pair(directory, "s0/train_mining", "a", "b", 5);
    write_pair(directory, "s0/train_mmt_bt", "a", "b", 6);
  }
  [[nodiscard]] std::string shards() const {
    return fmt::format("directory: '{0}/s0' directory: '{0}/s1' ", directory.path());
  }
  [[nodiscard]] std::string first() const {
    return fmt::format("directory: '{0}/s0' ", directory.path());
  }
  TokenDir directory;
};

// ---- the example data

TEST(BitextSource, PutsOutAllDirectionsOfAShardThenTheNextShard) {
  Source source(kExampleShards + kExamplePairs +
                "langs: ['eng_Latn', 'fra_Latn', 'hin_Deva', 'tur_Latn'] encoder_langtok: SRC "
                "decoder_langtok: true");
  EXPECT_THAT(source.finish().all(),
              ElementsAre("main:eng_Latn-tur_Latn 0/2: shard000/train.eng_Latn-tur_Latn.eng_Latn|"
                          "shard000/train.eng_Latn-tur_Latn.tur_Latn 300",
                          "main:eng_Latn-hin_Deva 0/1: shard000/train.eng_Latn-hin_Deva.eng_Latn|"
                          "shard000/train.eng_Latn-hin_Deva.hin_Deva 120",
                          "main:fra_Latn-eng_Latn 0/2: shard000/train.fra_Latn-eng_Latn.fra_Latn|"
                          "shard000/train.fra_Latn-eng_Latn.eng_Latn 420",
                          HasSubstr("main:eng_Latn-tur_Latn 1/2: shard001/train."),
                          HasSubstr("main:fra_Latn-eng_Latn 1/2: shard001/train.")));
  EXPECT_THAT(source.tokens(), ElementsAre("504 507", "504 506", "505 504"));
  const std::vector<BitextDirection> all = source.directions();
  EXPECT_EQ(all[3].number(), 0U);
  EXPECT_EQ(all[4].number(), 2U);
  for (const BitextDirection& direction : all) {
    EXPECT_EQ(direction.directions(), 3U);
    EXPECT_FALSE(direction.replaces_eos());
    EXPECT_FALSE(direction.has_truncate_source());
  }
  EXPECT_EQ(all[2].source_lang_id(), 2U);
  EXPECT_EQ(all[2].target_lang_id(), 1U);
  EXPECT_EQ(source.counter("directions"), 5U);
  std::uint64_t sentences = 0;
  for (const BitextDirection& direction : all) sentences += direction.parts(0).sentences();
  EXPECT_EQ(source.counter("sentences"), sentences);
  EXPECT_EQ(source.counter("directions_missing"), 0U);
  EXPECT_THAT(source.rig.log("direction stage=source"), SizeIs(3));
}

TEST(BitextSource, PutsFoldsOneBehindTheOtherWithTheirTags) {
  for (const char* compat : {"NONE", "NLLB"}) {
    Source source(kExampleShards + kExamplePairs +
                  fmt::format("subsets: ['train', 'train_mining', 'train_smt_bt'] "
                              "add_data_source_prefix_tags: true encoder_langtok: SRC "
                              "compat: {}",
                              compat));
    EXPECT_THAT(
        source.finish().all(),
        ElementsAre("main:eng_Latn-tur_Latn 0/2: shard000/train.eng_Latn-tur_Latn.eng_Latn|"
                    "shard000/train.eng_Latn-tur_Latn.tur_Latn 300",
                    "main:eng_Latn-hin_Deva 0/1: shard000/train.eng_Latn-hin_Deva.eng_Latn|"
                    "shard000/train.eng_Latn-hin_Deva.hin_Deva 120; "
                    "shard000/train_mining.eng_Latn-hin_Deva.eng_Latn|"
                    "shard000/train_mining.eng_Latn-hin_Deva.hin_Deva 60 tag 508",
                    HasSubstr("|shard000/train_mining.fra_Latn-eng_Latn.eng_Latn 80 tag 508"),
                    HasSubstr("main:eng_Latn-tur_Latn 1/2"), HasSubstr(" tag 508")))
        << compat;
  }
}

TEST(BitextSource, DoesNotChangeWithDeathsAndSmallQueues) {
  const std::string own = kExampleShards + kExamplePairs +
                          "subsets: ['train', 'train_mining'] encoder_langtok: SRC "
                          "queue_capacity: 1";
  const std::vector<RigRecord> expected = Source(own).finish().rig.got("out");
  ASSERT_THAT(expected, SizeIs(5));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Source source(own);
    source.rig.run_with_restarts(random, 0.4);
    EXPECT_EQ(source.rig.got("out"), expected) << "seed " << seed;
    EXPECT_TRUE(source.rig.all_finished());
    EXPECT_EQ(source.counter("directions"), 5U);
  }
}

TEST(BitextSource, EndsAfterItsLastRecordInAnEndlessRunToo) {
  Source source(kExampleShards + kExamplePairs, "epochs: 0");
  EXPECT_THAT(source.finish().all(), SizeIs(5));
}

TEST(BitextSource, EndsAtOnceWhenDrained) {
  Source source(kExampleShards + kExamplePairs + "queue_capacity: 1");
  source.rig.allow("out", 2);
  source.rig.run();
  source.rig.want(shm::LaneDesire::kDrain);
  source.rig.allow("out", 100);
  source.rig.run();
  EXPECT_TRUE(source.rig.all_finished());
  EXPECT_LT(source.all().size(), 5U);
}

TEST(BitextSource, WarmsUpTheFilesAndPutsOutTheSame) {
  EXPECT_EQ(Source(kExampleShards + kExamplePairs + "warm_up: true").finish().all(),
            Source(kExampleShards + kExamplePairs).finish().all());
}

// ---- which files

TEST(BitextFiles, ReversedFilesServeUnlessTheyAreBackTranslated) {
  const Made made;
  const std::string own = made.first() +
                          "lang_pairs: 'b-a' lang_pairs: 'a-c' subsets: ["
                          "'train', 'train_mining', 'train_mmt_bt']";
  const auto expected = ElementsAre(
      "main:b-a 0/1: s0/train.a-b.b|s0/train.a-b.a 10; "
      "s0/train_mining.a-b.b|s0/train_mining.a-b.a 5",
      "main:a-c 0/1: s0/train.c-a.a|s0/train.c-a.c 12");
  EXPECT_THAT(Source(own).finish().all(), expected);
  EXPECT_THAT(Source(own + "compat: NLLB").finish().all(), expected);
  EXPECT_THAT(Source(made.first() + "lang_pairs: 'a-b' subsets: 'train_mmt_bt'").finish().all(),
              ElementsAre("main:a-b 0/1: s0/train_mmt_bt.a-b.a|s0/train_mmt_bt.a-b.b 6"));
  EXPECT_THAT(Source(made.first() + "lang_pairs: 'b-a' subsets: 'train_mmt_bt' compat: MAIN")
                  .finish()
                  .all(),
              ElementsAre("main:b-a 0/1: s0/train_mmt_bt.a-b.b|s0/train_mmt_bt.a-b.a 6"));
  // Both are there: each has its own.
  write_pair(made.directory, "s0/train", "b", "a", 3);
  EXPECT_THAT(Source(made.first() + "lang_pairs: ['b-a', 'a-b']").finish().all(),
              ElementsAre("main:b-a 0/1: s0/train.b-a.b|s0/train.b-a.a 3",
                          "main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 10"));
}

// With fairseq a pair of which the source side lacks its data is not there, and the reversed one
// serves.
TEST(BitextFiles, AnIndexWithoutItsDataIsNoFileForFairseq) {
  const Made made;
  write_pair(made.directory, "s0/train", "b", "a", 3);
  made.directory.remove("s0/train.a-b.a.bin");
  for (const char* compat : {"compat: NLLB", "compat: MAIN"}) {
    const std::string own = made.first() + "lang_pairs: 'a-b' " + compat;
    EXPECT_THAT(source_problems(own), IsEmpty());
    EXPECT_THAT(Source(own).finish().all(),
                ElementsAre("main:a-b 0/1: s0/train.b-a.a|s0/train.b-a.b 3"));
  }
  const auto refused = ElementsAre(HasSubstr("s0/train.a-b.a.bin: there is no such file"));
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'a-b'"), refused);
  // The target's side is not asked.
  made.directory.remove("s0/train.b-a.b.bin");
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'a-b' compat: NLLB"),
              ElementsAre(HasSubstr("s0/train.b-a.b.bin: there is no such file")));
  // The fold is missing; of one that is reversed and back-translated too.
  made.directory.remove("s0/train_mmt_bt.a-b.a.bin");
  write_pair(made.directory, "s0/train_mmt_bt", "b", "a", 4);
  EXPECT_THAT(Source(made.first() + "lang_pairs: 'a-b' compat: NLLB subsets: ['train_mining', "
                                    "'train_mmt_bt']")
                  .finish()
                  .all(),
              ElementsAre("main:a-b 0/1: s0/train_mining.a-b.a|s0/train_mining.a-b.b 5"));
}

TEST(BitextFiles, TheFirstOfSeveralSubsetsCountsMoreOften) {
  const Made made;
  const std::string own = made.first() + "lang_pairs: ['a-b', 'c-a'] upsample_primary: 3 ";
  const std::string folds = "subsets: ['train', 'train_mining'] ";
  Source source(own + folds);
  EXPECT_THAT(source.finish().all(),
              ElementsAre("main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 10 x3; "
                          "s0/train_mining.a-b.a|s0/train_mining.a-b.b 5",
                          "main:c-a 0/1: s0/train.c-a.c|s0/train.c-a.a 12 x3"));
  EXPECT_EQ(source.counter("sentences"), 71U);
  // fairseq: only where it is not alone, and then whichever comes first.
  EXPECT_THAT(Source(own + folds + "compat: NLLB").finish().all(),
              ElementsAre(HasSubstr("train.a-b.b 10 x3; "), HasSubstr("train.c-a.a 12")));
  made.directory.remove("s0/train.a-b.a.idx");
  EXPECT_THAT(
      Source(own + "subsets: ['train', 'train_mining', 'train_mmt_bt'] compat: NLLB")
          .finish()
          .all(),
      ElementsAre(HasSubstr("s0/train_mining.a-b.b 5 x3; s0/train_mmt_bt"), Not(HasSubstr(" x"))));
  EXPECT_THAT(Source(own + "subsets: ['train', 'train_mining', 'train_mmt_bt']").finish().all(),
              ElementsAre(Not(HasSubstr(" x")), HasSubstr("train.c-a.a 12 x3")));
  // One subset is not several.
  EXPECT_THAT(Source(own + "subsets: 'train_mining' allow_missing: true").finish().all(),
              ElementsAre(Not(HasSubstr(" x"))));
}

TEST(BitextFiles, CombineTakesTheNumberedOnesUntilOneIsMissing) {
  const Made made;
  write_pair(made.directory, "s0/train1", "a", "b", 1);
  write_pair(made.directory, "s0/train2", "b", "a", 2);
  write_pair(made.directory, "s0/train4", "a", "b", 4);
  const std::string own = made.first() + "lang_pairs: 'a-b' compat: MAIN ";
  EXPECT_THAT(Source(own + "combine: true upsample_primary: 2").finish().all(),
              ElementsAre("main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 10 x2; "
                          "s0/train1.a-b.a|s0/train1.a-b.b 1; s0/train2.b-a.a|s0/train2.b-a.b 2"));
  EXPECT_THAT(Source(own).finish().all(),
              ElementsAre("main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 10"));
}

TEST(BitextFiles, ShardsAreCountedByDirectoriesWithTheDirection) {
  const Made made;
  // a-c: one directory by its own name. b-a: none by its own, so those of a-b.
  write_pair(made.directory, "s1/train", "a", "c", 2);
  for (const char* compat : {"NLLB", "MAIN"}) {
    const std::string own = made.shards() + fmt::format("compat: {} ", compat);
    EXPECT_THAT(Source(own + "lang_pairs: ['b-a', 'c-a']").finish().all(),
                ElementsAre(HasSubstr("b-a 0/2: s0/"), HasSubstr("c-a 0/1: s0/train.c-a.c"),
                            HasSubstr("b-a 1/2: s1/")));
    // Its only shard is looked for in the first directory, where the reversed files serve.
    EXPECT_THAT(Source(own + "lang_pairs: 'a-c'").finish().all(),
                ElementsAre("main:a-c 0/1: s0/train.c-a.a|s0/train.c-a.c 12"));
  }
  EXPECT_THAT(Source(made.shards() + "lang_pairs: 'a-c'").finish().all(),
              ElementsAre("main:a-c 0/2: s0/train.c-a.a|s0/train.c-a.c 12",
                          "main:a-c 1/2: s1/train.a-c.a|s1/train.a-c.c 2"));
}

// fairseq's main branch compares the begin of names without the dot behind it.
TEST(BitextFiles, NamesThatBeginLikeTheSubsetCountAsShardsWithMain) {
  const Made made;
  write_pair(made.directory, "s1/train_mining", "c", "a", 2);
  const std::string own = made.shards() + "lang_pairs: 'c-a' allow_missing: true ";
  EXPECT_THAT(Source(own + "compat: NLLB").finish().all(), ElementsAre(HasSubstr("c-a 0/1: s0/")));
  Source main(own + "compat: MAIN");
  EXPECT_THAT(main.finish().all(), ElementsAre(HasSubstr("c-a 0/2: s0/"), "main:c-a 1/2: "));
  EXPECT_EQ(main.counter("directions_missing"), 1U);
}

TEST(BitextFiles, ShardsMayBeAnywhereWithoutCompat) {
  const Made made;
  write_pair(made.directory, "s1/train", "b", "c", 3);
  EXPECT_THAT(Source(made.shards() + "lang_pairs: 'b-c'").finish().all(),
              ElementsAre("main:b-c 0/1: s1/train.b-c.b|s1/train.b-c.c 3"));
  // With fairseq's rules it is looked for in the first directory, and not there.
  EXPECT_THAT(source_problems(made.shards() + "lang_pairs: 'b-c' compat: MAIN"),
              ElementsAre(AllOf(HasSubstr("lang_pairs[0]: direction main:b-c has 1 shards"),
                                HasSubstr(made.directory.path("s0")))));
}

TEST(BitextFiles, ExtraDataComeBehindTheMainData) {
  const Made made;
  write_pair(made.directory, "x0/train", "a", "b", 2);
  write_pair(made.directory, "x0/train", "b", "c", 3);
  const std::string extra = fmt::format(
      "extra_data {{ category: 'mined' directory: '{}' lang_pairs: ['b-c', 'a-b'] }} "
      "langtoks_specs: ['main', 'mined'] "
      "langtoks {{ category: 'mined' source_spec: 'src.mined' target_spec: 'tgt' }} "
      "encoder_langtok: TGT ",
      made.directory.path("x0"));
  Source source(made.first() + "lang_pairs: 'a-b' " + extra);
  EXPECT_THAT(source.finish().all(), ElementsAre("main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 10",
                                                 "mined:b-c 0/1: x0/train.b-c.b|x0/train.b-c.c 3",
                                                 "mined:a-b 0/1: x0/train.a-b.a|x0/train.a-b.b 2"));
  // x y a b c, then a_mined b_mined c_mined: 6 7 8, 9 10 11.
  EXPECT_THAT(source.tokens(), ElementsAre("7 -", "10 8", "9 7"));
  EXPECT_THAT(
      Source(made.first() + "lang_pairs: 'a-b' ignore_main_data: true " + extra).finish().all(),
      ElementsAre(HasSubstr("mined:b-c"), HasSubstr("mined:a-b")));
}

TEST(BitextFiles, EmptyFilesAreNoPartsButShards) {
  const Made made;
  write_pair(made.directory, "s1/train", "a", "b", 0);
  Source source(made.shards() + "lang_pairs: 'a-b'");
  EXPECT_THAT(source.finish().all(),
              ElementsAre("main:a-b 0/2: s0/train.a-b.a|s0/train.a-b.b 10", "main:a-b 1/2: "));
  EXPECT_EQ(source.counter("directions_missing"), 0U);
  EXPECT_THAT(source.rig.log("skipped"), IsEmpty());
}

// ---- tokens

TEST(BitextTokens, WhichTokenStandsWhere) {
  const Made made;
  const std::string own = made.first() + "lang_pairs: ['a-b', 'c-a'] ";
  // x 4, y 5, then a 6, b 7, c 8.
  EXPECT_THAT(Source(own).finish().tokens(), ElementsAre("- -", "- -"));
  EXPECT_THAT(Source(own + "encoder_langtok: SRC").finish().tokens(), ElementsAre("6 -", "8 -"));
  EXPECT_THAT(Source(own + "encoder_langtok: TGT").finish().tokens(), ElementsAre("7 -", "6 -"));
  EXPECT_THAT(Source(own + "encoder_langtok: SRC decoder_langtok: true").finish().tokens(),
              ElementsAre("6 7", "8 6"));
  EXPECT_THAT(Source(own + "decoder_langtok: true langtoks { category: 'main' source_spec: 'tgt' }")
                  .finish()
                  .tokens(),
              ElementsAre("7 -", "6 -"))
      << "langtoks decides both sides";
}

TEST(BitextTokens, LanguagesAreNumberedInTheirOrder) {
  const Made made;
  const std::string own = made.first() + "lang_pairs: ['c-a', 'a-b'] encoder_langtok: SRC ";
  EXPECT_THAT(Source(own).finish().tokens(), ElementsAre("8 -", "6 -")) << "by name";
  EXPECT_THAT(Source(own + "langs: ['c', 'z', 'b', 'a']").finish().tokens(),
              ElementsAre("6 -", "9 -"));
  const std::string file = made.directory.write("langs.txt", "b\n\n c \r\na");
  Source source(own + fmt::format("lang_dict: '{}'", file));
  EXPECT_THAT(source.finish().tokens(), ElementsAre("7 -", "8 -"));
  EXPECT_EQ(source.directions()[0].source_lang_id(), 2U);
  EXPECT_EQ(source.directions()[0].target_lang_id(), 3U);
}

TEST(BitextTokens, SymbolsFollowInFairseqsOrder) {
  const Made made;
  const std::string own = made.first() +
                          "lang_pairs: 'a-b' subsets: ['train', 'train_mining'] "
                          "add_data_source_prefix_tags: true encoder_langtok: SRC ";
  const auto tag = [](const Source& source) {
    return source.directions()[0].parts(1).source_tag();
  };
  // x 4, y 5, a 6, b 7.
  EXPECT_EQ(tag(Source(own).finish()), 8U);
  EXPECT_EQ(tag(Source(own + "extra_symbols: '<mask>' extra_symbols: '__dae__'").finish()), 10U);
  EXPECT_EQ(tag(Source(own + "final_symbols: '__lm__'").finish()), 8U);
  EXPECT_EQ(tag(Source(own + "langtoks_specs: ['main', 'mono_dae']").finish()), 10U);
  EXPECT_EQ(tag(Source(own + "lang_tok_style: MBART").finish()), 9U) << "<mask> comes with it";
  EXPECT_EQ(tag(Source(own + "lang_tok_style: MBART extra_symbols: '<mask>'").finish()), 9U);
}

TEST(BitextTokens, SymbolsThatAreThereKeepTheirIds) {
  const Made made;
  write_dictionaries(made.directory, "s0", {"a", "b", "c"}, "__b__ 1\n[a] 1\nx 1\n");
  const std::string own = made.first() +
                          "lang_pairs: ['a-b', 'c-a'] encoder_langtok: SRC "
                          "decoder_langtok: true ";
  EXPECT_THAT(Source(own).finish().tokens(), ElementsAre("7 4", "8 7"));
  EXPECT_THAT(Source(own + "lang_tok_style: MBART").finish().tokens(), ElementsAre("5 7", "8 5"));
}

TEST(BitextTokens, EachSideMayHaveItsDictionary) {
  const Made made;
  write_dictionaries(made.directory, "s0", {"b"}, "p 1\nq 1\nr 1\n");
  const std::string own = made.first() + "encoder_langtok: SRC decoder_langtok: true ";
  EXPECT_THAT(Source(own + "lang_pairs: 'a-b'").finish().tokens(), ElementsAre("6 8"));
  const std::string one = made.directory.write("one.txt", "x 1\n");
  const std::string four = made.directory.write("four.txt", "x 1\ny 1\nz 1\nw 1\n");
  EXPECT_THAT(Source(own + fmt::format("lang_pairs: ['a-b', 'c-a'] dictionary: '{}'", one))
                  .finish()
                  .tokens(),
              ElementsAre("5 6", "7 5"));
  EXPECT_THAT(Source(own + fmt::format("lang_pairs: ['a-b', 'c-a'] source_dictionary: '{}' "
                                       "target_dictionary: '{}'",
                                       one, four))
                  .finish()
                  .tokens(),
              ElementsAre("5 9", "7 8"));
}

TEST(BitextTokens, ReplacingAndTruncationAreSaid) {
  const Made made;
  Source source(made.first() +
                "lang_pairs: 'a-b' encoder_langtok: SRC lang_tok_replacing_bos_eos: true "
                "truncate_source: 60");
  const BitextDirection direction = source.finish().directions()[0];
  EXPECT_TRUE(direction.replaces_eos());
  EXPECT_EQ(direction.truncate_source(), 60U);
}

// ---- what is refused before the start

TEST(BitextProblems, NoneOfTheExample) {
  EXPECT_THAT(source_problems(kExampleShards + kExamplePairs + "encoder_langtok: SRC"), IsEmpty());
  EXPECT_THAT(source_problems(kExampleShards + kExamplePairs +
                              "subsets: ['train', 'train_mining'] compat: NLLB "
                              "add_data_source_prefix_tags: true"),
              IsEmpty());
}

TEST(BitextProblems, OfSettings) {
  const Made made;
  const std::string good = made.first() + "lang_pairs: 'a-b' ";
  ASSERT_THAT(source_problems(good), IsEmpty());
  const auto only = [&](const std::string& more, const std::string& field,
                        const std::string& text) {
    EXPECT_THAT(source_problems(good + more),
                ElementsAre(AllOf(HasSubstr(field + ": "), HasSubstr(text))))
        << more;
  };
  only("overflow_behavior: DROP_NEW", "overflow_behavior", "only BLOCK");
  only("combine: true", "combine", "compat: MAIN");
  only("compat: MAIN subsets: ['train', 'train_mining']", "subsets[1]", "one subset");
  only("compat: MAIN add_data_source_prefix_tags: true", "add_data_source_prefix_tags",
       "main branch");
  only("subsets: ['train', 'train']", "subsets[1]", "twice");
  only("subsets: ['train', 'train.x']", "subsets[1]", "without dots");
  // Without a token there is nothing to replace, and each direction is collated by itself.
  EXPECT_THAT(source_problems(good + "lang_tok_replacing_bos_eos: true"), IsEmpty());
  only("langs: ['a', 'b', 'a']", "langs[2]", "twice");
  only("langs: ['a', 'b', 'c,d']", "langs[2]", "one per entry");
  only("langs: ['a', 'c']", "lang_pairs[0]", "language b of main:a-b is not among the 2");
  only("langtoks { category: 'x' }", "langtoks[0].category", "there are main");
  only("langtoks { category: 'main' source_spec: 'dst' }", "langtoks[0].source_spec", "'src...'");
  only("langtoks { category: 'main' source_spec: 'src.mined' }", "lang_pairs[0]", "__a_mined__");
  only("lang_pairs: 'a-b'", "lang_pairs[1]", "twice");
  for (const char* bad : {"a", "a-", "-b", "a-b-c", "a-b,c-d", "a.x-b", "../a-b", ""}) {
    only(fmt::format("lang_pairs: '{}'", bad), "lang_pairs[1]", "SRC-TGT");
  }
  only("ignore_main_data: true", "ignore_main_data", "extra_data");
  only(fmt::format("extra_data {{ category: 'main' {} lang_pairs: 'c-a' }}", made.first()),
       "extra_data[0].category", "twice");
  only(fmt::format("extra_data {{ category: 'mono_dae' {} lang_pairs: 'c-a' }}", made.first()),
       "extra_data[0].category", "monolingual");
  only(fmt::format("extra_data {{ {} lang_pairs: 'c-a' }}", made.first()), "extra_data[0].category",
       "is not a category");
  only("extra_data { category: 'x' lang_pairs: 'c-a' }", "extra_data[0].directory", "no directory");
  only(fmt::format("extra_data {{ category: 'x' {} }}", made.first()), "extra_data[0].lang_pairs",
       "no direction");
  EXPECT_THAT(source_problems("lang_pairs: 'a-b'"),
              ElementsAre(HasSubstr("directory: no directory")));
  EXPECT_THAT(source_problems(made.first()), ElementsAre(HasSubstr("lang_pairs: no direction")));
}

TEST(BitextProblems, OfDirectories) {
  const Made made;
  const std::string pairs = "lang_pairs: 'a-b' ";
  EXPECT_THAT(source_problems(pairs + fmt::format("{} directory: '{}'", made.first(),
                                                  made.directory.path("none"))),
              ElementsAre(AllOf(HasSubstr("directory[1]: "), HasSubstr("/none"))));
  EXPECT_THAT(source_problems(pairs + fmt::format("{0} directory: '{1}:{1}'", made.first(),
                                                  made.directory.path("s1"))),
              ElementsAre(HasSubstr("instead of joined by colons")));
  // None of them is there: what is not there yet is waited for.
  EXPECT_THAT(source_problems(pairs + "encoder_langtok: SRC directory: '/nowhere/at/all'"),
              IsEmpty());
}

TEST(BitextProblems, OfDirectionsWithoutFilesSayWhatIsThere) {
  const Made made;
  const auto missing = AllOf(HasSubstr("lang_pairs[1]: direction main:b-c has no token files"),
                             HasSubstr("train.b-c.b.idx"), HasSubstr("train.c-b.b.idx"),
                             HasSubstr("there are a-b, c-a"), HasSubstr("allow_missing"));
  const std::string own = made.first() + "lang_pairs: ['a-b', 'b-c'] ";
  EXPECT_THAT(source_problems(own), ElementsAre(missing));
  EXPECT_THAT(source_problems(own + "compat: MAIN"), ElementsAre(missing));
  EXPECT_THAT(source_problems(own + "compat: NLLB"), IsEmpty());
  EXPECT_THAT(source_problems(own + "compat: NLLB allow_missing: false"), ElementsAre(missing));
  EXPECT_THAT(source_problems(own + "allow_missing: true"), IsEmpty());
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'b-c' allow_missing: true"),
              ElementsAre(HasSubstr("none of the directions has token files")));
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'a-b' subsets: 'test'"),
              ElementsAre(HasSubstr("there are no files of these subsets")));
}

TEST(BitextProblems, DirectionsWithoutFilesAreWarnedOfWhereTheyAreAllowed) {
  const Made made;
  const auto missing = AllOf(HasSubstr("lang_pairs[1]: direction main:b-c has no token files"),
                             HasSubstr("there are a-b, c-a"),
                             HasSubstr("set allow_missing: false to make this an error"));
  const std::string own = made.first() + "lang_pairs: ['a-b', 'b-c'] ";
  EXPECT_THAT(warnings_of(own), IsEmpty()) << "it is refused";
  EXPECT_THAT(warnings_of(own + "compat: NLLB"),
              ElementsAre(AllOf(missing, HasSubstr("left out (compat: NLLB)"))));
  EXPECT_THAT(warnings_of(own + "allow_missing: true"),
              ElementsAre(AllOf(missing, HasSubstr("left out (allow_missing)"))));
  EXPECT_THAT(warnings_of(made.first() + "lang_pairs: 'a-b' compat: NLLB"), IsEmpty());
  // A shard of a direction.
  write_pair(made.directory, "s1/train", "a", "c", 2);
  made.directory.remove("s0/train.c-a.c.idx");
  made.directory.remove("s0/train.c-a.a.idx");
  EXPECT_THAT(warnings_of(made.shards() + "lang_pairs: ['a-b', 'a-c'] compat: NLLB"),
              ElementsAre(HasSubstr("direction main:a-c has 1 shards")));
  std::string many = own + "compat: NLLB ";
  for (int i = 0; i < 50; ++i) many += fmt::format("lang_pairs: 'l{}-a' ", i);
  EXPECT_THAT(source_problems(many), IsEmpty());
  const std::vector<std::string> warnings = warnings_of(many);
  EXPECT_THAT(warnings, SizeIs(21));
  EXPECT_THAT(warnings.back(), HasSubstr("31 more directions"));
}

TEST(BitextProblems, OfDictionaries) {
  const Made made;
  const std::string own = made.first() + "lang_pairs: ['a-b', 'c-a'] encoder_langtok: SRC ";
  made.directory.write("s0/dict.c.txt", "x 1\nw 1\n");
  EXPECT_THAT(source_problems(own),
              ElementsAre(AllOf(HasSubstr("dict.a.txt and "), HasSubstr("dict.c.txt differ"),
                                HasSubstr("id 5 is 'y' in the first and 'w'"),
                                HasSubstr("source_dictionary"))));
  made.directory.write("s0/dict.c.txt", "x 1\ny 1\nz 1\n");
  EXPECT_THAT(source_problems(own), ElementsAre(HasSubstr("6 symbols and the second 7")));
  made.directory.write("s0/dict.c.txt", "x 9\r\ny 9");
  EXPECT_THAT(source_problems(own), IsEmpty()) << "counts and line ends do not matter";
  made.directory.write("s0/dict.c.txt", "x 1\ny\n");
  EXPECT_THAT(source_problems(own), ElementsAre(AllOf(HasSubstr("dict.c.txt: line 2 (offset 4)"),
                                                      HasSubstr("write it as 'SYMBOL COUNT'"),
                                                      Not(HasSubstr("put it there")))));
  made.directory.remove("s0/dict.c.txt");
  EXPECT_THAT(source_problems(own),
              ElementsAre(AllOf(HasSubstr("directory[0]: "), HasSubstr("dict.c.txt"),
                                HasSubstr("put it there, or give dictionary"))));
  fs::create_symlink(std::string(300, 'x'), made.directory.path("s0/dict.c.txt"));
  EXPECT_THAT(source_problems(own), ElementsAre(AllOf(HasSubstr("check who may read it"),
                                                      Not(HasSubstr("put it there")))));
  made.directory.remove("s0/dict.c.txt");
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'c-a'"), IsEmpty())
      << "without tokens nobody asks it";
  EXPECT_THAT(source_problems(own + "dictionary: '/nowhere/dict.txt'"),
              ElementsAre(AllOf(HasSubstr("dictionary: "), HasSubstr("/nowhere/dict.txt"),
                                HasSubstr("give one that is there"))));
  EXPECT_THAT(source_problems(own + fmt::format("dictionary: '{0}' source_dictionary: '{0}'",
                                                made.directory.path("s0/dict.a.txt"))),
              ElementsAre(HasSubstr("keep one kind")));
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'a-b' lang_dict: '/nowhere/langs'"),
              ElementsAre(AllOf(HasSubstr("lang_dict: "), HasSubstr("/nowhere/langs"))));
}

TEST(BitextProblems, OfTokenFiles) {
  const Made made;
  const std::string own = made.shards() + "lang_pairs: ['a-b', 'c-a'] ";
  made.directory.write("s1/train.a-b.b", MadeTokens{made_sentences(9)});
  EXPECT_THAT(source_problems(own),
              ElementsAre(AllOf(HasSubstr("lang_pairs[0]: "),
                                HasSubstr("s1/train.a-b.a.idx has 11 sentences"),
                                HasSubstr("s1/train.a-b.b.idx 9"))));
  made.directory.write("s1/train.a-b.b.idx", "nonsense");
  EXPECT_THAT(source_problems(own), ElementsAre(HasSubstr("s1/train.a-b.b.idx: offset 0")));
  made.directory.remove("s1/train.a-b.b.idx");
  EXPECT_THAT(source_problems(own), ElementsAre(HasSubstr("s1/train.a-b.b.idx: there is no such")));
  write_pair(made.directory, "s1/train", "a", "b", 4);
  made.directory.remove("s1/train.a-b.a.bin");
  made.directory.remove("s0/train.c-a.c.bin");
  EXPECT_THAT(source_problems(own),
              ElementsAre(AllOf(HasSubstr("lang_pairs[0]: "), HasSubstr("train.a-b.a.bin")),
                          AllOf(HasSubstr("lang_pairs[1]: "), HasSubstr("train.c-a.c.bin"))));
  write_pair(made.directory, "s0/train", "a", "b", 0);
  EXPECT_THAT(source_problems(made.first() + "lang_pairs: 'a-b'"),
              ElementsAre(HasSubstr("all token files are empty")));
}

TEST(BitextProblems, OfTokenFilesThatHaveBeenCutOff) {
  const Made made;
  const std::string own = made.first() + "lang_pairs: ['a-b', 'c-a'] ";
  for (const formats::TokenFile::Kind kind :
       {formats::TokenFile::Kind::kMapped, formats::TokenFile::Kind::kLegacy}) {
    const MadeTokens tokens{made_sentences(10, 2), formats::TokenCode::kInt32, kind};
    made.directory.write("s0/train.a-b.b", tokens);
    ASSERT_THAT(source_problems(own), IsEmpty());
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{9}, tokens.data().size() - 1}) {
      made.directory.write("s0/train.a-b.b.bin", tokens.data().substr(0, bytes));
      EXPECT_THAT(source_problems(own),
                  ElementsAre(AllOf(
                      HasSubstr("lang_pairs[0]: "),
                      HasSubstr(fmt::format("s0/train.a-b.b.bin: offset {}: ", bytes)),
                      HasSubstr("sentence 9, the last one of"), HasSubstr("copy both files"))));
    }
    // Longer than the index says is no harm.
    made.directory.write("s0/train.a-b.b.bin", tokens.data() + "more");
    EXPECT_THAT(source_problems(own), IsEmpty());
  }
  made.directory.write("s0/train.c-a.c.bin", "");
  EXPECT_THAT(source_problems(own), ElementsAre(HasSubstr("s0/train.c-a.c.bin: offset 0: ")));
}

TEST(BitextProblems, OfManyDirectionsAreCounted) {
  const Made made;
  std::string own = made.first();
  for (int i = 0; i < 50; ++i) {
    own += fmt::format("lang_pairs: 'l{}-a' ", i);
    write_pair(made.directory, "s0/train", fmt::format("l{}", i), "a", 3);
    made.directory.write(fmt::format("s0/train.l{0}-a.l{0}.idx", i), "nonsense");
  }
  const std::vector<std::string> problems = source_problems(own);
  EXPECT_THAT(problems, SizeIs(21));
  EXPECT_THAT(problems.back(), HasSubstr("30 more directions"));
}

TEST(BitextProblems, RefuseTheStage) { EXPECT_THROW(Source("lang_pairs: 'a-b'"), Error); }

// ---- what becomes bad after the start

// The first record has been output and two wait at most; then something happens to the files.
struct Started {
  explicit Started(const std::string& own) : source(own + " queue_capacity: 1") {
    source.rig.allow("out", 1);
    source.rig.run();
    EXPECT_THAT(source.all(), SizeIs(1));
  }
  std::vector<std::string> finish() {
    source.rig.allow("out", 1000);
    source.finish();
    return source.all();
  }
  Source source;
};

// Directions l0-a, l1-a, ... of the sentences 1, 2, ...
std::string many(const Made& made, int count) {
  std::string own = made.first();
  for (int i = 0; i < count; ++i) {
    own += fmt::format("lang_pairs: 'l{}-a' ", i);
    write_pair(made.directory, "s0/train", fmt::format("l{}", i), "a",
               static_cast<std::size_t>(i) + 1);
  }
  return own;
}

TEST(BitextDamage, AfterTheStartLeavesARecordWithoutParts) {
  const Made made;
  Started started(many(made, 20));
  made.directory.write("s0/train.l10-a.a.idx", "nonsense");
  made.directory.remove("s0/train.l11-a.a.bin");
  made.directory.write("s0/train.l12-a.a", MadeTokens{made_sentences(1)});
  fs::remove(made.directory.path("s0/train.l13-a.a.idx"));
  fs::create_symlink(std::string(300, 'x'), made.directory.path("s0/train.l13-a.a.idx"));
  const std::vector<std::string> all = started.finish();
  ASSERT_THAT(all, SizeIs(20));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string parts =
        i >= 10 && i <= 13 ? ""
                           : fmt::format("s0/train.l{0}-a.l{0}|s0/train.l{0}-a.a {1}", i, i + 1);
    EXPECT_EQ(all[i], fmt::format("main:l{}-a 0/1: {}", i, parts));
  }
  EXPECT_EQ(started.source.counter("directions"), 20U);
  EXPECT_EQ(started.source.counter("skipped_damaged"), 2U);
  EXPECT_EQ(started.source.counter("skipped_unequal"), 1U);
  EXPECT_EQ(started.source.counter("skipped_unreadable"), 1U);
  EXPECT_EQ(started.source.counter("sentences"), 20U * 21 / 2 - 11 - 12 - 13 - 14);
  EXPECT_THAT(started.source.rig.log("reason=skipped_unequal"),
              ElementsAre(HasSubstr("s0/train.l12-a.l12.idx has 13 sentences")));
}

TEST(BitextDamage, ADirectionIsLeftOutWhereItIsAllowed) {
  const Made made;
  Source source(made.shards() + "lang_pairs: ['b-c', 'a-b', 'c-a'] compat: NLLB");
  EXPECT_THAT(
      source.finish().all(),
      ElementsAre(HasSubstr("main:a-b 0/2"), HasSubstr("main:c-a 0/1"), HasSubstr("main:a-b 1/2")));
  EXPECT_EQ(source.directions()[0].number(), 0U);
  EXPECT_EQ(source.directions()[1].number(), 1U);
  EXPECT_EQ(source.directions()[0].directions(), 2U);
  EXPECT_EQ(source.counter("directions_missing"), 1U);
  EXPECT_THAT(source.rig.log("direction_missing"),
              ElementsAre(AllOf(HasSubstr("main:b-c"), HasSubstr("left out (compat: NLLB)"))));
}

// Who goes on after a death counts shards and numbers as before, whatever has appeared since.
TEST(BitextDamage, DirectoriesThatChangeDoNotChangeThePlan) {
  const Made made;
  Started started(many(made, 20) +
                  fmt::format("directory: '{}' allow_missing: true lang_pairs: 'z-a'",
                              made.directory.path("s1")));
  write_pair(made.directory, "s1/train", "l3", "a", 2);
  write_pair(made.directory, "s0/train", "z", "a", 2);
  for (const char* side : {"l15", "a"}) {
    made.directory.remove(fmt::format("s0/train.l15-a.{}.idx", side));
  }
  made.directory.remove("s0/dict.a.txt");
  started.source.rig.restart("source");
  const std::vector<std::string> all = started.finish();
  ASSERT_THAT(all, SizeIs(20));
  EXPECT_THAT(all[3], HasSubstr("main:l3-a 0/1: s0/"));
  EXPECT_EQ(all[15], "main:l15-a 0/1: ");
  EXPECT_EQ(started.source.directions()[19].directions(), 20U);
}

TEST(BitextDamage, RecordsThatDoNotFitAreSkippedWithTheRemedy) {
  const Made made;
  std::string subsets = "'train'";
  for (int i = 0; i < 400; ++i) {
    subsets += fmt::format(", 'train_{}'", i);
    write_pair(made.directory, fmt::format("s0/train_{}", i), "a", "b", 1);
  }
  const std::string own = made.first() + fmt::format("lang_pairs: 'a-b' subsets: [{}] ", subsets);
  Source source(own + "queue_bytes: 65536");
  EXPECT_THAT(source.finish().all(), ElementsAre("main:a-b 0/1: "));
  EXPECT_EQ(source.counter("skipped_unreadable"), 1U);
  EXPECT_THAT(source.rig.log("skipped"), ElementsAre(HasSubstr("raise queue_bytes to 131072")));
  EXPECT_EQ(Source(own).finish().directions()[0].parts_size(), 401);
}

TEST(BitextWaiting, AnEndlessRunWaitsForItsDirectories) {
  const TokenDir directory;
  const std::string own =
      fmt::format("directory: '{0}/s0' lang_pairs: 'a-b' encoder_langtok: SRC", directory.path());
  Source source(own, "epochs: 0");
  source.rig.run();
  EXPECT_FALSE(source.rig.all_finished());
  EXPECT_THAT(source.rig.note("source"), AllOf(HasSubstr("waiting"), HasSubstr("/s0")));
  write_pair(directory, "s0/train", "a", "b", 3);
  source.rig.run();
  EXPECT_THAT(source.rig.note("source"), AllOf(HasSubstr("waiting"), HasSubstr("dict.a.txt")));
  EXPECT_THAT(source.rig.log("waiting stage=source"), Not(IsEmpty()));
  write_dictionaries(directory, "s0", {"a", "b"});
  source.finish();
  EXPECT_THAT(source.all(), ElementsAre("main:a-b 0/1: s0/train.a-b.a|s0/train.a-b.b 3"));
}

TEST(BitextWaiting, AFiniteRunEndsWithoutThem) {
  Source source("directory: '/nowhere/at/all' lang_pairs: 'a-b'");
  EXPECT_THAT(source.finish().all(), IsEmpty());
  EXPECT_THAT(source.rig.log("no_data stage=source"), SizeIs(1));
}

}  // namespace
}  // namespace ringfeed
