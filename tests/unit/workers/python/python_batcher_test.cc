// The stage python_batcher, with functions written here instead of an interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/rig/lane_rig.h"
#include "workers/python/batch_function.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Made = BatchFunction::Outcome;
using Numbers = std::vector<std::int64_t>;
// What is wrong with the samples of a call.
using Wrong = std::function<Made(const Numbers& samples)>;

// A sample is a number as text. A batch has the numbers, twice as a text, and what was drawn.
class Numbering final : public BatchFunction {
 public:
  Numbering(Wrong faults, std::vector<Numbers>& calls)
      : faults_(std::move(faults)), calls_(calls) {}

  Made run(std::span<const Input> inputs, std::uint64_t seed,
           std::span<const Column> columns) override {
    Numbers samples;
    for (const Input& input : inputs) {
      samples.push_back(std::stoll(
          std::string(reinterpret_cast<const char*>(input.sample.data()), input.sample.size())));
    }
    calls_.push_back(samples);
    // What an unfinished call may leave in the slot.
    for (const Column& column : columns) std::memset(column.bytes.data(), 0xee, 8);
    Made outcome = faults_ ? faults_(samples) : Made{};
    if (!outcome.error.empty() || columns.empty()) return outcome;
    EXPECT_EQ(columns[0].bytes.size(), 8 * samples.size());
    std::uint64_t used = 0;
    std::memcpy(columns[1].offsets.data(), &used, 8);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      std::memcpy(columns[0].bytes.data() + 8 * i, &samples[i], 8);
      const std::string text = fmt::format("{0}{0}", samples[i]);
      std::memcpy(columns[1].bytes.data() + used, text.data(), text.size());
      used += text.size();
      std::memcpy(columns[1].offsets.data() + 8 * (i + 1), &used, 8);
      const std::uint64_t drawn = seed + i;
      std::memcpy(columns[2].bytes.data() + 8 * i, &drawn, 8);
    }
    return outcome;
  }

 private:
  Wrong faults_;
  std::vector<Numbers>& calls_;
};

struct Batcher {
  explicit Batcher(Wrong faults = {}, const std::string& settings = "batch_size: 4",
                   const std::string& feed = "seed: 5 epochs: 1")
      : rig(feed) {
    set_batch_opener([faults = std::move(faults), this](const StageContext&) {
      return Result<std::unique_ptr<BatchFunction>>(std::make_unique<Numbering>(faults, calls));
    });
    rig.add_source("in");
    rig.add_stage(
        "name: 'b' python_batcher { input: 'in' object: 'a:b' lineage: true fields { name: 'n' "
        "dtype: 'int64' } fields { name: 't' dtype: 'text' bytes_max: 1024 } fields { name: 's' "
        "dtype: 'uint64' } " +
        settings + " }");
    rig.build();
  }
  ~Batcher() { set_batch_opener({}); }
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  void feed(int count) {
    for (int i = 0; i < count; ++i) {
      rig.feed("in", {.bytes = std::to_string(i), .tag = {7, static_cast<std::uint64_t>(i)}});
    }
    rig.finish("in");
  }
  [[nodiscard]] std::size_t lane() const { return rig.lanes_of("b").front(); }
  template <typename T>
  static std::vector<T> at(const RigBatch& batch, std::uint64_t offset, std::size_t count) {
    std::vector<T> out(count);
    std::memcpy(out.data(), batch.bytes.data() + offset, count * sizeof(T));
    return out;
  }
  // The numbers of each batch, whose other arrays are as they should be.
  std::vector<Numbers> got() {
    std::vector<Numbers> all;
    for (const RigBatch& batch : rig.batches()) {
      const Numbers numbers = at<std::int64_t>(batch, 0, batch.rows);
      const std::uint64_t rows_max = 4;
      const std::uint64_t text = shm::align_up(8 * rows_max, 64);
      const std::uint64_t seeds = text + 1024 + 64;
      std::string texts;
      std::vector<std::int64_t> offsets = {0};
      for (const std::int64_t number : numbers) {
        texts += fmt::format("{0}{0}", number);
        offsets.push_back(static_cast<std::int64_t>(texts.size()));
      }
      EXPECT_EQ(batch.ragged[0], texts.size());
      EXPECT_EQ(batch.ragged[1], offsets.size());
      const std::vector<char> chars = at<char>(batch, text, texts.size());
      EXPECT_EQ(std::string(chars.begin(), chars.end()), texts);
      EXPECT_EQ(at<std::int64_t>(batch, text + 1024, offsets.size()), offsets);
      drawn.push_back(at<std::uint64_t>(batch, seeds, 1)[0]);
      const auto lineage = at<std::uint64_t>(batch, seeds + 64, 2 * batch.rows);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(lineage[2 * i], 7U);
        EXPECT_EQ(lineage[2 * i + 1], static_cast<std::uint64_t>(numbers[i]));
      }
      all.push_back(numbers);
    }
    return all;
  }

  std::vector<Numbers> calls;
  std::vector<std::uint64_t> drawn;
  LaneRig rig;
};

