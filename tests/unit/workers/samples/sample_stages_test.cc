// sample_source, sample_shuffler and sample_batcher, one behind the other and alone.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "tests/support/makers/packed_text.h"
#include "tests/support/makers/tar_maker.h"
#include "tests/support/makers/zip_maker.h"
#include "tests/support/rig/lane_rig.h"
#include "tests/support/rig/stage_data.h"
#include "workers/files/file_records.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A sample as tests look at it: "name=value" for each field.
std::string shown(const RigRecord& record) {
  // Records of the rig are not aligned.
  std::vector<std::uint64_t> room((record.bytes.size() + 15) / 16 * 2);
  std::memcpy(room.data(), record.bytes.data(), record.bytes.size());
  const auto sample = SampleView::open(std::as_bytes(std::span(room)).first(record.bytes.size()));
  if (!sample) return "no sample";
  std::string text;
  for (std::size_t i = 0; i < sample->size(); ++i) {
    const SampleField field = (*sample)[i];
    std::string value(reinterpret_cast<const char*>(field.data.data()), field.data.size());
    if (field.dtype == SampleDtype::kInt64 && field.shape.empty()) {
      std::int64_t number = 0;
      std::memcpy(&number, field.data.data(), sizeof number);
      value = std::to_string(number);
    }
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", field.name, value);
  }
  return text;
}

// While it lives this process gets so many new descriptors, at most.
class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    RF_CHECK(next >= 0, errno);
    ::close(next);
    const rlimit few{static_cast<rlim_t>(next + count), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

struct Source {
  explicit Source(const std::string& settings = "", const std::string& feed = "epochs: 1")
      : rig(feed) {
    rig.add_source("files");
    rig.add_stage("name: 'lines' sample_source { input: 'files' " + settings + " }");
    rig.add_sink("out", "lines");
    rig.build();
  }
  void add(const std::string& name, const std::string& content) {
    rig.feed("files", {.bytes = directory.write(name, content), .user = kFileRecord});
  }
  void scanned() { rig.feed("files", {.user = kScanCompleteRecord}); }
  std::vector<std::string> samples() {
    std::vector<std::string> all;
    for (const RigRecord& record : rig.got("out")) all.push_back(shown(record));
    return all;
  }
  std::vector<std::string> run() {
    scanned();
    rig.finish("files");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    return samples();
  }
  [[nodiscard]] std::uint64_t counter(std::string_view name) const {
    return rig.counter("lines.read", name);
  }
  TempDir directory;
  LaneRig rig;
};

TEST(SampleSource, ReadsLinesOfEachKindOfFile) {
  Source source;
  source.add("a.jsonl", "{\"x\": 1}\n\n{\"x\": 2, \"t\": \"u\"}");
  source.add("b.txt", "first\nsecond\r\n");
  source.add("c.ndjson.gz", gzip_text("{\"x\": 3}\n"));
  source.add("d.json.zst", zstd_text("{\"x\": 4}\n{\"x\": 5}\n"));
  EXPECT_THAT(source.run(),
              ElementsAre("x=1", "x=2 t=u", "text=first", "text=second", "x=3", "x=4", "x=5"));
  EXPECT_EQ(source.counter("samples"), 7U);
  EXPECT_EQ(source.rig.counter("lines", "files"), 4U);
  EXPECT_EQ(source.rig.got("out")[1].tag[1], 10U) << "the offset of the line";
}

TEST(SampleSource, WhatTheConfigurationSaysComesBeforeTheName) {
  Source source("format: TEXT");
  source.add("a.jsonl", "{\"x\": 1}\n");
  EXPECT_THAT(source.run(), ElementsAre("text={\"x\": 1}"));
}

TEST(SampleSource, SkipsAndCountsByReason) {
  Source source(
      "fields { name: 'x' dtype: 'int8' } fields { name: 't' as: 'u' } line_bytes_max: 2000");
  source.add("a.jsonl", R"({"x": 1, "t": "a"}
no json
[1]
{"x": 1}
{"x": 1000, "t": "b"}
)" + std::string(3000, 'y') +
                            "\n{\"x\": 2, \"t\": \"" + std::string(1500, 'z') +
                            "\"}\n{\"x\": 3, \"t\": \"c\"}\n");
  const std::string vanished = source.directory.write("b.jsonl", "{}");
  source.rig.feed("files", {.bytes = vanished, .user = kFileRecord});
  std::filesystem::remove(vanished);
  std::filesystem::create_directory(source.directory.path("c.jsonl"));
  source.rig.feed("files", {.bytes = source.directory.path("c.jsonl"), .user = kFileRecord});
  std::string packed = gzip_text("{\"x\": 4, \"t\": \"d\"}\n{\"x\": 5, \"t\": \"e\"}\n");
  source.add("d.jsonl.gz", packed.substr(0, packed.size() - 9));
  EXPECT_THAT(source.run(), SizeIs(::testing::Ge(3U)));
  EXPECT_EQ(source.samples()[0], std::string("x=\x01 u=a"));
  EXPECT_EQ(source.counter("skipped_no_json"), 2U);
  EXPECT_EQ(source.counter("skipped_missing_field"), 1U);
  EXPECT_EQ(source.counter("skipped_wrong_type"), 1U);
  EXPECT_EQ(source.counter("skipped_too_large"), 1U);
  EXPECT_EQ(source.counter("skipped_vanished"), 1U);
  EXPECT_EQ(source.counter("skipped_unreadable"), 1U);
  EXPECT_EQ(source.counter("skipped_damaged"), 1U);
  EXPECT_THAT(source.rig.log("skipped_wrong_type"), Contains(HasSubstr("offset=40")));
}

TEST(SampleSource, NeedsOneDescriptorForAFile) {
  Source source;
  source.add("a.json", "[{\"x\": 1},\n{\"x\": 2}]");
  source.add("b.json.gz", gzip_text("[{\"x\": 3},\n{\"x\": 4}]"));
  source.add("c.jsonl", "{\"x\": 5}\n");
  const FewDescriptors one(1);
  EXPECT_THAT(source.run(), ElementsAre("x=1", "x=2", "x=3", "x=4", "x=5"));
  EXPECT_EQ(source.counter("skipped_no_json"), 0U);
}

