// A record that kills its worker too often is set aside, alone, and everything around it goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"
#include "workers/runtime/dead_letter.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool is_poison(const std::string& text) { return text.starts_with("bad"); }

// A rig whose stage "work" passes records on and cannot get past a poisoned one: what a death in
// step() looks like from the next incarnation.
struct PoisonRig {
  explicit PoisonRig(const std::string& feed_text = "") : rig(feed_text) {}

  // What the page names while the stage works on the record under way.
  std::uint64_t key_of_lane(std::uint32_t lane) {
    return rig.page(rig.lanes_of("work")[lane]).attempt_key.load();
  }
  void add_work(const NodeOptions& options) {
    stuck_on.assign(options.lanes, 0);
    rig.add_node("work", function_node(options, [this](const StageContext& context) {
                   return [this, lane = context.lane, in = context.input("input"),
                           out = context.output("output")](Step& step) {
                     stuck_on[lane] = 0;
                     const std::optional<Record> record = step.peek(in);
                     if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
                     if (is_poison(text_of(*record))) {
                       stuck_on[lane] = key_of_lane(lane);
                       return StepStatus::kNoInput;
                     }
                     if (!step.put(out, record->bytes)) return StepStatus::kNoRoom;
                     return step.consume(*record);
                   };
                 }));
  }
  // Runs until all is done, condemning whatever a lane of "work" is stuck on.
  void run_with_condemnations(std::mt19937_64* random = nullptr) {
    for (int i = 0; i < 200 && !rig.all_finished(); ++i) {
      random == nullptr ? rig.run() : rig.run_with_restarts(*random, 0.2);
      for (std::uint32_t lane = 0; lane < stuck_on.size(); ++lane) {
        EXPECT_EQ(key_of_lane(lane), 0U) << "nothing is worked on between steps";
        if (stuck_on[lane] != 0) rig.condemn(rig.lanes_of("work")[lane], stuck_on[lane]);
        stuck_on[lane] = 0;
      }
    }
    EXPECT_TRUE(rig.all_finished());
  }

  LaneRig rig;
  std::vector<std::uint64_t> stuck_on;  // by lane: the key, 0: not stuck
};

struct OneLane : PoisonRig {
  OneLane() {
    rig.add_source("in", 1);
    add_work({});
    rig.add_sink("out", "work");
    rig.build();
  }
};

TEST(Poison, ThePageNamesTheRecordWhileTheStageWorksOnIt) {
  LaneRig rig;
  rig.add_source("in");
  std::vector<std::uint64_t> keys;
  rig.add_node("work", function_node({}, [&](const StageContext& context) {
                 return [&, in = context.input("input")](Step& step) {
                   const std::optional<Record> record = step.peek(in);
                   if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
                   keys.push_back(rig.page(rig.lanes_of("work").front()).attempt_key.load());
                   return step.consume(*record);
                 };
               }));
  rig.add_sink("out", "work");
  rig.build();
  for (const RigRecord& record : numbered(0, 3)) rig.feed("in", record);
  rig.finish("in");
  rig.run();
  EXPECT_THAT(keys, ElementsAre(shm::record_key(0, 0, 0), shm::record_key(0, 0, 1),
                                shm::record_key(0, 0, 2)));
  EXPECT_EQ(rig.page(rig.lanes_of("work").front()).attempt_key.load(), 0U);
}

TEST(Poison, ACondemnedRecordIsKeptCountedAndPassedByWhereverItStands) {
  for (std::uint64_t at = 0; at < 5; ++at) {
    OneLane one;
    LaneRig& rig = one.rig;
    for (std::uint64_t i = 0; i < 5; ++i)
      rig.feed("in", {.bytes = i == at ? "bad" : fmt::format("{}", i)});
    rig.finish("in");
    one.run_with_condemnations();
    std::vector<std::string> expected{"0", "1", "2", "3", "4"};
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_EQ(texts(rig.got("out")), expected) << at;
    EXPECT_THAT(rig.dead_letters(), ElementsAre("bad"));
    EXPECT_EQ(rig.counter("work", "dead_letters"), 1U);
  }
}