bool is_among(const Numbers& samples, std::int64_t number) {
  return std::ranges::find(samples, number) != samples.end();
}

TEST(PythonBatcher, MakesBatchesInTheOrderOfTheInputs) {
  Batcher stage;
  stage.feed(10);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 1, 2, 3}, Numbers{4, 5, 6, 7}, Numbers{8, 9}));
  EXPECT_THAT(stage.calls, SizeIs(3U)) << "one call a batch";
  EXPECT_THAT(std::set(stage.drawn.begin(), stage.drawn.end()), SizeIs(3U));
  EXPECT_EQ(stage.rig.counter("b", "rows"), 10U);
  EXPECT_EQ(stage.rig.counter("b", "batches"), 3U);
}

TEST(PythonBatcher, LeavesOutTheLastRowsIfTheFeedSaysSo) {
  Batcher stage({}, "batch_size: 4", "seed: 5 epochs: 1 drop_remainder: true");
  stage.feed(10);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 1, 2, 3}, Numbers{4, 5, 6, 7}));
  EXPECT_THAT(stage.calls, SizeIs(2U));
  EXPECT_EQ(stage.rig.counter("b", "rows_dropped"), 2U);
}

// A call that raises says which samples are to blame, and the batch is filled up with others.
TEST(PythonBatcher, LeavesOutWhatRaisesAlone) {
  Batcher stage([](const Numbers& samples) -> Made {
    if (is_among(samples, 1) || is_among(samples, 4))
      return {.error = "ValueError", .traceback = "so it is"};
    if (is_among(samples, 8))
      return {.error = "wrong_shape", .traceback = "field 'n' has shape [5]"};
    return {};
  });
  stage.feed(12);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 2, 3, 5}, Numbers{6, 7, 9, 10}, Numbers{11}));
  EXPECT_EQ(stage.rig.counter("b", "skipped_ValueError"), 2U);
  EXPECT_EQ(stage.rig.counter("b", "skipped_wrong_shape"), 1U);
  EXPECT_THAT(stage.rig.log("so it is"), SizeIs(1U)) << "the first of a type";
  EXPECT_THAT(stage.rig.log("field 'n' has shape [5]"), SizeIs(1U));
}

TEST(PythonBatcher, TriesWhatFillsABatchUpBeforeItIsInIt) {
  Batcher stage([](const Numbers& samples) -> Made {
    if (is_among(samples, 1) || is_among(samples, 5)) return {.error = "ValueError"};
    return {};
  });
  stage.feed(7);
  stage.rig.run();
  EXPECT_THAT(stage.calls, ElementsAre(Numbers{0, 1, 2, 3}, Numbers{0}, Numbers{1}, Numbers{2},
                                       Numbers{3}, Numbers{4}, Numbers{0, 2, 3, 4}, Numbers{5, 6},
                                       Numbers{5}, Numbers{6}, Numbers{6}));
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 2, 3, 4}, Numbers{6}));
}

TEST(PythonBatcher, LeavesOutTheWholeBatchIfNoSampleIsToBlame) {
  Batcher stage([](const Numbers& samples) -> Made {
    if (samples.size() > 1 && is_among(samples, 5)) return {.error = "RuntimeError"};
    return {};
  });
  stage.feed(10);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 1, 2, 3}, Numbers{8, 9}));
  EXPECT_EQ(stage.rig.counter("b", "skipped_RuntimeError"), 4U);
}

TEST(PythonBatcher, ComesToAnEndIfEverySampleRaises) {
  Batcher stage([](const Numbers&) -> Made { return {.error = "KeyError"}; });
  stage.feed(50);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), IsEmpty());
  EXPECT_EQ(stage.rig.counter("b", "skipped_KeyError"), 50U);
}