TEST(SampleSource, WaitsForADescriptorAndLosesNothing) {
  for (const int there : {0, 1}) {
    Source source("verify: BEFORE");
    source.add("a.jsonl.gz", gzip_text("{\"x\": 1}\n{\"x\": 2}\n"));
    source.scanned();
    source.rig.finish("files");
    {
      const FewDescriptors few(there);
      source.rig.run();
      EXPECT_FALSE(source.rig.all_finished()) << "to check it takes a second one";
    }
    EXPECT_THAT(source.samples(), IsEmpty());
    EXPECT_THAT(source.rig.log("no_descriptor"), Contains(HasSubstr("a.jsonl.gz")));
    ASSERT_TRUE(source.rig.run_until([&] { return source.rig.all_finished(); }));
    EXPECT_THAT(source.samples(), ElementsAre("x=1", "x=2"));
    EXPECT_EQ(source.counter("skipped_unreadable"), 0U);
  }
}

TEST(SampleSource, RefusesLinesOfUtf16) {
  Source source;
  source.add("a.txt", std::string("\xff\xfeh\0i\0\n\0l\0o\0\n\0", 14));
  source.add("b.jsonl.gz", gzip_text(std::string("\xfe\xff\0{\0}\0\n", 8)));
  source.add("c.txt", "hello\n");
  EXPECT_THAT(source.run(), ElementsAre("text=hello"));
  EXPECT_EQ(source.counter("skipped_wrong_type"), 2U);
  EXPECT_THAT(source.rig.log("skipped_wrong_type"), Contains(HasSubstr("write it as UTF-8")));
}

TEST(SampleSource, PassesOverItsFilesAsOftenAsThereAreEpochs) {
  Source source("shuffle_files: true", "epochs: 4 seed: 3");
  for (int i = 0; i < 9; ++i) source.add(fmt::format("{}.txt", i), fmt::format("{}\n", i));
  const std::vector<std::string> all = source.run();
  ASSERT_THAT(all, SizeIs(36U));
  std::vector<std::vector<std::string>> epochs;
  for (std::size_t e = 0; e < 4; ++e) {
    epochs.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(9 * e),
                        all.begin() + static_cast<std::ptrdiff_t>(9 * (e + 1)));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<std::string>& epoch : epochs) {
    std::ranges::sort(epoch);
    EXPECT_EQ(epoch, epochs[0]);
  }
  EXPECT_EQ(source.rig.counter("lines", "epochs"), 4U);
}

TEST(SampleSource, AnEndlessRunTakesInWhatHasCome) {
  Source source("queue_capacity: 2", "epochs: 0");
  source.add("a.txt", "a\n");
  source.scanned();
  source.rig.allow("out", 3);
  source.rig.run();
  source.add("b.txt", "b\n");
  // What was handed out before is read before it.
  source.rig.allow("out", 60);
  source.rig.run();
  const std::vector<std::string> all = source.samples();
  ASSERT_THAT(all, Contains("text=b"));
  const auto first = std::ranges::find(all, "text=b");
  EXPECT_EQ(std::vector<std::string>(first, first + 4),
            (std::vector<std::string>{"text=b", "text=a", "text=b", "text=a"}));
}

std::string lines_of(std::mt19937_64& random, int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    text += fmt::format("{{\"n\": {}, \"t\": \"{}\"}}\n", i, std::string(random() % 3000, 't'));
  }
  return text;
}

// One order, whatever the lanes and the deaths, over parts of files and packed ones.
TEST(SampleSource, GivesTheSameWhateverHappens) {
  const auto run = [](int lanes, std::uint64_t seed, double restarts) {
    Source source(fmt::format("threads: {} block_bytes: 65536", lanes), "epochs: 2");
    std::mt19937_64 content(1);
    source.add("a.jsonl", lines_of(content, 0, 150));
    source.add("b.jsonl.gz", gzip_text(lines_of(content, 150, 60)));
    source.add("c.jsonl.zst", zstd_text(lines_of(content, 210, 60)));
    source.add("d.jsonl", lines_of(content, 270, 100));
    source.scanned();
    source.rig.finish("files");
    std::mt19937_64 random(seed);
    if (restarts == 0) {
      source.rig.run();
    } else {
      source.rig.run_with_restarts(random, restarts);
    }
    EXPECT_TRUE(source.rig.all_finished());
    return source.samples();
  };
  const std::vector<std::string> undisturbed = run(1, 0, 0);
  ASSERT_THAT(undisturbed, SizeIs(2 * 370));
  EXPECT_EQ(run(3, 0, 0), undisturbed);
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    ASSERT_EQ(run(1 + static_cast<int>(seed % 4), seed, 0.2), undisturbed) << seed;
  }
}

// ---- files of a cache, which come and go

// Files as copies in a cache; the test plays those who fetch and those who make room.
struct Cache {
  explicit Cache(Source& of) : root(of.directory.path("cache")), source(of) {
    for (const char* name : {"objects", "wanted", "failed"}) {
      std::filesystem::create_directories(root + "/" + name);
    }
    source.directory.write("cache/ringfeed-cache", "ringfeed cache 1\n");
  }
  void add(const std::string& name, const std::string& content) {
    contents[name] = content;
    source.add("cache/objects/" + name, content);
    set_version(name, 1);
  }
  void evict(const std::string& name) const { std::filesystem::remove(path(name)); }
  void evict_all() const {
    for (const auto& [name, content] : contents) evict(name);
  }
  [[nodiscard]] std::vector<std::string> wishes(char urgency) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root + "/wanted")) {
      if (entry.path().filename().string()[0] != urgency) continue;
      names.push_back(std::filesystem::read_symlink(entry.path()).string());
    }
    std::ranges::sort(names);
    return names;
  }
  void fetch(const std::string& name) {
    if (!std::filesystem::exists(path(name))) {
      source.directory.write("cache/objects/" + name, contents.at(name));
      set_version(name, 1);
    }
  }
  // Fetchers give every version a time of its own, and the same one each time.
  void set_version(const std::string& name, int version) const {
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                               {.tv_sec = 1'000'000'000, .tv_nsec = version}};
    RF_CHECK(::utimensat(AT_FDCWD, path(name).c_str(), times, 0) == 0, errno);
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return root + "/objects/" + name;
  }
  std::string root;
  Source& source;
  std::map<std::string, std::string> contents;
};