TEST(Poison, SeveralInOneCommitAreSetAsideOneAfterTheOther) {
  OneLane one;
  LaneRig& rig = one.rig;
  for (const char* text : {"a", "bad 1", "bad 2", "b", "bad 3"}) rig.feed("in", {.bytes = text});
  rig.finish("in");
  one.run_with_condemnations();
  EXPECT_THAT(texts(rig.got("out")), ElementsAre("a", "b"));
  EXPECT_THAT(rig.dead_letters(), ElementsAre("bad 1", "bad 2", "bad 3"));
  EXPECT_EQ(rig.counter("work", "dead_letters"), 3U);
}

// The unit's end is passed on although the record that carried it is not.
TEST(Poison, UnitsKeepTheirOrderOverAnyLanes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    PoisonRig two("feed_output { dispatch: ORDERED }");
    LaneRig& rig = two.rig;
    std::mt19937_64 random(seed);
    rig.add_source("in", 2, {.capacity = 4});
    two.add_work({.lanes = 2, .capacity = 1 + seed % 3});
    rig.add_sink("out", "work");
    rig.build();
    std::vector<std::string> expected;
    std::vector<std::string> bad;
    for (std::uint64_t u = 0; u < 24; ++u) {
      for (std::uint64_t i = 0; i < random() % 4; ++i) {
        const bool poison = random() % 4 == 0;
        const std::string text = fmt::format("{}{}.{}", poison ? "bad " : "", u, i);
        (poison ? bad : expected).push_back(text);
        rig.feed("in", {.bytes = text}, false);
      }
      rig.end_unit("in");
    }
    rig.finish("in");
    two.run_with_condemnations(seed % 2 == 0 ? &random : nullptr);
    ASSERT_EQ(texts(rig.got("out")), expected) << "seed " << seed;
    std::vector<std::string> letters = rig.dead_letters();
    std::sort(letters.begin(), letters.end());
    std::sort(bad.begin(), bad.end());
    letters.erase(std::unique(letters.begin(), letters.end()), letters.end());
    ASSERT_EQ(letters, bad);
  }
}

// Half of a record had been output when it was condemned.
TEST(Poison, TheStageForgetsHowFarItHadCome) {
  PoisonRig half;
  LaneRig& rig = half.rig;
  rig.add_source("in");
  class Letters final : public Stage {
   public:
    Letters(const StageContext& context, PoisonRig& owner)
        : in_(context.input("input")),
          out_(context.output("output")),
          owner_(owner),
          stuck_on_(owner.stuck_on[0]) {}
    StepStatus step(Step& step) noexcept override {
      const std::optional<Record> record = step.peek(in_);
      if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
      const std::uint64_t done = step.load(done_);
      if (done == record->bytes.size()) {
        step.store(done_, 0);
        return step.consume(*record);
      }
      const std::span<const std::byte> letter = record->bytes.subspan(done, 1);
      if (letter[0] == std::byte{'!'}) {
        stuck_on_ = owner_.key_of_lane(0);
        return StepStatus::kNoInput;
      }
      if (!step.put(out_, letter)) return StepStatus::kNoRoom;
      step.store(done_, done + 1);
      return StepStatus::kDone;
    }
    void forget(Step& step, const Record&) noexcept override { step.store(done_, 0); }

   private:
    InPort in_;
    OutPort out_;
    Word done_;
    PoisonRig& owner_;
    std::uint64_t& stuck_on_;
  };
  half.stuck_on.assign(1, 0);
  NodeSpec spec = function_node({.state_bytes = 8}, {});
  spec.create = [&half](const StageContext& context) {
    return std::make_unique<Letters>(context, half);
  };
  rig.add_node("work", spec);
  rig.add_sink("out", "work");
  rig.build();
  for (const char* text : {"ab", "cd!", "ef"}) rig.feed("in", {.bytes = text});
  rig.finish("in");
  half.run_with_condemnations();
  EXPECT_THAT(texts(rig.got("out")), ElementsAre("a", "b", "c", "d", "e", "f"));
  EXPECT_THAT(rig.dead_letters(), ElementsAre("cd!"));
}