TEST(PythonBatcher, GivesTheSameWhateverHappens) {
  const auto run = [](std::uint64_t seed, double restarts) {
    Batcher stage(
        [](const Numbers& samples) -> Made {
          for (const std::int64_t sample : samples) {
            if (sample % 17 == 3 || (sample > 100 && sample < 110)) return {.error = "ValueError"};
          }
          if (samples.size() > 1 && is_among(samples, 50)) return {.error = "OSError"};
          return {};
        },
        "batch_size: 4");
    stage.feed(200);
    std::mt19937_64 random(seed);
    if (restarts == 0) {
      stage.rig.run();
    } else {
      stage.rig.run_with_restarts(random, restarts);
    }
    EXPECT_TRUE(stage.rig.all_finished());
    std::vector<Numbers> got = stage.got();
    // What was drawn, and what was counted, too.
    for (const std::uint64_t drawn : stage.drawn) got.push_back({static_cast<std::int64_t>(drawn)});
    for (const char* error : {"skipped_ValueError", "skipped_OSError", "rows"}) {
      got.push_back({static_cast<std::int64_t>(stage.rig.counter("b", error))});
    }
    return got;
  };
  const std::vector<Numbers> undisturbed = run(0, 0);
  EXPECT_GT(undisturbed.size(), 80U);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) ASSERT_EQ(run(seed, 0.3), undisturbed) << seed;
}

// ---- deaths

// A successor does not know which sample killed: each is tried alone, and nothing comes of that.
TEST(PythonBatcher, TriesSamplesOneByOneAfterADeath) {
  Batcher stage([](const Numbers& samples) -> Made {
    if (samples.size() == 1) return {.error = "ValueError"};
    return {};
  });
  for (int i = 0; i < 4; ++i)
    stage.rig.feed("in", {.bytes = std::to_string(i), .tag = {7, i + 0U}});
  while (stage.rig.state_word("b", 16) < 4) {
    for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) stage.rig.round(lane);
    ASSERT_THAT(stage.calls, IsEmpty());
  }
  stage.rig.restart(stage.lane());
  stage.rig.finish("in");
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.calls,
              ElementsAre(Numbers{0}, Numbers{1}, Numbers{2}, Numbers{3}, Numbers{0, 1, 2, 3}));
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{0, 1, 2, 3}));
  EXPECT_EQ(stage.rig.counter("b", "skipped_ValueError"), 0U);
}

// What the page names while the function runs is what the supervisor counts deaths of.
TEST(PythonBatcher, NamesWhatItWorksOn) {
  Batcher* at = nullptr;
  std::vector<std::uint64_t> keys;
  Batcher stage([&](const Numbers& samples) -> Made {
    keys.push_back(at->rig.page(at->lane()).attempt_key.load());
    if (samples.size() > 1 && keys.size() == 1) return {.error = "ValueError"};
    return {};
  });
  at = &stage;
  stage.feed(4);
  stage.rig.run();
  const std::uint64_t many = shm::record_key(0, 0, 0) | kManyRecords;
  EXPECT_THAT(keys, ElementsAre(many, shm::record_key(0, 0, 0), shm::record_key(0, 0, 1),
                                shm::record_key(0, 0, 2), shm::record_key(0, 0, 3), many));
  EXPECT_EQ(stage.rig.page(stage.lane()).attempt_key.load(), 0U);
}

TEST(PythonBatcher, SetsAsideTheSampleThatIsCondemned) {
  for (std::uint64_t bad = 0; bad < 4; ++bad) {
    Batcher stage;
    stage.feed(6);
    while (stage.rig.state_word("b", 16) < 4) {
      for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) stage.rig.round(lane);
      ASSERT_THAT(stage.calls, IsEmpty());
    }
    stage.rig.condemn(stage.lane(), shm::record_key(0, 0, bad));
    stage.rig.run();
    EXPECT_TRUE(stage.rig.all_finished());
    Numbers left = {0, 1, 2, 3, 4, 5};
    std::erase(left, static_cast<std::int64_t>(bad));
    EXPECT_THAT(stage.got(),
                ElementsAre(Numbers(left.begin(), left.begin() + 4), Numbers{left[4]}));
    EXPECT_THAT(stage.rig.dead_letters(), ElementsAre(std::to_string(bad)));
    EXPECT_EQ(stage.rig.counter("b", "dead_letters"), 1U);
  }
}