TEST(SampleSourceOfACache, WishesForWhatIsNotThereAndWaits) {
  Source source;
  Cache cache(source);
  for (const char* name : {"a.txt", "b.txt"}) cache.add(name, std::string(1, name[0]) + "\n");
  cache.evict_all();
  source.scanned();
  source.rig.finish("files");
  source.rig.run();
  EXPECT_FALSE(source.rig.all_finished());
  EXPECT_THAT(source.samples(), IsEmpty());
  EXPECT_THAT(cache.wishes('0'), ElementsAre("a.txt"));
  EXPECT_THAT(cache.wishes('1'), ElementsAre("a.txt", "b.txt")) << "what comes next is asked for";
  cache.fetch("a.txt");
  cache.fetch("b.txt");
  ASSERT_TRUE(source.rig.run_until([&] { return source.rig.all_finished(); }));
  EXPECT_THAT(source.samples(), ElementsAre("text=a", "text=b"));
  EXPECT_THAT(cache.wishes('0'), IsEmpty());
  EXPECT_THAT(cache.wishes('1'), IsEmpty());
  EXPECT_EQ(source.rig.counter("lines", "files_waited_for"), 1U);
  EXPECT_EQ(source.counter("skipped_vanished"), 0U);
}

TEST(SampleSourceOfACache, SkipsWhatCannotBeHadAndSaysWhy) {
  Source source;
  Cache cache(source);
  cache.add("a.txt", "a\n");
  cache.add("b.txt", "b\n");
  cache.evict("a.txt");
  source.scanned();
  source.rig.finish("files");
  source.rig.run();
  ASSERT_THAT(cache.wishes('0'), ElementsAre("a.txt"));
  // FNV-1a of "a.txt", in both lanes' turns.
  ASSERT_TRUE(source.rig.run_until([&] {
    for (const auto& entry : std::filesystem::directory_iterator(cache.root + "/wanted")) {
      const std::string name = std::filesystem::read_symlink(entry.path()).string();
      if (name != "a.txt") continue;
      source.directory.write("cache/failed/" + entry.path().filename().string().substr(2),
                             "a.txt\ns3://b/a.txt: the store answers 404\n");
      std::filesystem::remove(entry.path());
    }
    return source.rig.all_finished();
  }));
  EXPECT_THAT(source.samples(), ElementsAre("text=b"));
  EXPECT_EQ(source.counter("skipped_vanished"), 1U);
  EXPECT_THAT(source.rig.log("skipped_vanished"), Contains(HasSubstr("answers 404")));
}

// An object that changes while the epoch is in the middle of it: nothing of the new version is read
// as if it were of the old one, and later epochs read it from its beginning.
TEST(SampleSourceOfACache, ReadsNoFileOfTwoVersions) {
  Source source("block_bytes: 65536 queue_capacity: 256", "epochs: 6");
  Cache cache(source);
  std::mt19937_64 content(1);
  cache.add("a.jsonl", lines_of(content, 0, 200));
  cache.add("b.jsonl", lines_of(content, 1000, 1));
  source.rig.allow("out", 1);
  source.scanned();
  source.rig.finish("files");
  source.rig.run();
  cache.evict("a.jsonl");
  cache.contents["a.jsonl"] = lines_of(content, 5000, 250);
  source.rig.allow("out", ~std::uint64_t{0} >> 1);
  source.rig.restart_all();
  ASSERT_TRUE(source.rig.run_until([&] {
    for (const std::string& name : cache.wishes('0')) {
      if (std::filesystem::exists(cache.path(name))) continue;
      cache.fetch(name);
      cache.set_version(name, 2);
    }
    return source.rig.all_finished();
  }));
  const std::vector<std::string> all = source.samples();
  const auto begins = [&](std::string_view text) {
    return std::ranges::count_if(all,
                                 [&](const std::string& one) { return one.starts_with(text); });
  };
  EXPECT_EQ(begins("n=1000 "), 6);
  // Its lines are 5000 to 5249; the first epochs have been handed out before it came.
  EXPECT_GT(begins("n=5000 "), 0);
  EXPECT_LT(begins("n=5000 "), 6);
  for (int i = 5001; i < 5250; ++i) {
    ASSERT_EQ(begins(fmt::format("n={} ", i)), begins("n=5000 ")) << i;
  }
  EXPECT_GT(source.counter("skipped_changed"), 0U);
}

// Copies go at any time, open or not, come back in any order, lanes die: the same samples.
TEST(SampleSourceOfACache, GivesTheSameWhateverComesAndGoes) {
  const auto run = [](int lanes, std::uint64_t seed) {
    Source source(fmt::format("threads: {} block_bytes: 65536 shuffle_files: true", lanes),
                  "epochs: 3 seed: 5");
    Cache cache(source);
    std::mt19937_64 content(1);
    cache.add("a.jsonl", lines_of(content, 0, 120));
    cache.add("b.jsonl.gz", gzip_text(lines_of(content, 120, 60)));
    cache.add("c.jsonl", lines_of(content, 180, 50));
    cache.add("d.jsonl.zst", zstd_text(lines_of(content, 230, 60)));
    source.scanned();
    source.rig.finish("files");
    std::mt19937_64 random(seed);
    const bool disturbed = seed != 0;
    EXPECT_TRUE(source.rig.run_until([&] {
      if (!disturbed) return source.rig.all_finished();
      const auto any = [&] {
        auto at = cache.contents.begin();
        std::advance(at, random() % cache.contents.size());
        return at->first;
      };
      if (random() % 4 == 0) cache.evict(any());
      if (random() % 3 == 0) {
        for (const char urgency : {'0', '1'}) {
          for (const std::string& name : cache.wishes(urgency)) {
            if (random() % 2 == 0) cache.fetch(name);
          }
        }
      }
      if (random() % 8 == 0) source.rig.restart(random() % source.rig.lane_count());
      return source.rig.all_finished();
    }));
    EXPECT_EQ(source.counter("skipped_vanished"), 0U);
    return source.samples();
  };
  const std::vector<std::string> undisturbed = run(1, 0);
  ASSERT_THAT(undisturbed, SizeIs(3 * 290));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_EQ(run(1 + static_cast<int>(seed % 4), seed), undisturbed) << seed;
  }
}

// ---- tars and arrays

void add_members(TarMaker& tar, const std::vector<std::pair<std::string, std::string>>& members) {
  for (const auto& [name, data] : members) tar.add(name, data);
}

