// The specification of workers/kit/file_log.h.
#include "workers/kit/file_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/rig/stage_data.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct FileFacts {
  std::uint64_t bytes;
  std::uint64_t mtime_ns;
};
struct Seen {
  std::uint64_t bytes;
  std::uint64_t mtime_ns;
  std::string path;
  friend bool operator==(const Seen&, const Seen&) = default;
};
constexpr std::uint64_t kGrowth = 4096;

// A log in an arena; each append is a committed step, and read() is what the next process finds.
class Log {
 public:
  Log() : used_(layout_.word()), log_(used_, layout_.place(0), kGrowth) {
    NodeSpec node;
    node.state_bytes = layout_.bytes();
    node.state_bytes_max = 1 << 20;
    node.steps_per_commit = 1;
    node.create = [this](const StageContext& context) {
      seen_.clear();
      log_.read(context, [this](const FileFacts& facts, std::string path) {
        seen_.push_back({facts.bytes, facts.mtime_ns, std::move(path)});
      });
      return std::make_unique<FunctionStage>([this](Step& step) {
        if (entries_.empty()) return StepStatus::kIdle;
        FileLog<FileFacts>::Entries entries;
        for (const Seen& entry : entries_) entries.add({entry.bytes, entry.mtime_ns}, entry.path);
        entries_.clear();
        appended_ = log_.append(step, entries);
        return appended_ ? status_ : StepStatus::kNoRoom;
      });
    };
    rig_.add_node("log", std::move(node));
    rig_.build();
  }

  bool append(std::vector<Seen> entries, StepStatus status = StepStatus::kDone) {
    entries_ = std::move(entries);
    status_ = status;
    appended_ = false;
    rig_.run();
    return appended_;
  }
  std::vector<Seen> read() {
    rig_.restart("log");
    return seen_;
  }
  std::uint64_t arena_bytes() const { return rig_.arena_bytes("log"); }

 private:
  LaneRig rig_;
  StateLayout layout_;
  Word used_;
  FileLog<FileFacts> log_;
  std::vector<Seen> entries_;
  std::vector<Seen> seen_;
  StepStatus status_ = StepStatus::kDone;
  bool appended_ = false;
};

TEST(FileLog, IsEmptyInANewFeed) { EXPECT_THAT(Log().read(), IsEmpty()); }

TEST(FileLog, GivesEntriesBackInTheirOrder) {
  Log log;
  EXPECT_TRUE(log.append({{1, 2, "/data/a"}}));
  EXPECT_TRUE(log.append({{3, 4, "/data/longer"}, {5, 6, ""}, {7, 8, "/data/a"}}));
  EXPECT_THAT(log.read(), ElementsAre(Seen{1, 2, "/data/a"}, Seen{3, 4, "/data/longer"},
                                      Seen{5, 6, ""}, Seen{7, 8, "/data/a"}));
  EXPECT_TRUE(log.append({{9, 10, "/data/later"}}));
  EXPECT_THAT(log.read(), SizeIs(5));
}

// Paths of every length up to 40: each ends at another byte of its word.
TEST(FileLog, TakesPathsOfAnyLength) {
  Log log;
  std::vector<Seen> all;
  for (std::size_t i = 0; i <= 40; ++i) all.push_back({i, i + 1, std::string(i, 'x')});
  for (const Seen& entry : all) ASSERT_TRUE(log.append({entry}));
  EXPECT_EQ(log.read(), all);
}

TEST(FileLog, GrowsWithItsEntries) {
  Log log;
  std::vector<Seen> all;
  const std::uint64_t before = log.arena_bytes();
  for (std::size_t i = 0; i < 200; ++i) {
    all.push_back({i, i, std::string(1000, static_cast<char>('a' + i % 26))});
    ASSERT_TRUE(log.append({all.back()}));
  }
  EXPECT_GE(log.arena_bytes(), before + 200 * 1000);
  EXPECT_EQ(log.read(), all);
}

TEST(FileLog, RefusesWhatTheArenaCannotHold) {
  Log log;
  EXPECT_FALSE(log.append({{1, 1, std::string(2 << 20, 'x')}}));
  EXPECT_THAT(log.read(), IsEmpty());
}

// The bytes of a step that came to nothing lie behind the log's end, and the next entry takes their
// place.
TEST(FileLog, KnowsNothingOfAStepThatWasNotCommitted) {
  Log log;
  EXPECT_TRUE(log.append({{1, 1, "/data/a"}}));
  EXPECT_TRUE(log.append({{2, 2, "/data/lost"}}, StepStatus::kNoRoom));
  EXPECT_THAT(log.read(), ElementsAre(Seen{1, 1, "/data/a"}));
  EXPECT_TRUE(log.append({{3, 3, "/data/b"}}));
  EXPECT_THAT(log.read(), ElementsAre(Seen{1, 1, "/data/a"}, Seen{3, 3, "/data/b"}));
}

// ---- what contradicts itself

// An arena of which the log's length, and the length of its first path, are given.
void read_arena(std::uint64_t used, std::uint64_t path_bytes) {
  StateLayout layout;
  const Word word = layout.word();
  const Place place = layout.place(0);
  const FileLog<FileFacts> log(word, place, kGrowth);
  alignas(64) std::array<std::byte, 256> arena{};
  std::memcpy(arena.data() + word.offset, &used, sizeof used);
  std::memcpy(arena.data() + place.offset + sizeof(FileFacts), &path_bytes, sizeof path_bytes);
  const StageConfig config;
  const DataLoaderConfig feed;
  const Links links;
  const StageContext context{.config = config,
                             .feed = feed,
                             .links = links,
                             .stage = "log",
                             .state = arena.data(),
                             .state_bytes = 256};
  log.read(context, [](const FileFacts&, const std::string&) {});
}

TEST(FileLogDamage, AbortsInsteadOfReadingBeyondTheLog) {
  read_arena(32, 8);
  EXPECT_DEATH(read_arena(1000, 8), "RF_CHECK|used");
  EXPECT_DEATH(read_arena(~std::uint64_t{0}, 8), "RF_CHECK|used");
  EXPECT_DEATH(read_arena(16, 8), "RF_CHECK|used");
  EXPECT_DEATH(read_arena(32, 9), "RF_CHECK|used");
  EXPECT_DEATH(read_arena(32, 1ULL << 60), "RF_CHECK|used");
}

}  // namespace
}  // namespace ringfeed
