// The stage python, with functions written here instead of an interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/rig/lane_rig.h"
#include "workers/python/sample_function.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

using Outcome = SampleFunction::Outcome;
using OneSample = std::function<Outcome(const std::string& sample, std::uint64_t seed)>;

// What was asked of the functions of all lanes.
struct Asked {
  std::vector<std::size_t> batches;
  std::vector<std::string> samples;
};

class Function final : public SampleFunction {
 public:
  Function(OneSample one, Asked& asked) : one_(std::move(one)), asked_(asked) {}
  void run(std::span<const Input> inputs, std::vector<Outcome>& outcomes) override {
    asked_.batches.push_back(inputs.size());
    for (const Input& input : inputs) {
      const std::string sample(reinterpret_cast<const char*>(input.sample.data()),
                               input.sample.size());
      asked_.samples.push_back(sample);
      outcomes.push_back(one_(sample, input.seed));
    }
  }

 private:
  OneSample one_;
  Asked& asked_;
};

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

struct Stage {
  explicit Stage(OneSample one, const std::string& settings = "") : rig("seed: 5") {
    set_function_opener([one = std::move(one), this](const StageContext&) {
      return Result<std::unique_ptr<SampleFunction>>(std::make_unique<Function>(one, asked));
    });
    rig.add_source("in");
    rig.add_stage("name: 'p' python { input: 'in' object: 'a:b' " + settings + " }");
    rig.add_sink("out", "p");
    rig.build();
  }
  ~Stage() { set_function_opener({}); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void feed(int count) {
    for (int i = 0; i < count; ++i) {
      rig.feed("in", {.bytes = std::to_string(i), .tag = {7, static_cast<std::uint64_t>(i)}});
    }
    rig.finish("in");
  }
  [[nodiscard]] std::vector<std::string> got() const {
    std::vector<std::string> all;
    for (const RigRecord& record : rig.got("out")) all.push_back(record.bytes);
    return all;
  }
  Asked asked;
  LaneRig rig;
};

Outcome doubled(const std::string& sample, std::uint64_t) {
  return {.samples = {bytes_of(sample + sample)}};
}
// A sample of i gives i modulo 4 samples.
Outcome several(const std::string& sample, std::uint64_t) {
  Outcome outcome;
  for (int i = 0; i < std::stoi(sample) % 4; ++i) {
    outcome.samples.push_back(bytes_of(sample + "." + std::to_string(i)));
  }
  return outcome;
}

TEST(PythonStage, GivesWhatTheFunctionMakesInTheOrderOfTheInputs) {
  Stage stage(doubled, "batch: 8");
  stage.feed(100);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  std::vector<std::string> wanted;
  for (int i = 0; i < 100; ++i) wanted.push_back(std::to_string(i) + std::to_string(i));
  EXPECT_EQ(stage.got(), wanted);
  EXPECT_THAT(stage.asked.batches, Each(Le(8U)));
  EXPECT_THAT(stage.asked.batches, Contains(8U));
  EXPECT_THAT(stage.asked.samples, SizeIs(100U));
  EXPECT_EQ(stage.rig.counter("p", "inputs"), 100U);
}

// However little room there is, no sample is given to the function twice.
TEST(PythonStage, KeepsWhatFindsNoRoom) {
  for (const char* settings : {"queue_capacity: 1", "queue_capacity: 3 batch: 16", ""}) {
    Stage stage(several, settings);
    stage.feed(120);
    stage.rig.allow("out", 0);
    for (int i = 0; i < 200; ++i) {
      stage.rig.allow("out", 1);
      stage.rig.run();
    }
    EXPECT_TRUE(stage.rig.all_finished());
    std::vector<std::string> wanted;
    for (int i = 0; i < 120; ++i) {
      for (int j = 0; j < i % 4; ++j) wanted.push_back(fmt::format("{}.{}", i, j));
    }
    EXPECT_EQ(stage.got(), wanted) << settings;
    EXPECT_THAT(stage.asked.samples, SizeIs(120U)) << settings;
    EXPECT_EQ(stage.rig.counter("p", "samples"), wanted.size());
  }
}

TEST(PythonStage, GivesTheSameWhateverHappens) {
  const auto run = [](int processes, std::uint64_t seed, double restarts) {
    Stage stage(
        [](const std::string& sample, std::uint64_t drawn) {
          Outcome outcome = several(sample, drawn);
          outcome.samples.push_back(bytes_of(std::to_string(drawn)));
          return outcome;
        },
        fmt::format("processes: {} batch: 5 queue_capacity: 2", processes));
    stage.feed(150);
    std::mt19937_64 random(seed);
    stage.rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(stage.rig.all_finished());
    return stage.got();
  };
  const std::vector<std::string> undisturbed = run(1, 0, 0);
  EXPECT_EQ(run(4, 0, 0), undisturbed);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_EQ(run(1 + static_cast<int>(seed % 3), seed, 0.2), undisturbed) << seed;
  }
}

TEST(PythonStage, CountsExceptionsByTheirType) {
  Stage stage([](const std::string& sample, std::uint64_t) -> Outcome {
    const int i = std::stoi(sample);
    if (i % 10 == 3) return {.error = "ValueError", .traceback = "Traceback ..., in three"};
    if (i % 10 == 4) return {.error = "MyOwnError", .traceback = "Traceback ..., in four"};
    return {.samples = {bytes_of(sample)}};
  });
  stage.feed(50);
  stage.rig.run();
  EXPECT_THAT(stage.got(), SizeIs(40U));
  EXPECT_EQ(stage.rig.counter("p", "skipped_ValueError"), 5U);
  EXPECT_EQ(stage.rig.counter("p", "skipped_other_exceptions"), 5U);
  EXPECT_THAT(stage.rig.log("Traceback"), SizeIs(2U)) << "the first of each type";
}

TEST(PythonStage, LeavesOutWhatFitsNoRecord) {
  Stage stage(
      [](const std::string& sample, std::uint64_t) -> Outcome {
        if (sample == "7") return {.samples = {bytes_of("before"), std::vector<std::byte>(90000)}};
        return {.samples = {bytes_of(sample)}};
      },
      "queue_bytes: 65536");
  stage.feed(9);
  stage.rig.run();
  EXPECT_TRUE(stage.rig.all_finished());
  EXPECT_THAT(stage.got(), ElementsAre("0", "1", "2", "3", "4", "5", "6", "before", "8"));
  EXPECT_EQ(stage.rig.counter("p", "skipped_too_large"), 1U);
}

}  // namespace
}  // namespace ringfeed