TEST(SampleSource, GroupsTheMembersOfATar) {
  TarMaker tar;
  add_members(tar, {{"shard/0001.JPG", "picture one"},
                    {"shard/0001.cls", "3\n"},
                    {"shard/0001.seg.png", "mask"},
                    {"shard/README", "of no sample"},
                    {"shard/._0002.cls", "nor is this"},
                    {"shard/0002.jpg", "picture two"},
                    {"shard/0002.cls", "nine"},
                    {"shard/0003.jpg", "picture three"}});
  const std::string text = tar.end().text();
  Source all;
  all.add("a.tar", text);
  EXPECT_THAT(all.run(), ElementsAre("__key__=shard/0001 jpg=picture one cls=3\n seg.png=mask",
                                     "__key__=shard/0002 jpg=picture two cls=nine",
                                     "__key__=shard/0003 jpg=picture three"));

  Source some("fields { name: 'cls' as: 'label' dtype: 'int64' } fields { name: 'jpg' }");
  some.add("a.tar", text);
  EXPECT_THAT(some.run(), ElementsAre("__key__=shard/0001 label=3 jpg=picture one"));
  EXPECT_EQ(some.counter("skipped_wrong_type"), 1U);
  EXPECT_EQ(some.counter("skipped_missing_field"), 1U);
}

TEST(SampleSource, KeepsTheWholeSamplesOfADamagedTar) {
  TarMaker tar;
  add_members(tar, {{"1.txt", "one"}, {"2.txt", std::string(2000, 'x')}});
  Source source;
  source.add("cut.tar", tar.text().substr(0, 2048));
  EXPECT_THAT(source.run(), ElementsAre("__key__=1 txt=one"));
  EXPECT_EQ(source.counter("skipped_damaged"), 1U);
  TarMaker same;
  add_members(same, {{"1.txt", "one"}, {"1.TXT", "again"}});
  Source twice;
  twice.add("same.tar", same.end().text());
  EXPECT_THAT(twice.run(), IsEmpty());
  EXPECT_EQ(twice.counter("skipped_damaged"), 1U);
}

std::string npy_head(std::string_view descr, std::string_view shape) {
  const std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  std::string bytes = "\x93NUMPY";
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(text.size());
  bytes += '\0';
  return bytes + text;
}

// A .npy file of so many rows of two int32.
std::string npy_rows(std::int32_t first, std::int32_t count) {
  std::string bytes = npy_head("<i4", fmt::format("{}, 2", count));
  for (std::int32_t row = first; row < first + count; ++row) {
    const std::int32_t values[2] = {row, -row};
    bytes.append(reinterpret_cast<const char*>(values), sizeof values);
  }
  return bytes;
}

// The first number of each row, for arrays as above.
std::vector<std::uint64_t> rows_of(const LaneRig& rig) {
  std::vector<std::uint64_t> rows;
  for (const RigRecord& record : rig.got("out")) {
    const std::string text = shown(record);
    EXPECT_THAT(text, HasSubstr("data="));
    std::int32_t values[2];
    std::memcpy(values, text.data() + 5, sizeof values);
    EXPECT_EQ(values[1], -values[0]);
    rows.push_back(static_cast<std::uint64_t>(values[0]));
  }
  return rows;
}

TEST(SampleSource, GivesTheRowsOfArraysWhateverHappens) {
  const auto run = [](int lanes, std::uint64_t seed, double restarts) {
    Source source(fmt::format("threads: {} block_bytes: 65536", lanes), "epochs: 1");
    source.add("a.npy", npy_rows(0, 20000));
    source.add("b.npy", npy_rows(20000, 1));
    source.scanned();
    source.rig.finish("files");
    std::mt19937_64 random(seed);
    source.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(source.rig.all_finished());
    return rows_of(source.rig);
  };
  EXPECT_EQ(run(1, 0, 0), numbers(0, 20001));
  EXPECT_EQ(run(3, 0, 0), numbers(0, 20001));
  for (std::uint64_t seed = 1; seed <= 4; ++seed) ASSERT_EQ(run(2, seed, 0.1), numbers(0, 20001));
}

// What somebody is still writing when the epoch comes to it has grown when its turn comes.
TEST(SampleSource, GivesOfAFileThatHasGrownAllOrCountsWhatItDoesNot) {
  const std::string array = npy_rows(0, 200);
  for (const bool is_array : {false, true}) {
    Source source(is_array ? "format: NPY queue_capacity: 1"
                           : "format: WHOLE_FILE queue_capacity: 1");
    const std::string ending = is_array ? ".npy" : ".jpg";
    source.rig.allow("out", 0);
    for (int i = 0; i < 4; ++i) {
      source.add(fmt::format("{}{}", i, ending), is_array ? npy_rows(0, 1) : "whole");
    }
    const std::string path = source.directory.write("z" + ending, array.substr(0, 500));
    source.rig.feed("files", {.bytes = path, .user = kFileRecord});
    source.scanned();
    source.rig.finish("files");
    source.rig.run();
    source.directory.write("z" + ending, array);
    source.rig.allow("out", ~std::uint64_t{0} >> 1);
    source.rig.run();
    ASSERT_TRUE(source.rig.all_finished());
    if (is_array) {
      const std::uint64_t came = rows_of(source.rig).size() - 4;
      EXPECT_LT(came, 200U);
      EXPECT_EQ(came + source.counter("skipped_damaged"), 200U);
    } else {
      EXPECT_THAT(source.samples().back(), HasSubstr("data=" + array));
    }
  }
}

TEST(SampleSource, SaysWhereAnArrayIsCutShort) {
  for (const std::size_t lacks : {1U, 8U, 800U}) {
    Source source;
    const std::string whole = npy_rows(0, 200);
    source.add("a.npy", whole.substr(0, whole.size() - lacks));
    source.scanned();
    source.rig.finish("files");
    source.rig.run();
    const std::uint64_t there = 200 - (lacks + 7) / 8;
    EXPECT_EQ(rows_of(source.rig), numbers(0, there));
    EXPECT_EQ(source.counter("skipped_damaged"), 200 - there) << "each row is one that is lost";
    EXPECT_THAT(source.rig.log("skipped").back(),
                HasSubstr(fmt::format("it has {} of 200 rows", there)));
  }
}

