// A lane may be thrown away between any two rounds: what comes out is, byte for byte, what would
// have come out anyway.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers

// Remembers the last four records in bulk bytes, lets each record pass, and after it, now and then,
// one of those again: words, bulk bytes, draws and several records a call. Eight places take turns,
// so that no place is written while the last commit still refers to it.
StepFunction echo(const StageContext& context) {
  return [in = context.input("input"), out = context.output("output")](Step& step) {
    const std::optional<Record> record = step.peek(in);
    if (!record) return step.ended(in) ? StepStatus::kEnd : StepStatus::kNoInput;
    const std::uint64_t count = step.load(Word{0});
    if (!step.put(out, record->bytes)) return StepStatus::kNoRoom;
    if (count >= 4 && step.draw(3) == 0) {
      const std::uint64_t back = 1 + step.draw(4);
      const std::byte* place = step.bytes(64 + (count - back) % 8 * 64);
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, place, 8);
      if (!step.put(out, {place + 8, bytes})) return StepStatus::kNoRoom;
    }
    const std::uint64_t place = 64 + count % 8 * 64;
    const std::uint64_t bytes = std::min<std::uint64_t>(record->bytes.size(), 56);
    step.fill({place, 8}, std::as_bytes(std::span(&bytes, 1)));
    step.fill({place + 8, 56}, record->bytes.first(bytes));
    step.store(Word{0}, count + 1);
    return step.consume(*record);
  };
}

TEST(LaneRestart, BetweenAnyTwoRoundsChangesNothing) {
  const auto run = [](std::uint64_t seed, double restarts, std::uint64_t capacity) {
    LaneRig rig("seed: 5 feed_output { dispatch: ORDERED }");
    rig.add_source("in", 2, {.capacity = capacity});
    rig.add_node("echo", function_node({.lanes = 3,
                                        .capacity = std::max<std::uint64_t>(capacity, 2),
                                        .steps_per_commit = 4,
                                        .state_bytes = 1024},
                                       echo));
    rig.add_node("pass",
                 function_node({.from = "echo", .lanes = 2, .capacity = capacity}, forward));
    rig.add_sink("out", "pass", 2, 3);
    rig.build();
    for (std::uint64_t u = 0; u < 40; ++u) {
      for (std::uint64_t i = 0; i < u % 4; ++i) {
        rig.feed("in", {.bytes = fmt::format("{}.{}", u, i)}, false);
      }
      rig.end_unit("in");
    }
    rig.finish("in");
    std::mt19937_64 random(seed);
    rig.run_with_restarts(random, restarts);
    EXPECT_TRUE(rig.all_finished());
    return std::vector{texts(rig.got("out", 0)), texts(rig.got("out", 1))};
  };
  const auto undisturbed = run(0, 0, 16);
  ASSERT_GT(undisturbed[0].size() + undisturbed[1].size(), 60U) << "some records came twice";
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(run(seed, seed % 3 == 0 ? 0.0 : 0.25, 1 + seed % 5), undisturbed) << "seed " << seed;
  }
}

TEST(LaneRestart, OfAllLanesAtOnceChangesNothing) {
  LaneRig rig;
  rig.add_source("in", 2, {.capacity = 2});
  rig.add_node("pass", function_node({.lanes = 2, .capacity = 2, .steps_per_commit = 1}, forward));
  rig.add_sink("out", "pass");
  rig.build();
  for (const RigRecord& record : numbered(0, 60)) rig.feed("in", record);
  rig.finish("in");
  while (!rig.all_finished()) {
    for (std::size_t i = 0; i < rig.lane_count(); ++i) rig.round(i);
    rig.restart_all();
  }
  EXPECT_EQ(texts(rig.got("out")), texts(numbered(0, 60)));
}

}  // namespace
}  // namespace ringfeed