// A stage that takes several records in one step meets the poisoned one behind others.
TEST(Poison, AStageThatGathersPassesItByInTheMiddleOfAStep) {
  for (const char* texts_in : {"bad 1 2 3", "1 bad 2 3", "1 2 bad 3"}) {
    PoisonRig gather;
    LaneRig& rig = gather.rig;
    rig.add_source("in");
    gather.stuck_on.assign(1, 0);
    rig.add_node(
        "work", function_node({.units = UnitRule::kRecord}, [&](const StageContext& context) {
          return [&, in = context.input("input"), out = context.output("output")](Step& step) {
            std::string all;
            for (int i = 0; i < 3; ++i) {
              const std::optional<Record> record = step.peek(in);
              if (!record) return StepStatus::kNoInput;
              if (is_poison(text_of(*record))) {
                gather.stuck_on[0] = gather.key_of_lane(0);
                return StepStatus::kNoInput;
              }
              all += text_of(*record);
              if (const StepStatus s = step.consume(*record); s != StepStatus::kDone) return s;
            }
            return step.put(out, bytes_of(all)) ? StepStatus::kDone : StepStatus::kNoRoom;
          };
        }));
    rig.add_sink("out", "work");
    rig.build();
    std::istringstream words(texts_in);
    for (std::string word; words >> word;) rig.feed("in", {.bytes = word});
    rig.run();
    ASSERT_NE(gather.stuck_on[0], 0U);
    rig.condemn(rig.lanes_of("work")[0], gather.stuck_on[0]);
    ASSERT_TRUE(rig.run_until([&] { return !rig.got("out").empty(); })) << texts_in;
    EXPECT_THAT(texts(rig.got("out")), ElementsAre("123"));
    EXPECT_THAT(rig.dead_letters(), ::testing::Contains("bad"));
    EXPECT_EQ(rig.counter("work", "dead_letters"), 1U);
  }
}

TEST(Poison, ACondemnedRecordThatIsNotThereHarmsNobody) {
  OneLane one;
  LaneRig& rig = one.rig;
  rig.condemn(rig.lanes_of("work").front(), shm::record_key(0, 0, 1000));
  for (const RigRecord& record : numbered(0, 4)) rig.feed("in", record);
  rig.finish("in");
  rig.run();
  EXPECT_THAT(texts(rig.got("out")), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(rig.dead_letters(), IsEmpty());
}

TEST(DeadLetter, IsTwoFilesThatMayBeWrittenAgain) {
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / fmt::format("letters-{}", ::getpid()) / "deep";
  const std::string bytes("\0\1record", 8);
  shm::RecordHeader header{};
  header.tag[0] = 7;
  const DeadLetter letter{
      "input", shm::record_key(1, 2, 3), {std::as_bytes(std::span(bytes)), &header}};
  const DeadLetterFacts facts{.directory = directory.string(),
                              .feed = "lc0",
                              .stage = "pool",
                              .node = "read",
                              .lane = 4,
                              .cause = "signal 11 \xff",
                              .deaths = 3,
                              .seed = 18'000'000'000'000'000'000U,
                              .config = "feed: \"lc0\"\n",
                              .version = "1.2.3"};
  for (int i = 0; i < 2; ++i) {
    const Result<std::string> path = write_dead_letter(facts, letter);
    ASSERT_TRUE(path.ok());
    EXPECT_EQ(*path, (directory / "pool.read-input-4.2-3.record").string());
    std::ifstream in(*path, std::ios::binary);
    EXPECT_EQ(std::string((std::istreambuf_iterator<char>(in)), {}), bytes);
  }
  std::ifstream in(directory / "pool.read-input-4.2-3.json");
  const std::string about((std::istreambuf_iterator<char>(in)), {});
  EXPECT_THAT(about, ::testing::AllOf(::testing::HasSubstr("\"deaths\": 3"),
                                      ::testing::HasSubstr("signal 11"),
                                      ::testing::HasSubstr("\"seq\": 3")));
  EXPECT_THAT(about, ::testing::AllOf(::testing::HasSubstr("\"seed\": 18000000000000000000"),
                                      ::testing::HasSubstr(R"("config": "feed: \"lc0\"\n")"),
                                      ::testing::HasSubstr("\"version\": \"1.2.3\""),
                                      ::testing::ContainsRegex("\"xxh3\": \"[0-9a-f]+\"")))
      << "what a replay needs";
  std::filesystem::remove_all(directory.parent_path());
}

TEST(DeadLetter, ThatCannotBeWrittenSaysWhere) {
  const Result<std::string> path = write_dead_letter({.directory = "/proc/no/such"}, DeadLetter{});
  ASSERT_FALSE(path.ok());
  EXPECT_THAT(path.error().message(), ::testing::HasSubstr("/proc/no/such: cannot be created"));
}

}  // namespace
}  // namespace ringfeed