TEST(SampleSource, RefusesArraysWithoutRows) {
  const auto refusal = [](const std::string& text) -> std::string {
    Source source;
    std::string bytes = "\x93NUMPY";
    bytes += '\1';
    bytes += '\0';
    bytes += static_cast<char>(text.size());
    bytes += '\0';
    source.add("a.npy", bytes + text + std::string(64, 'x'));
    EXPECT_THAT(source.run(), IsEmpty());
    EXPECT_EQ(source.counter("skipped_wrong_type"), 1U);
    return source.rig.log("skipped").back();
  };
  EXPECT_THAT(refusal("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"),
              HasSubstr("has no rows"));
  EXPECT_THAT(refusal("{'descr': '<f16', 'fortran_order': False, 'shape': (2,)}"),
              HasSubstr("its elements are <f16"));
  EXPECT_THAT(refusal("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}"),
              HasSubstr("pickled objects are not read"));
  EXPECT_THAT(refusal("{'descr': [('', '|V4')], 'fortran_order': False, 'shape': (2,)}"),
              HasSubstr("no members"));
  EXPECT_THAT(
      refusal("{'descr': '<u1', 'fortran_order': False, 'shape': (2, 4000000000, 4000000000)}"),
      HasSubstr("larger than any sample"));
  EXPECT_THAT(refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 99999999999)}"),
              HasSubstr("larger than any sample"));
}

// A zip with the arrays `data` (int32 [n, 2], as above) and `id` (uint8 [n]).
std::string npz_rows(std::int32_t first, std::int32_t count, bool deflated, int ids = -1) {
  std::string id = npy_head("|u1", std::to_string(ids < 0 ? count : ids) + ",");
  for (std::int32_t row = first; row < first + (ids < 0 ? count : ids); ++row) {
    id += static_cast<char>(row % 251);
  }
  ZipMaker maker;
  maker.add("data.npy", npy_rows(first, count), {.deflated = deflated});
  maker.add("id.npy", id, {.deflated = deflated, .zip64 = true});
  maker.add("notes.txt", "not an array");
  return maker.finish();
}

TEST(SampleSource, CountsWhatFollowsArrays) {
  Source source("block_bytes: 100");
  source.add("a.npy", npy_rows(0, 100) + npy_rows(100, 20));
  source.add("b.npz", npz_rows(100, 50, false) + std::string(100, '\0'));
  source.add("c.npz", npz_rows(150, 50, true));
  source.scanned();
  source.rig.finish("files");
  source.rig.run();
  EXPECT_EQ(rows_of(source.rig), numbers(0, 200));
  EXPECT_EQ(source.counter("skipped_trailing"), 2U);
  EXPECT_EQ(source.counter("skipped_damaged"), 0U);
}

TEST(SampleSource, GivesTheRowsOfZipsOfArraysWhateverHappens) {
  const auto run = [](int lanes, std::uint64_t seed, double restarts) {
    Source source(fmt::format("threads: {} block_bytes: 65536", lanes), "epochs: 1");
    source.add("a.npz", npz_rows(0, 20000, false));
    source.add("b.npz", npz_rows(20000, 30000, true));
    source.add("c.npz", npz_rows(50000, 0, false));
    source.add("d.npz", npz_rows(50000, 1, true));
    source.scanned();
    source.rig.finish("files");
    std::mt19937_64 random(seed);
    source.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(source.rig.all_finished());
    EXPECT_EQ(source.rig.got("out")[12345].tag[1], 12345U) << "the row";
    return rows_of(source.rig);
  };
  EXPECT_EQ(run(1, 0, 0), numbers(0, 50001));
  EXPECT_EQ(run(3, 0, 0), numbers(0, 50001));
  for (std::uint64_t seed = 1; seed <= 4; ++seed) ASSERT_EQ(run(2, seed, 0.1), numbers(0, 50001));
}

// A block of rows is lost as a whole, wherever somebody had to begin again.
TEST(SampleSource, EndsADamagedZipAtTheSameRowWhateverHappens) {
  std::string bytes = npz_rows(0, 600000, true);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
  const auto run = [&](std::uint64_t seed, double restarts) {
    Source source;
    source.add("a.npz", bytes);
    source.scanned();
    source.rig.finish("files");
    std::mt19937_64 random(seed);
    source.rig.run_with_restarts(random, restarts);
    EXPECT_EQ(source.counter("skipped_damaged"), 1U);
    EXPECT_THAT(source.rig.log("skipped").back(), HasSubstr("array '"));
    return source.rig.got("out").size();
  };
  const std::size_t rows = run(0, 0);
  EXPECT_GT(rows, 100000U);
  EXPECT_LE(rows, 600000U);
  for (std::uint64_t seed = 1; seed <= 2; ++seed) EXPECT_EQ(run(seed, 0.01), rows);
}

TEST(SampleSource, RefusesZipsThatAreNotOneTable) {
  const auto refusal = [](const std::string& bytes, const std::string& settings,
                          const char* counter) -> std::string {
    Source source(settings);
    source.add("a.npz", bytes);
    EXPECT_THAT(source.run(), IsEmpty());
    EXPECT_EQ(source.counter(counter), 1U);
    return source.rig.log("skipped").back();
  };
  EXPECT_THAT(refusal(npz_rows(0, 5, true, 4), "", "skipped_damaged"),
              HasSubstr("array 'data' has 5 rows, array 'id' has 4"));
  EXPECT_THAT(refusal(npz_rows(0, 5, false), "fields { name: 'x' }", "skipped_missing_field"),
              HasSubstr("it has no array 'x'; it has 'data', 'id'"));
  EXPECT_THAT(
      refusal(npz_rows(0, 5, false), "fields { name: 'id' dtype: 'bool' }", "skipped_wrong_type"),
      HasSubstr("array 'id': its elements are uint8, which cannot be bool"));
  ZipMaker cut;
  cut.add("a.npy", npy_rows(0, 9).substr(0, 100));
  EXPECT_THAT(refusal(cut.finish(), "", "skipped_damaged"), HasSubstr("array 'a': it has"));
  ZipMaker none;
  none.add("a.txt", "text");
  EXPECT_THAT(refusal(none.finish(), "", "skipped_damaged"), HasSubstr("it has no arrays"));
}

TEST(SampleSource, TakesOfAZipWhatIsWanted) {
  Source source("fields { name: 'id' as: 'i' dtype: 'int64' }");
  source.add("a.npz", npz_rows(0, 3, true, 2));
  EXPECT_THAT(source.run(), ElementsAre("i=0", "i=1"));
}

// ---- mixer