TEST(PythonBatcher, GoesOnTryingWhereItWas) {
  Batcher stage([](const Numbers& samples) -> Made {
    if (samples.size() == 4 && is_among(samples, 0)) return {.error = "ValueError"};
    return {};
  });
  stage.feed(5);
  while (stage.calls.size() < 3) {
    for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) stage.rig.round(lane);
  }
  ASSERT_THAT(stage.calls, ElementsAre(Numbers{0, 1, 2, 3}, Numbers{0}, Numbers{1}));
  stage.calls.clear();
  stage.rig.condemn(stage.lane(), shm::record_key(0, 0, 0));
  stage.rig.run();
  EXPECT_THAT(stage.calls, ElementsAre(Numbers{2}, Numbers{3}, Numbers{4}, Numbers{1, 2, 3, 4}));
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{1, 2, 3, 4}));
}

TEST(PythonBatcher, SetsAsideABatchThatKillsAsAWhole) {
  Batcher stage;
  stage.feed(6);
  while (stage.rig.state_word("b", 16) < 4) {
    for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) stage.rig.round(lane);
    ASSERT_THAT(stage.calls, IsEmpty());
  }
  stage.rig.condemn(stage.lane(), shm::record_key(0, 0, 0) | kManyRecords);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre(Numbers{4, 5}));
  EXPECT_THAT(stage.rig.dead_letters(), UnorderedElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(stage.rig.counter("b", "dead_letters"), 4U);
  EXPECT_THAT(stage.rig.log("batch_set_aside"), Contains(HasSubstr("samples=4")));
}

#ifdef RINGFEED_FAILPOINTS
constexpr const char* kDeaths[] = {"runtime.lane.attach",      "runtime.lane.recovered",
                                   "runtime.lane.dead_letter", "shm.journal.before_commit",
                                   "shm.journal.after_commit", "shm.journal.carry_out",
                                   "shm.journal.carried_out"};

// Killed in the middle of steps that gather, try, leave out and publish.
TEST(PythonBatcher, GivesTheSameWhereverItIsKilled) {
  const auto faults = [](const Numbers& samples) -> Made {
    if (is_among(samples, 3) || is_among(samples, 9)) return {.error = "ValueError"};
    if (samples.size() > 1 && is_among(samples, 20)) return {.error = "OSError"};
    return {};
  };
  Batcher undisturbed(faults);
  undisturbed.feed(30);
  undisturbed.rig.run();
  const std::vector<Numbers> expected = undisturbed.got();
  ASSERT_THAT(expected, SizeIs(6U));
  for (const char* const failpoint : kDeaths) {
    for (std::uint64_t count = 1; count <= 4; ++count) {
      Batcher stage(faults);
      stage.feed(30);
      std::mt19937_64 random(count);
      std::uint64_t deaths = 0;
      ASSERT_TRUE(stage.rig.run_until([&] {
        for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) {
          if (lane == stage.lane() && random() % 2 == 0) {
            deaths += stage.rig.die(lane, failpoint, count) ? 1 : 0;
          } else {
            stage.rig.round(lane);
          }
        }
        return stage.rig.finished(stage.lane());
      })) << failpoint;
      EXPECT_EQ(stage.got(), expected) << failpoint << " " << count;
      EXPECT_EQ(stage.drawn, undisturbed.drawn);
      for (const char* counter : {"skipped_ValueError", "skipped_OSError", "rows", "batches"}) {
        EXPECT_EQ(stage.rig.counter("b", counter), undisturbed.rig.counter("b", counter))
            << counter << " " << failpoint << " " << count;
      }
      if (count == 1 && std::string_view(failpoint) != "runtime.lane.dead_letter") {
        EXPECT_GT(deaths, 0U) << failpoint;
      }
    }
  }
}

