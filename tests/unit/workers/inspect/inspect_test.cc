#include "workers/inspect/inspect.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libdeflate.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "ringfeed/shm/result.h"
#include "tests/support/makers/tar_maker.h"
#include "tests/support/makers/token_maker.h"
#include "tests/support/rig/lc0_sample.h"
#include "workers/lc0/chunk_index.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/records.h"
#include "workers/programs/all.h"

namespace ringfeed::inspect {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using testing::Bytes;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kSampleGames;
using ::testing::Not;
namespace fs = std::filesystem;

// As the program asks: all domains.
const Describers& all_describers() {
  static const Describers all = [] {
    Describers describers;
    register_all_describers(describers);
    return describers;
  }();
  return all;
}
ordered_json inspect_path(const Options& options) {
  return inspect::inspect_path(options, all_describers());
}
std::string as_text(const ordered_json& found) { return inspect::as_text(found, all_describers()); }

class Inspect : public ::testing::Test {
 protected:
  Inspect() {
    std::string name = (fs::temp_directory_path() / "ringfeed-inspect-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~Inspect() override { fs::remove_all(directory_); }

  std::string write(const std::string& name, std::span<const std::byte> bytes) {
    const fs::path path = directory_ / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path.string();
  }
  std::string write(const std::string& name, const std::string& text) {
    return write(name, std::as_bytes(std::span(text)));
  }

  fs::path directory_;
};

std::vector<std::string> problems(const ordered_json& found) {
  return found["problems"].get<std::vector<std::string>>();
}

std::string refusal(const Options& options) {
  try {
    static_cast<void>(inspect_path(options));
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

// ---- games ----

TEST_F(Inspect, AGameInAGzipFile) {
  const std::string path = write("training.1.gz", testing::sample_gzip(kSampleGames[1]));
  const ordered_json found = inspect_path({.path = path, .record = 40});
  EXPECT_EQ(found["kind"], "gzip_chunk");
  EXPECT_EQ(found["chunk"]["records"], 89);
  EXPECT_EQ(found["chunk"]["version"], 6);
  ASSERT_EQ(found["records"].size(), 1U);
  EXPECT_EQ(found["records"][0]["index"], 40);
  EXPECT_THAT(problems(found), IsEmpty());
  EXPECT_THAT(as_text(found), AllOf(HasSubstr("white to move"), HasSubstr("  fen: "),
                                    HasSubstr(" w "), HasSubstr("policy: "), HasSubstr(" 21\n")));
  EXPECT_EQ(inspect_path({.path = path, .all = true})["records"].size(), 89U);
  EXPECT_THAT(refusal({.path = path, .record = 89}), HasSubstr("there is no record 89"));
  EXPECT_THAT(refusal({.path = path, .chunk = "0"}), HasSubstr("--chunk is for tars"));
}

TEST_F(Inspect, RecordsAsTheyAreWhateverTheFileIsCalled) {
  const std::string path = write("x.gz", testing::sample_records(kSampleGames[0]));
  const ordered_json found = inspect_path({.path = path});
  EXPECT_EQ(found["kind"], "raw_chunk");
  EXPECT_EQ(found["chunk"]["records"], 26);
}

TEST_F(Inspect, DamagedGamesAreSaidAndShownAsFarAsTheyGo) {
  Bytes packed = testing::sample_gzip(kSampleGames[0]);
  const std::string cut = write("cut.gz", std::span(packed).first(packed.size() / 2));
  ordered_json found = inspect_path({.path = cut});
  EXPECT_THAT(problems(found), Contains(AllOf(HasSubstr(cut), HasSubstr("truncated"))));
  EXPECT_FALSE(found.contains("records"));

  packed[packed.size() - 6] ^= std::byte{1};
  found = inspect_path({.path = write("crc.gz", packed)});
  EXPECT_THAT(problems(found), Contains(HasSubstr("CRC")));

  const Bytes records = testing::sample_records(kSampleGames[0]);
  found = inspect_path({.path = write("raw", std::span(records).first(2 * 8356 + 100))});
  EXPECT_THAT(problems(found), Contains(HasSubstr("100 too many")));
  EXPECT_EQ(found["chunk"]["records"], 2);
  EXPECT_EQ(found["records"].size(), 1U);

  Bytes mixed = records;
  mixed[3 * 8356] = std::byte{7};
  found = inspect_path({.path = write("mixed", mixed), .all = true});
  EXPECT_THAT(problems(found), Contains(HasSubstr("at byte 25068")));
  EXPECT_EQ(found["records"].size(), 3U);
}

// ---- tars ----

TEST_F(Inspect, ATarListsItsGames) {
  const ordered_json found = inspect_path({.path = testing::sample_tar_path()});
  EXPECT_EQ(found["kind"], "tar");
  ASSERT_EQ(found["members"].size(), 4U);
  EXPECT_EQ(found["members"][1]["name"], kSampleGames[1].name);
  EXPECT_EQ(found["members"][1]["records_claimed"], 89);
  EXPECT_THAT(problems(found), IsEmpty());
  EXPECT_THAT(as_text(found), AllOf(HasSubstr("a tar with 4 games"), HasSubstr(" 89  lc0-data")));
}

TEST_F(Inspect, ATarOfPicturesIsNoTarOfGames) {
  testing::TarMaker tar;
  for (const char* name : {"n01440764/a.JPEG", "n01440764/b.JPEG", "n01440764/c.cls"}) {
    tar.add(name, "\xff\xd8\xff\xe0 a picture");
  }
  const ordered_json found = inspect_path({.path = write("images.tar", tar.end().bytes())});
  EXPECT_EQ(found["kind"], "samples");
  EXPECT_THAT(as_text(found),
              AllOf(HasSubstr("a tar of samples: 3 samples of 3 fields"),
                    HasSubstr("  jpeg     bytes, 2 of 3 samples have it\n"),
                    HasSubstr("  nothing would be left out\n"),
                    HasSubstr("    jpeg     bytes  ff d8 ff e0 20 61 20 70 69 63")));
}

TEST_F(Inspect, SamplesWithWhatWouldBeLeftOut) {
  const std::string lines =
      "{\"id\": 1, \"v\": [1, 2]}\n{\"id\": 2.5, \"v\": [3]}\n7\n\n{\"id\": \n";
  const std::string path = write("a.jsonl", lines);
  const ordered_json found = inspect_path({.path = path});
  EXPECT_EQ(found["kind"], "samples");
  EXPECT_EQ(found["data"]["samples"], 2);
  EXPECT_EQ(found["data"]["left_out"], 2);
  EXPECT_THAT(problems(found), IsEmpty());
  EXPECT_THAT(as_text(found),
              AllOf(HasSubstr("lines of JSON: 2 samples of 2 fields\n"),
                    HasSubstr("  id  int64 in 1, float64 in 1\n  v   int64[*]\n"),
                    HasSubstr("  1 left out: it is a number, not an object (first at byte 45)\n"),
                    HasSubstr("  1 left out: a value is none at byte 5 of it (first at byte 48)\n"),
                    HasSubstr("  sample 1, byte 23\n    id  float64   2.5\n")));
  const ordered_json second = inspect_path({.path = path, .record = 1});
  ASSERT_EQ(second["data"]["first"].size(), 1U);
  EXPECT_EQ(second["data"]["first"][0]["index"], 1);
  EXPECT_THAT(refusal({.path = path, .record = 2}), HasSubstr("there is no sample 2: 2 were read"));
}

TEST_F(Inspect, SamplesAreNoConfigurationWithAMistake) {
  const auto kind_of = [&](const char* name, const std::string& text) -> std::string {
    return inspect_path({.path = write(name, text)})["kind"];
  };
  EXPECT_EQ(kind_of("a.jsonl", "{\"text\": \"in two stages\"}\n"), "samples");
  EXPECT_EQ(kind_of("a.txt", "in two stages\n"), "samples");
  EXPECT_EQ(kind_of("a.json", "[{\"text\": \"in two stages\"}]"), "samples");
  EXPECT_EQ(kind_of("b.txt", "feed: 'x' stages { name: 'a' }"), "ringfeed_configuration");
  EXPECT_EQ(kind_of("b.textproto", "stages { nam: 'a' }"), "ringfeed_configuration");
}

TEST_F(Inspect, AGameOfATarByNameOrIndex) {
  const std::string tar = testing::sample_tar_path();
  for (const std::string chunk :
       {"3", "training.1387357298.gz", "lc0-data-sample/training.1387357298.gz"}) {
    const ordered_json found = inspect_path({.path = tar, .record = 132, .chunk = chunk});
    EXPECT_EQ(found["chunk"]["index"], 3) << chunk;
    EXPECT_EQ(found["chunk"]["records"], 133);
    EXPECT_EQ(found["records"][0]["index"], 132);
  }
  EXPECT_EQ(inspect_path({.path = tar, .record = 1})["chunk"]["index"], 0);
  EXPECT_THAT(refusal({.path = tar, .chunk = "4"}), HasSubstr("there is no game 4: it has 4"));
  EXPECT_THAT(refusal({.path = tar, .chunk = "x.gz"}), HasSubstr("there is no game 'x.gz'"));
}

TEST_F(Inspect, ATarThatIsCutShortKeepsItsWholeGames) {
  const Bytes tar = testing::read_file(testing::sample_tar_path());
  const ordered_json found = inspect_path({.path = write("a.tar", std::span(tar).first(40'000))});
  EXPECT_EQ(found["members"].size(), 2U);
  EXPECT_THAT(problems(found), Contains(AllOf(HasSubstr("byte "), HasSubstr("cut_short"))));
}

TEST_F(Inspect, AnIndexOfATar) {
  const std::string tar = testing::sample_tar_path();
  const int fd = ::open(tar.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  const auto built = formats::load_or_build_chunk_index(directory_.string(), fd, tar);
  ::close(fd);
  ASSERT_TRUE(built.ok());
  std::string path;
  for (const auto& entry : fs::directory_iterator(directory_)) path = entry.path().string();
  ordered_json found = inspect_path({.path = path});
  EXPECT_EQ(found["kind"], "chunk_index");
  EXPECT_EQ(found["tar"]["state"], "as it was");
  ASSERT_EQ(found["chunks"].size(), 4U);
  EXPECT_EQ(found["chunks"][3]["records_claimed"], 133);
  EXPECT_THAT(problems(found), IsEmpty());

  Bytes bytes = testing::read_file(path);
  bytes[70] ^= std::byte{1};
  found = inspect_path({.path = write("damaged.chunks", bytes)});
  EXPECT_EQ(found["kind"], "chunk_index");
  EXPECT_THAT(problems(found), Contains(HasSubstr("checksum")));
}

// ---- dead letters ----

constexpr const char* kConfig =
    "stages { name: 'unpacker' chunk_unpacker { input: 'pool' } } "
    "stages { name: 'tensors' tensor_generator { input: 'sampler' } } "
    "stages { name: 'loader' chunk_source_loader { input: 'provider' } }";

std::string letter_about(const std::string& stage, const std::string& record) {
  const ordered_json about = {{"feed", "lc0"},
                              {"stage", stage},
                              {"node", ""},
                              {"port", "input"},
                              {"bytes", record.size()},
                              {"xxh3",
                               [&] {
                                 char text[17];
                                 std::snprintf(text, sizeof text, "%016llx",
                                               static_cast<unsigned long long>(
                                                   ::XXH3_64bits(record.data(), record.size())));
                                 return std::string(text);
                               }()},
                              {"deaths", 3},
                              {"cause", "signal 11\nsaid: nothing"},
                              {"config", kConfig}};
  return about.dump();
}

// A chunk as it travels: its first two records.
std::string packed_chunk() {
  const Bytes records = testing::sample_records(kSampleGames[0]);
  const ChunkRecord head{
      .identity = 1, .frame_count = 26, .uses = 0, .flags = 0, .listed_count = 2, .reserved = 0};
  std::string chunk(chunk_head_bytes(head), '\0');
  std::memcpy(chunk.data(), &head, sizeof head);
  for (std::size_t i = 0; i < 2; ++i) {
    Bytes frame(formats::packed_bytes_max);
    frame.resize(formats::pack(records.data() + i * formats::kV6RecordBytes, 6, frame));
    chunk.append(reinterpret_cast<const char*>(frame.data()), frame.size());
  }
  return chunk;
}

TEST_F(Inspect, ADeadLetterWithTheRecordsInIt) {
  const std::string chunk = packed_chunk();
  const std::string record = write("unpacker-input-0.0-17.record", chunk);
  const std::string about = write("unpacker-input-0.0-17.json", letter_about("unpacker", chunk));
  for (const std::string& path : {record, about}) {
    const ordered_json found = inspect_path({.path = path, .all = true});
    EXPECT_EQ(found["kind"], "dead_letter");
    EXPECT_EQ(found["letter"]["stage_kind"], "chunk_unpacker");
    ASSERT_EQ(found["records"].size(), 2U);
    EXPECT_EQ(found["records"][0]["fen"],
              "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
    EXPECT_EQ(found["records"][1]["side_to_move"], "black");
    EXPECT_THAT(problems(found), IsEmpty());
  }
  write("unpacker-input-0.0-17.record", chunk.substr(0, chunk.size() - 16));
  const ordered_json found = inspect_path({.path = record, .all = true});
  EXPECT_EQ(found["records"].size(), 1U);
  EXPECT_THAT(problems(found), AllOf(Contains(HasSubstr("were set aside: damaged")),
                                     Contains(HasSubstr("fails its checksum")),
                                     Contains(HasSubstr("there is no valid frame"))));
}

TEST_F(Inspect, ADeadLetterThatHoldsAPath) {
  const std::string record = write("loader-input-0.0-3.record", std::string("/data/a.tar"));
  write("loader-input-0.0-3.json", letter_about("loader", "/data/a.tar"));
  const ordered_json found = inspect_path({.path = record});
  EXPECT_EQ(found["letter"]["holds"], "the path /data/a.tar");
  fs::remove(directory_ / "loader-input-0.0-3.json");
  EXPECT_THAT(problems(inspect_path({.path = record})),
              Contains(HasSubstr("is missing or damaged")));
}

// ---- snapshots, configurations, and what is none of these ----

TEST_F(Inspect, ASnapshot) {
  const std::string body =
      "format: 1\nfeed: \"lc0\"\nnewest_batch: 12\ntaken_at: \"2026-01-01T00:00:00Z\"\n"
      "groups { name: \"default\" next_batch: 13 }\n"
      "segments { name: \"arena\" bytes: 4096 file: \"000.segment\" }\n"
      "segments { name: \"rings\" bytes: 4096 file: \"001.segment\" }\n";
  char sum[17];
  std::snprintf(sum, sizeof sum, "%016llx",
                static_cast<unsigned long long>(::XXH3_64bits(body.data(), body.size())));
  const std::string head = "# ringfeed snapshot, checksum of what follows: ";
  write("manifest.textproto", head + sum + "\n" + body);
  write("000.segment", std::string(4096, 'x'));
  write("001.segment", std::string(8192, 'x'));
  ordered_json found = inspect_path({.path = directory_.string()});
  EXPECT_EQ(found["kind"], "snapshot");
  EXPECT_EQ(found["manifest"]["bytes"], 8192);
  EXPECT_EQ(found["manifest"]["groups"][0]["next_batch"], 13);
  EXPECT_THAT(problems(found),
              ::testing::ElementsAre(AllOf(HasSubstr("001.segment"), HasSubstr("at most 4096"))));
  write("manifest.textproto", head + sum + "\n" + body + "seed: 1\n");
  fs::remove(directory_ / "000.segment");
  found = inspect_path({.path = directory_.string()});
  EXPECT_THAT(problems(found), AllOf(Contains(HasSubstr("fails its checksum")),
                                     Contains(HasSubstr("000.segment: cannot be read"))));
  EXPECT_THAT(as_text(found), HasSubstr("group default: next batch 13"));
}

TEST_F(Inspect, Configurations) {
  ordered_json found =
      inspect_path({.path = RINGFEED_SOURCE_DIR "/workers/pipelines/lc0.textproto"});
  EXPECT_EQ(found["kind"], "ringfeed_configuration");
  EXPECT_EQ(found["stages"].size(), 5U);
  EXPECT_EQ(found["stages"][4]["kind"], "tensor_generator");
  EXPECT_EQ(found["stages"][4]["input"][0], "sampler");
  EXPECT_THAT(problems(found), IsEmpty());
  EXPECT_THAT(as_text(found), HasSubstr("tensors: tensor_generator <- sampler"));

  found = inspect_path({.path = write("a.textproto", std::string("stages {\n  nam: 'x' }"))});
  EXPECT_EQ(found["kind"], "ringfeed_configuration");
  EXPECT_THAT(problems(found), Contains(HasSubstr("a.textproto:2:")));

  found = inspect_path({.path = write("a.json", std::string(R"({"stages": [{"name": "x"}]})"))});
  EXPECT_EQ(found["kind"], "ringfeed_configuration");

  found = inspect_path({.path = write("b.textproto", std::string("data_loader { stage {} }"))});
  EXPECT_EQ(found["kind"], "lczero_configuration");
  EXPECT_THAT(found["text"].get<std::string>(), HasSubstr("ringfeed import-lc0"));
}

TEST_F(Inspect, WhatIsNoneOfTheseIsSaid) {
  for (const std::string& text : {std::string(), std::string("   \n"), std::string("hello\n"),
                                  std::string("\0\1\2\3\4", 5), std::string(5000, '\xff')}) {
    const ordered_json found = inspect_path({.path = write("thing", text)});
    EXPECT_EQ(found["kind"], "unknown") << text;
    EXPECT_THAT(problems(found), Contains(HasSubstr("not gzip (1f 8b), not a tar")));
  }
  EXPECT_THAT(problems(inspect_path({.path = directory_.string()})),
              Contains(HasSubstr("looked for manifest.textproto")));
  EXPECT_THAT(refusal({.path = (directory_ / "nothing").string()}),
              HasSubstr("there is no such file"));
  EXPECT_THAT(refusal({.path = "/dev/null"}), HasSubstr("neither a file nor a directory"));
}

// What no domain was asked about, inspect still knows what ringfeed itself leaves behind.
TEST_F(Inspect, ABuildWithoutDomainsKnowsNoneOfTheirFiles) {
  const auto look = [](const std::string& path) {
    return inspect::inspect_path({.path = path}, Describers{});
  };
  const ordered_json game = look(write("training.1.gz", testing::sample_gzip(kSampleGames[1])));
  EXPECT_EQ(game["kind"], "unknown");
  EXPECT_THAT(problems(game), ElementsAre(HasSubstr("it begins with 1f 8b")));
  EXPECT_THAT(problems(game), ElementsAre(::testing::EndsWith(": not a configuration")));
  const ordered_json config = look(RINGFEED_SOURCE_DIR "/workers/pipelines/lc0.textproto");
  EXPECT_EQ(config["kind"], "ringfeed_configuration");
  EXPECT_THAT(inspect::as_text(config, Describers{}), HasSubstr("tensors: tensor_generator"));
  const std::string chunk = packed_chunk();
  write("unpacker-input-0.0-17.json", letter_about("unpacker", chunk));
  const ordered_json letter = look(write("unpacker-input-0.0-17.record", chunk));
  EXPECT_EQ(letter["letter"]["stage_kind"], "chunk_unpacker");
  EXPECT_FALSE(letter.contains("records"));
  EXPECT_THAT(problems(letter), IsEmpty());
}

// Any damage is survived: a file with every byte of its head changed, one after the other.
TEST_F(Inspect, AnyByteMayBeWrong) {
  const Bytes game = testing::sample_records(kSampleGames[0]);
  const Bytes whole(game.begin(), game.begin() + 2 * 8356);
  for (std::size_t at = 0; at < whole.size(); at += 97) {
    Bytes damaged = whole;
    damaged[at] = ~damaged[at];
    const ordered_json found = inspect_path({.path = write("raw", damaged), .all = true});
    EXPECT_FALSE(as_text(found).empty()) << at;
    EXPECT_FALSE(found.dump(-1, ' ', false, ordered_json::error_handler_t::replace).empty());
  }
}

// ---- token files

using formats::TokenCode;
using testing::MadeTokens;
using testing::put_number;
using testing::TokenDir;
using TokenKind = formats::TokenFile::Kind;

const testing::Sentences kSentences = {{4, 5, 2}, {2}, {5, 5, 5, 4, 2}, {4, 2}, {4, 4, 2}, {5, 2}};

TEST(InspectTokens, EveryNameOfAPairIsTheSame) {
  const TokenDir directory;
  const std::string prefix = directory.write("train.a-b.a", MadeTokens{kSentences});
  directory.write("dict.a.txt", "hello 1\nyou 1\n");
  for (const char* suffix : {"", ".idx", ".bin"}) {
    const ordered_json found = inspect_path({.path = prefix + suffix});
    EXPECT_THAT(problems(found), IsEmpty());
    EXPECT_EQ(found["kind"], "token_file");
    EXPECT_EQ(found["text"], "a token file of 6 sentences, 16 tokens");
    const ordered_json& tokens = found["tokens"];
    EXPECT_EQ(tokens["format"], "mapped");
    EXPECT_EQ(tokens["code"], 8);
    EXPECT_EQ(tokens["type"], "uint16");
    EXPECT_EQ(tokens["sentences"], 6);
    EXPECT_EQ(tokens["tokens"], 16);
    EXPECT_EQ(tokens["bytes"], 32);
    EXPECT_EQ(tokens["out_of_bounds"], 0);
    EXPECT_EQ(tokens["length_min"], 1);
    EXPECT_EQ(tokens["length_max"], 5);
    EXPECT_EQ(tokens["lengths"], ordered_json::parse(R"([
      {"from": 1, "to": 1, "sentences": 1}, {"from": 2, "to": 3, "sentences": 4},
      {"from": 4, "to": 7, "sentences": 1}])"));
    EXPECT_EQ(tokens["dictionary"]["path"], directory.path("dict.a.txt"));
    EXPECT_EQ(tokens["dictionary"]["symbols"], 6);
    EXPECT_EQ(tokens["first"].size(), 5U);
    EXPECT_EQ(tokens["first"][2]["ids"], ordered_json(kSentences[2]));
    EXPECT_EQ(tokens["first"][2]["text"], "you you you hello </s>");
    EXPECT_THAT(as_text(found),
                AllOf(HasSubstr("sentence 0: hello you </s>\n"), HasSubstr("mean 2.7"),
                      HasSubstr("2-3          4  #########"), HasSubstr("out of bounds: 0")));
  }
}

TEST(InspectTokens, ShowsWhatWasAskedFor) {
  const TokenDir directory;
  const std::string prefix =
      directory.write("data", MadeTokens{kSentences, TokenCode::kInt32, TokenKind::kLegacy});
  const ordered_json plain = inspect_path({.path = prefix});
  EXPECT_EQ(plain["tokens"]["format"], "legacy");
  EXPECT_TRUE(plain["tokens"]["dictionary"].is_null());
  EXPECT_THAT(as_text(plain), AllOf(HasSubstr("sentence 0: 4 5 2\n"), HasSubstr("--dictionary")));
  const ordered_json one = inspect_path({.path = prefix, .record = 5});
  EXPECT_EQ(one["tokens"]["first"],
            ordered_json::parse(R"([{"index": 5, "ids": [5, 2], "text": null}])"));
  EXPECT_EQ(inspect_path({.path = prefix, .all = true})["tokens"]["first"].size(), 6U);
  const std::string dictionary = directory.write("words", "a b 1\nc 1\n");
  EXPECT_EQ(
      inspect_path(
          {.path = prefix, .record = 0, .dictionary = dictionary})["tokens"]["first"][0]["text"],
      "a b c </s>");
  EXPECT_THROW(static_cast<void>(inspect_path({.path = prefix, .record = 6})), Error);
  EXPECT_THROW(static_cast<void>(inspect_path({.path = prefix, .chunk = "1"})), Error);
  EXPECT_THROW(static_cast<void>(inspect_path({.path = prefix, .dictionary = "/nowhere"})), Error);
  EXPECT_THROW(static_cast<void>(inspect_path({.path = prefix + "x"})), Error);
  EXPECT_THROW(static_cast<void>(inspect_path({.path = dictionary, .dictionary = dictionary})),
               Error);
}

TEST(InspectTokens, WhatIsNotThereIsSaidWithWhatWasSought) {
  const TokenDir directory;
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      static_cast<void>(inspect_path({.path = path}));
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const std::string prefix = directory.path("train.a-b.a");
  EXPECT_THAT(refusal(prefix), AllOf(HasSubstr(prefix + ": there is no such file"),
                                     HasSubstr(prefix + ".idx and " + prefix + ".bin")));
  EXPECT_THAT(refusal(prefix + ".bin"), HasSubstr("nor its index " + prefix + ".idx"));
  directory.write("train.a-b.a.bin", "data");
  EXPECT_THAT(refusal(prefix), AllOf(HasSubstr("there is " + prefix + ".bin"),
                                     HasSubstr("not its index " + prefix + ".idx")));
}

TEST(InspectTokens, OfMegatronHaveDocuments) {
  const TokenDir directory;
  const ordered_json found =
      inspect_path({.path = directory.write(
                        "data", MadeTokens{kSentences, TokenCode::kUint16, TokenKind::kMegatron})});
  EXPECT_EQ(found["tokens"]["format"], "megatron");
  EXPECT_EQ(found["tokens"]["documents"], 7);
  const ordered_json empty = inspect_path({.path = directory.write("none", MadeTokens{})});
  EXPECT_THAT(problems(empty), IsEmpty());
  EXPECT_THAT(as_text(empty), HasSubstr("a token file of 0 sentences, 0 tokens"));
}

TEST(InspectTokens, CountWhatLiesOutside) {
  const TokenDir directory;
  const MadeTokens made{kSentences};
  const std::string prefix = directory.write("a", made);
  directory.write("a.bin", made.data().substr(0, 22));
  const ordered_json found = inspect_path({.path = prefix, .all = true});
  EXPECT_EQ(found["tokens"]["out_of_bounds"], 2);
  EXPECT_THAT(problems(found),
              ElementsAre(AllOf(HasSubstr("2 of 6 sentences are not within the 22 bytes"),
                                HasSubstr("the first is sentence 4"))));
  EXPECT_EQ(found["tokens"]["first"][5]["text"], "outside of the file");
  EXPECT_THAT(as_text(found), HasSubstr("sentence 5: outside of the file"));
}

TEST(InspectTokens, NameTheDamage) {
  const TokenDir directory;
  const MadeTokens made{kSentences};
  const std::string prefix = directory.write("a.x", made);
  directory.write("dict.x.txt", "one 1\n");
  const ordered_json other = inspect_path({.path = prefix});
  EXPECT_THAT(problems(other), ElementsAre(HasSubstr("beyond the 5 symbols")));
  EXPECT_EQ(other["tokens"]["first"][0]["text"], "one #5 </s>");
  directory.write("dict.x.txt", "one\n");
  EXPECT_THAT(problems(inspect_path({.path = prefix})),
              ElementsAre(HasSubstr("dict.x.txt: line 1")));
  directory.write("a.x.idx", made.index().substr(0, 40));
  const ordered_json cut = inspect_path({.path = prefix});
  EXPECT_EQ(cut["kind"], "token_file");
  EXPECT_THAT(problems(cut), ElementsAre(HasSubstr("a.x.idx: offset 18")));
  EXPECT_FALSE(cut.contains("tokens"));
  EXPECT_THAT(as_text(cut), HasSubstr("cannot be read"));
  // An index by another name.
  const std::string moved = directory.write("moved", made.index());
  EXPECT_THROW(static_cast<void>(inspect_path({.path = moved})), Error);
}

}  // namespace
}  // namespace ringfeed::inspect