struct Mixer {
  explicit Mixer(const std::string& settings, const std::vector<int>& counts = {400, 200, 100})
      : rig("seed: 5") {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      rig.add_source(names[i]);
    }
    rig.add_stage("name: 'm' sample_mixer { input: 'a' input: 'b' input: 'c' " + settings + " }");
    rig.add_sink("out", "m");
    rig.build();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (int n = 0; n < counts[i]; ++n) {
        rig.feed(names[i], {.bytes = names[i], .tag = {i, static_cast<std::uint64_t>(n)}});
      }
      rig.finish(names[i]);
    }
  }
  // How many of each input came out; each input's come in their order.
  std::vector<std::uint64_t> counts() {
    std::vector<std::uint64_t> counts(3);
    for (const RigRecord& record : rig.got("out")) {
      EXPECT_EQ(record.bytes, names[record.tag[0]]);
      EXPECT_EQ(record.tag[1], counts[record.tag[0]]++);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(rig.counter("m", "samples_" + names[i]), counts[i]);
    }
    return counts;
  }
  const std::vector<std::string> names = {"a", "b", "c"};
  LaneRig rig;
};

TEST(SampleMixer, DrawsAsOftenAsTheWeightsSay) {
  Mixer mixer("weight: 6 weight: 3 weight: 1");
  mixer.rig.run();
  const std::vector<std::uint64_t> counts = mixer.counts();
  const double all = static_cast<double>(counts[0] + counts[1] + counts[2]);
  EXPECT_GT(all, 550);
  EXPECT_NEAR(static_cast<double>(counts[0]) / all, 0.6, 0.06);
  EXPECT_NEAR(static_cast<double>(counts[1]) / all, 0.3, 0.06);
}

TEST(SampleMixer, EndsWithTheFirstTheLastOrACertainInput) {
  Mixer first("");
  first.rig.run();
  EXPECT_EQ(first.counts()[2], 100U);
  EXPECT_LT(first.counts()[1], 200U);
  Mixer last("end: LAST");
  last.rig.run();
  EXPECT_TRUE(last.rig.all_finished());
  EXPECT_THAT(last.counts(), ElementsAre(400, 200, 100));
  Mixer named("end_with: 'b'");
  named.rig.run();
  EXPECT_THAT(named.counts(), ElementsAre(::testing::Lt(400U), 200, 100));
  Mixer none("weight: 1 weight: 0 weight: 2 end: LAST");
  none.rig.run();
  EXPECT_THAT(none.counts(), ElementsAre(400, 0, 100));
}

TEST(SampleMixer, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Mixer mixer("weight: 5 weight: 2 weight: 2 end: LAST queue_capacity: 5");
    std::mt19937_64 random(seed);
    mixer.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(mixer.rig.all_finished());
    std::vector<std::string> order;
    for (const RigRecord& record : mixer.rig.got("out")) order.push_back(record.bytes);
    return order;
  };
  const std::vector<std::string> undisturbed = run(0, 0);
  ASSERT_THAT(undisturbed, SizeIs(700U));
  for (std::uint64_t seed = 1; seed <= 10; ++seed) ASSERT_EQ(run(seed, 0.2), undisturbed);
}

// ---- numbers

struct Indices {
  explicit Indices(const std::string& settings, const std::string& feed = "epochs: 1 seed: 5")
      : rig(feed) {
    rig.add_stage("name: 'items' index_source { " + settings + " }");
    rig.add_sink("out", "items");
    rig.build();
  }
  // The numbers that have come out; each has its epoch and itself as its lineage.
  std::vector<std::uint64_t> got(std::uint64_t per_epoch) {
    std::vector<std::uint64_t> all;
    for (const RigRecord& record : rig.got("out")) {
      EXPECT_EQ(shown(record), fmt::format("index={}", record.tag[1]));
      EXPECT_EQ(record.tag[0], all.size() / per_epoch + 1);
      all.push_back(record.tag[1]);
    }
    return all;
  }
  LaneRig rig;
};

std::string npy_of(const std::vector<double>& weights) {
  const std::string text =
      fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}", weights.size());
  std::string bytes = "\x93NUMPY";
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(text.size());
  bytes += '\0';
  bytes += text;
  return bytes.append(reinterpret_cast<const char*>(weights.data()), 8 * weights.size());
}

TEST(IndexSource, GivesEachNumberOnceAnEpoch) {
  Indices in_order("count: 700", "epochs: 2");
  in_order.rig.run();
  EXPECT_TRUE(in_order.rig.all_finished());
  std::vector<std::uint64_t> twice = numbers(0, 700);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 700);
  EXPECT_EQ(in_order.got(700), twice);
  EXPECT_EQ(in_order.rig.counter("items", "epochs"), 2U);

  Indices shuffled("count: 700 order: SHUFFLED", "epochs: 2");
  shuffled.rig.run();
  std::vector<std::uint64_t> got = shuffled.got(700);
  ASSERT_THAT(got, SizeIs(1400U));
  EXPECT_FALSE(std::equal(got.begin(), got.begin() + 700, got.begin() + 700));
  std::sort(got.begin(), got.begin() + 700);
  std::sort(got.begin() + 700, got.end());
  EXPECT_EQ(got, twice);
}

TEST(IndexSource, DrawsAsOftenAsTheWeightsSay) {
  const TempDir directory;
  const std::string path = directory.write("w.npy", npy_of({0, 1, 0, 3, 0}));
  Indices items("count: 5 order: WEIGHTED samples: 8000 weights: '" + path + "'");
  items.rig.run();
  const std::vector<std::uint64_t> got = items.got(8000);
  ASSERT_THAT(got, SizeIs(8000U));
  EXPECT_EQ(std::ranges::count(got, 1U) + std::ranges::count(got, 3U), 8000);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(got, 3U)) / 8000, 0.75, 0.02);
}

TEST(IndexSource, GivesTheSameWhateverHappens) {
  const TempDir directory;
  const std::string path = directory.write("w.npy", npy_of(std::vector<double>(90, 0.5)));
  for (const std::string& settings :
       {std::string("count: 90"), std::string("count: 90 samples: 200 order: SHUFFLED"),
        "count: 90 order: WEIGHTED weights: '" + path + "'"}) {
    const auto run = [&](std::uint64_t seed, double restarts) {
      Indices items(settings + " queue_capacity: 7", "epochs: 3 seed: 2");
      std::mt19937_64 random(seed);
      items.rig.run_with_restarts(random, restarts);
      EXPECT_TRUE(items.rig.all_finished());
      return items.got(settings.find("samples") == std::string::npos ? 90 : 200);
    };
    const std::vector<std::uint64_t> undisturbed = run(0, 0);
    for (std::uint64_t seed = 1; seed <= 10; ++seed) ASSERT_EQ(run(seed, 0.2), undisturbed);
  }
}