TEST(PythonBatcher, SetsAsideOnceWhereverItIsKilled) {
  std::uint64_t deaths = 0;
  for (const std::uint64_t many : {std::uint64_t{0}, kManyRecords}) {
    for (const char* const failpoint : kDeaths) {
      for (std::uint64_t count = 1; count <= 5; ++count) {
        Batcher stage;
        stage.feed(6);
        while (stage.rig.state_word("b", 16) < 4) {
          for (std::size_t lane = 0; lane < stage.rig.lane_count(); ++lane) stage.rig.round(lane);
        }
        stage.rig.condemn(stage.lane(), shm::record_key(0, 0, 0) | many);
        deaths += stage.rig.die(stage.lane(), failpoint, count) ? 1 : 0;
        stage.rig.run();
        EXPECT_TRUE(stage.rig.all_finished());
        if (many != 0) {
          EXPECT_THAT(stage.got(), ElementsAre(Numbers{4, 5})) << failpoint << " " << count;
        } else {
          EXPECT_THAT(stage.got(), ElementsAre(Numbers{1, 2, 3, 4}, Numbers{5})) << failpoint;
        }
        EXPECT_EQ(stage.rig.counter("b", "dead_letters"), many != 0 ? 4U : 1U) << failpoint;
      }
    }
  }
  EXPECT_GT(deaths, 20U);
}
#endif

// ---- memory

// Samples that raise come and go without end; their memory is used again.
TEST(PythonBatcher, NeedsNoMoreMemoryForWhatItLeavesOut) {
  const auto arena_of = [](int count) {
    Batcher stage([](const Numbers& samples) -> Made {
      for (const std::int64_t sample : samples) {
        if (sample > 1) return {.error = "ValueError"};
      }
      return {};
    });
    for (int i = 0; i < count; ++i) {
      stage.rig.feed("in", {.bytes = std::to_string(i) + std::string(20'000, ' '), .tag = {7, 1}});
      stage.rig.run();
    }
    EXPECT_EQ(stage.rig.counter("b", "skipped_ValueError"), static_cast<std::uint64_t>(count - 2));
    return stage.rig.arena_bytes("b");
  };
  EXPECT_EQ(arena_of(300), arena_of(10));
}

TEST(PythonBatcher, TakesMoreSamplesThanItsInputHolds) {
  LaneRig rig("seed: 5 epochs: 1");
  std::vector<Numbers> calls;
  set_batch_opener([&calls](const StageContext&) {
    return Result<std::unique_ptr<BatchFunction>>(std::make_unique<Numbering>(Wrong{}, calls));
  });
  rig.add_source("in", 1, {.capacity = 2});
  rig.add_stage(
      "name: 'b' python_batcher { input: 'in' object: 'a:b' batch_size: 1000 fields { name: 'n' "
      "dtype: 'int64' } fields { name: 't' dtype: 'text' } fields { name: 's' dtype: 'uint64' } }");
  rig.build();
  for (int i = 0; i < 2500; ++i)
    rig.feed("in", {.bytes = std::to_string(i) + std::string(900, ' ')});
  rig.finish("in");
  rig.run();
  std::vector<std::size_t> sizes;
  for (const Numbers& call : calls) sizes.push_back(call.size());
  EXPECT_THAT(sizes, ElementsAre(1000U, 1000U, 500U));
  set_batch_opener({});
}

// ---- configuration

TEST(PythonBatcher, RefusesWhatCannotBeABatch) {
  const auto refused = [](const std::string& settings) -> std::string {
    try {
      LaneRig rig("epochs: 1");
      rig.add_source("in");
      rig.add_stage("name: 'b' python_batcher { input: 'in' " + settings + " }");
      rig.build();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const std::string object = "object: 'a:b' ";
  const std::string n = "fields { name: 'n' dtype: 'int64' } ";
  EXPECT_THAT(refused("batch_size: 4 " + n), HasSubstr("object is not set"));
  EXPECT_THAT(refused(object + n), HasSubstr("batch_size is not set"));
  EXPECT_THAT(refused(object + "batch_size: 4"), HasSubstr("there are no fields"));
  EXPECT_THAT(refused(object + "batch_size: 4 fields { name: 't' dtype: 'text' bytes_max: "
                               "4294967296 }"),
              HasSubstr("a batch has less than 4 GiB of a text"));
  EXPECT_THAT(refused(object + "batch_size: 4 " + n + n), HasSubstr("would be named 'n'"));
  EXPECT_THAT(refused(object + "batch_size: 4 fields { name: 'n' dtype: 'int' }"),
              HasSubstr("dtype is \"int\""));
  EXPECT_THAT(
      refused(object + "batch_size: 4 lineage: true fields { name: 'lineage' dtype: 'int64' }"),
      HasSubstr("would be named 'lineage'"));
}

}  // namespace
}  // namespace ringfeed