TEST(IndexSource, RefusesWeightsThatAreNone) {
  const TempDir directory;
  const auto fault = [&](const std::string& bytes) -> std::string {
    const std::string path = directory.write("w.npy", bytes);
    try {
      Indices items("count: 3 order: WEIGHTED weights: '" + path + "'");
      items.rig.run();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(fault(npy_of({1, 2, 3})), "");
  EXPECT_THAT(fault(npy_of({1, 2})), HasSubstr("give a weight for each of 3 items"));
  EXPECT_THAT(fault(npy_of({1, -2, 3})), HasSubstr("weight 1 is -2"));
  EXPECT_THAT(fault(npy_of({0, 0, 0})), HasSubstr("the sum of all weights is 0"));
  const std::string whole = npy_of({1, 2, 3});
  EXPECT_THAT(fault(whole.substr(0, whole.size() - 1)), HasSubstr("it ends after 23 of 24 bytes"));
  EXPECT_THAT(fault("no array"), HasSubstr("no .npy file"));
}

// ---- shuffler

std::string text_sample(std::string_view text) {
  const SampleField field{.name = "text",
                          .dtype = SampleDtype::kText,
                          .data = std::as_bytes(std::span(text.data(), text.size()))};
  std::vector<std::uint64_t> room(sample_bytes({&field, 1}).value() / 8);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(room));
  write_sample(bytes, {&field, 1});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Shuffler {
  explicit Shuffler(const std::string& settings) : rig("epochs: 1 seed: 5") {
    rig.add_source("samples");
    rig.add_stage("name: 's' sample_shuffler { input: 'samples' " + settings + " }");
    rig.add_sink("out", "s");
    rig.build();
  }
  void feed(int count, std::size_t bytes = 10) {
    for (int i = 0; i < count; ++i) {
      rig.feed("samples", {.bytes = text_sample(std::to_string(i) + std::string(bytes, ' ')),
                           .tag = {7, static_cast<std::uint64_t>(i)}});
    }
  }
  std::vector<std::uint64_t> order() {
    std::vector<std::uint64_t> order;
    for (const RigRecord& record : rig.got("out")) {
      EXPECT_EQ(record.tag[0], 7U);
      EXPECT_EQ(shown(record).substr(0, shown(record).find(' ')),
                fmt::format("text={}", record.tag[1]));
      order.push_back(record.tag[1]);
    }
    return order;
  }
  LaneRig rig;
};

TEST(SampleShuffler, PutsOutEachSampleOnceInAnotherOrder) {
  Shuffler shuffler("size: 50");
  shuffler.feed(400);
  shuffler.rig.finish("samples");
  shuffler.rig.run();
  std::vector<std::uint64_t> order = shuffler.order();
  ASSERT_THAT(order, SizeIs(400U));
  EXPECT_FALSE(std::ranges::is_sorted(order));
  EXPECT_EQ(shuffler.rig.counter("s", "samples_held"), 0U);
  EXPECT_EQ(shuffler.rig.counter("s", "bytes_held"), 0U);
  std::ranges::sort(order);
  for (std::uint64_t i = 0; i < 400; ++i) EXPECT_EQ(order[i], i);
}

TEST(SampleShuffler, HoldsNoMoreThanItsBytes) {
  Shuffler shuffler("size: 1000 reservoir_bytes: 1048576");
  shuffler.feed(300, 10'000);
  shuffler.rig.run();
  EXPECT_LE(shuffler.rig.counter("s", "bytes_held"), 1048576U);
  EXPECT_GT(shuffler.rig.counter("s", "samples_held"), 90U);
  shuffler.rig.finish("samples");
  shuffler.rig.run();
  EXPECT_THAT(shuffler.order(), SizeIs(300U));
}

TEST(SampleShuffler, SaysHowFullItIsUntilItGivesSomething) {
  Shuffler shuffler("size: 50");
  shuffler.feed(20);
  shuffler.rig.run();
  EXPECT_EQ(shuffler.rig.note("s"), "reservoir: 20 of 50 samples");
  shuffler.feed(30);
  shuffler.rig.run();
  EXPECT_EQ(shuffler.rig.note("s"), "reservoir: 50 of 50 samples");
  shuffler.feed(1);
  shuffler.rig.run();
  EXPECT_EQ(shuffler.rig.note("s"), "");

  // The limit that it meets first.
  Shuffler large("size: 1000 reservoir_bytes: 1048576");
  large.feed(50, 10'000);
  large.rig.run();
  EXPECT_EQ(large.rig.note("s"), fmt::format("reservoir: 50 samples, {} of 1048576 bytes",
                                             large.rig.counter("s", "bytes_held")));
}

TEST(SampleShuffler, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Shuffler shuffler("size: 40");
    shuffler.feed(300);
    shuffler.rig.finish("samples");
    std::mt19937_64 random(seed);
    if (restarts == 0) {
      shuffler.rig.run();
    } else {
      shuffler.rig.run_with_restarts(random, restarts);
    }
    return shuffler.order();
  };
  const std::vector<std::uint64_t> undisturbed = run(0, 0);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) ASSERT_EQ(run(seed, 0.2), undisturbed) << seed;
}

// ---- batcher

struct Batcher {
  explicit Batcher(const std::string& settings, const std::string& feed = "epochs: 1") : rig(feed) {
    rig.add_source("files");
    rig.add_stage("name: 'lines' sample_source { input: 'files' }");
    rig.add_stage("name: 'b' sample_batcher { input: 'lines' " + settings + " }");
    rig.build();
  }
  const std::vector<RigBatch>& run(const std::string& text) {
    rig.feed("files", {.bytes = directory.write("a.jsonl", text), .user = kFileRecord});
    rig.feed("files", {.user = kScanCompleteRecord});
    rig.finish("files");
    rig.run();
    EXPECT_TRUE(rig.all_finished());
    return rig.batches();
  }
  template <typename T>
  static std::vector<T> at(const RigBatch& batch, std::uint64_t offset, std::size_t count) {
    std::vector<T> out(count);
    std::memcpy(out.data(), batch.bytes.data() + offset, count * sizeof(T));
    return out;
  }
  [[nodiscard]] std::uint64_t counter(std::string_view name) const {
    return rig.counter("b", name);
  }
  TempDir directory;
  LaneRig rig;
};

constexpr const char* kBoth =
    "batch_size: 3 fields { name: 'n' dtype: 'int64' } "
    "fields { name: 't' dtype: 'text' bytes_max: 1024 } fields { name: 'v' dtype: 'int64' shape: 2 "
    "}";

TEST(SampleBatcher, StacksArraysAndText) {
  Batcher batcher(kBoth);
  std::string text;
  for (int i = 0; i < 5; ++i) {
    text += fmt::format(R"({{"v": [{}, {}], "t": "{}", "n": {}, "other": 1}})", i, i + 1,
                        std::string(static_cast<std::size_t>(i), 'x'), 10 * i) +
            "\n";
  }
  const std::vector<RigBatch>& batches = batcher.run(text);
  ASSERT_THAT(batches, SizeIs(2U));
  EXPECT_EQ(batches[0].rows, 3U);
  EXPECT_EQ(batches[1].rows, 2U);
  // n at 0, t at 64, its offsets behind it, v behind those.
  EXPECT_THAT(Batcher::at<std::int64_t>(batches[0], 0, 3), ElementsAre(0, 10, 20));
  EXPECT_EQ(batches[0].ragged[0], 3U) << "bytes of text";
  EXPECT_EQ(batches[0].ragged[1], 4U) << "offsets";
  EXPECT_THAT(Batcher::at<char>(batches[0], 64, 3), ElementsAre('x', 'x', 'x'));
  EXPECT_THAT(Batcher::at<std::int64_t>(batches[0], 64 + 1024, 4), ElementsAre(0, 0, 1, 3));
  EXPECT_THAT(Batcher::at<std::int64_t>(batches[0], 64 + 1024 + 64, 6),
              ElementsAre(0, 1, 1, 2, 2, 3));
  EXPECT_THAT(Batcher::at<std::int64_t>(batches[1], 64 + 1024, 3), ElementsAre(0, 3, 7));
}

TEST(SampleBatcher, ABatchWhoseTextIsFullHasFewerRows) {
  Batcher batcher("batch_size: 4 fields { name: 't' dtype: 'text' bytes_max: 1024 }");
  std::string text;
  for (const std::size_t bytes : {400, 400, 400, 1024, 1025, 1, 1}) {
    text += fmt::format("{{\"t\": \"{}\"}}\n", std::string(bytes, 'x'));
  }
  std::vector<std::uint32_t> rows;
  for (const RigBatch& batch : batcher.run(text)) rows.push_back(batch.rows);
  EXPECT_THAT(rows, ElementsAre(2, 1, 1, 2));
  EXPECT_EQ(batcher.counter("skipped_too_large"), 1U);
}

TEST(SampleBatcher, SkipsWhatIsNotAsItShouldBe) {
  Batcher batcher(kBoth);
  const std::vector<RigBatch>& batches = batcher.run(R"({"n": 1, "t": "a", "v": [1, 2]}
{"n": 2, "t": "b"}
{"n": 2.5, "t": "b", "v": [1, 2]}
{"n": 3, "t": "b", "v": [1, 2, 3]}
{"n": 4, "t": 5, "v": [1, 2]}
{"n": 5, "t": "c", "v": [1, 2]}
)");
  ASSERT_THAT(batches, SizeIs(1U));
  EXPECT_THAT(Batcher::at<std::int64_t>(batches[0], 0, 2), ElementsAre(1, 5));
  EXPECT_EQ(batcher.counter("skipped_missing_field"), 1U);
  EXPECT_EQ(batcher.counter("skipped_wrong_type"), 2U);
  EXPECT_EQ(batcher.counter("skipped_wrong_shape"), 1U);
  EXPECT_THAT(batcher.rig.log("skipped_wrong_shape"),
              Contains(HasSubstr("field 'v' has shape [3], not [2]")));
}

TEST(SampleBatcher, SaysWhereRowsCameFrom) {
  Batcher batcher("batch_size: 2 lineage: true fields { name: 'n' dtype: 'int64' }");
  const std::vector<RigBatch>& batches = batcher.run("{\"n\": 1}\n{\"n\": 2}\n");
  ASSERT_THAT(batches, SizeIs(1U));
  const std::vector<std::uint64_t> lineage = Batcher::at<std::uint64_t>(batches[0], 64, 4);
  EXPECT_EQ(lineage[0], lineage[2]);
  EXPECT_EQ(lineage[1], 0U);
  EXPECT_EQ(lineage[3], 9U);
}

TEST(SampleBatcher, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Batcher batcher(kBoth);
    std::mt19937_64 content(9);
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += fmt::format(R"({{"v": [{}, 0], "t": "{}", "n": {}}})", i,
                          std::string(content() % 500, static_cast<char>('a' + i % 26)), i) +
              "\n";
    }
    batcher.rig.feed("files",
                     {.bytes = batcher.directory.write("a.jsonl", text), .user = kFileRecord});
    batcher.rig.feed("files", {.user = kScanCompleteRecord});
    batcher.rig.finish("files");
    std::mt19937_64 random(seed);
    if (restarts == 0) {
      batcher.rig.run();
    } else {
      batcher.rig.run_with_restarts(random, restarts);
    }
    std::vector<std::string> seen;
    for (const RigBatch& batch : batcher.rig.batches()) {
      std::string row = fmt::format("{} {} {}:", batch.rows, batch.ragged[0], batch.ragged[1]);
      for (const char c : Batcher::at<char>(batch, 64, batch.ragged[0])) row += c;
      for (const std::int64_t n : Batcher::at<std::int64_t>(batch, 0, batch.rows))
        row += fmt::format(" {}", n);
      for (const std::int64_t n : Batcher::at<std::int64_t>(batch, 64 + 1024, batch.ragged[1]))
        row += fmt::format(" {}", n);
      seen.push_back(row);
    }
    return seen;
  };
  const std::vector<std::string> undisturbed = run(0, 0);
  EXPECT_GT(undisturbed.size(), 60U);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) ASSERT_EQ(run(seed, 0.2), undisturbed) << seed;
}

}  // namespace
}  // namespace ringfeed
