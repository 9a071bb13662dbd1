// The specification of ringfeed/shm/stamps.h: whatever way a stage changes its lasting memory, the
// page is stamped, so that a snapshot finds it.
#include "ringfeed/shm/stamps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/support/rig/lane_rig.h"
#include "tests/support/rig/stamp_watch.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::HasSubstr;

constexpr std::uint64_t kStateBytes = 40 * shm::kPageBytes;
constexpr std::uint64_t kStateBytesMax = 400 * shm::kPageBytes;

// A lane that changes its state in every way there is, at random places: words, bulk bytes, bytes
// written in place, room that it adds. Some of its calls come to nothing, and all of them are
// interrupted by `between`.
struct Scribbler {
  explicit Scribbler(std::uint64_t seed) : random(seed) {
    rig.add_node("scribbler", function_node({.from = "",
                                             .units = UnitRule::kRecord,
                                             .steps_per_commit = 3,
                                             .state_bytes = kStateBytes,
                                             .state_bytes_max = kStateBytesMax},
                                            [this](const StageContext&) {
                                              return [this](Step& step) { return scribble(step); };
                                            }));
    rig.add_sink("out", "scribbler");
    rig.build();
    lane = rig.lanes_of("scribbler").front();
  }

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  StepStatus scribble(Step& step) {
    for (std::uint64_t i = below(8); i > 0; --i) {
      const std::uint64_t state = step.state_bytes();
      std::array<std::byte, 9000> bytes;
      bytes.fill(static_cast<std::byte>(random()));
      const std::uint64_t count = below(bytes.size());
      const std::uint64_t at = below(state - count);
      switch (below(4)) {
        case 0:
          step.store(Word{below(state / 8) * 8}, random());
          break;
        case 1:
          step.fill({at, count}, std::span(bytes).first(count));
          break;
        case 2:
          std::memcpy(step.bytes_to_write(at, count), bytes.data(), count);
          break;
        default:
          if (below(10) == 0 && state < kStateBytesMax) {
            EXPECT_TRUE(step.grow(state + shm::kPageBytes));
          }
      }
      if (between) between();
    }
    return below(4) == 0 ? StepStatus::kNoInput : StepStatus::kDone;
  }

  std::mt19937_64 random;
  LaneRig rig;
  std::size_t lane = 0;
  std::function<void()> between = {};
};

TEST(Stamps, AreOnEveryPageThatAStageChanges) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Scribbler scribbler(seed);
    StampWatch watch(scribbler.rig, scribbler.lane);
    std::uint32_t generation = 0;
    const auto now_and_then = [&] {
      if (scribbler.below(6) == 0) {
        scribbler.rig.order_generation(scribbler.lane, ++generation);
      }
      if (scribbler.below(6) == 0) {
        ASSERT_EQ(watch.mark(), "") << "seed " << seed;
      }
    };
    // In the middle of a step as well: a snapshot does not wait for anybody.
    scribbler.between = now_and_then;
    for (int round = 0; round < 400; ++round) {
      if (scribbler.below(20) == 0) scribbler.rig.restart("scribbler");
      scribbler.rig.round(scribbler.lane);
      now_and_then();
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(watch.changed(), 1000U);
    EXPECT_GT(generation, 100U);
  }
}

#ifdef RINGFEED_FAILPOINTS
// Killed before, in and after a commit; the next incarnation goes on with the list, in a newer
// generation than that of the step.
TEST(Stamps, AreOnEveryPageThatADeadLaneOrItsHeirHasChanged) {
  std::uint64_t changed = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Scribbler scribbler(seed);
    StampWatch watch(scribbler.rig, scribbler.lane);
    constexpr std::array kPoints = {"shm.journal.before_commit", "shm.journal.after_commit",
                                    "shm.journal.carry_out", "shm.journal.carried_out"};
    std::uint32_t generation = 0;
    for (int round = 0; round < 20; ++round) {
      scribbler.rig.order_generation(scribbler.lane, ++generation);
      static_cast<void>(
          scribbler.rig.die(scribbler.lane, kPoints[scribbler.below(4)], 1 + scribbler.below(6)));
      ASSERT_EQ(watch.mark(), "") << "seed " << seed;
    }
    changed += watch.changed();
  }
  EXPECT_GT(changed, 40 * 50U) << "a page or two a round, or the test has looked at nothing";
}
#endif

TEST(Stamps, ThatAreMissingAreNoticed) {
  Scribbler scribbler(1);
  scribbler.rig.order_generation(scribbler.lane, 1);
  scribbler.rig.round(scribbler.lane);
  StampWatch watch(scribbler.rig, scribbler.lane);
  scribbler.rig.order_generation(scribbler.lane, 2);
  scribbler.rig.round(scribbler.lane);
  EXPECT_EQ(watch.mark(), "");
  scribbler.rig.round(scribbler.lane);
  // As a stage would that writes to bytes which it asked for to read.
  const RigSegment arena = scribbler.rig.arena(scribbler.lane);
  const std::span<const shm::Stamp> stamps = scribbler.rig.page_stamps(scribbler.lane);
  std::size_t page = shm::kStateOffset / shm::kPageBytes;
  while (stamps[page].load() == 2) ++page;
  arena.data[page * shm::kPageBytes] ^= std::byte{1};
  EXPECT_THAT(watch.mark(), HasSubstr(fmt::format("page {} of arena scribbler", page)));
}

TEST(Stamps, AreTakenOverBetweenTwoRounds) {
  Scribbler scribbler(2);
  const shm::LanePage& page = scribbler.rig.page(scribbler.lane);
  std::uint32_t in_step = 0;
  scribbler.between = [&] {
    scribbler.rig.order_generation(scribbler.lane, 8);
    in_step = page.generation_seen.load();
  };
  scribbler.rig.order_generation(scribbler.lane, 7);
  EXPECT_EQ(page.generation_seen.load(), 0U);
  for (int i = 0; i < 20 && in_step == 0; ++i) scribbler.rig.round(scribbler.lane);
  EXPECT_EQ(in_step, 7U);
  scribbler.rig.round(scribbler.lane);
  EXPECT_EQ(page.generation_seen.load(), 8U);
  // A new incarnation knows where the last one was, and answers before it writes anything.
  scribbler.rig.order_generation(scribbler.lane, 9);
  scribbler.rig.restart("scribbler");
  EXPECT_EQ(page.generation_seen.load(), 9U);
}

// An arena that grows far beyond its plan has more pages than stamps: they share.
TEST(Stamps, AreSharedByPagesThatAreFarApart) {
  auto page = std::make_unique<shm::LanePage>();
  std::vector<std::byte> heads(shm::heads_bytes(0, 4, 2));
  page->generation.store(3);
  shm::Stamps stamps(*page, heads, 0, 4, 2);
  stamps.follow();
  stamps.mark(9 * shm::kPageBytes + 4090, 10);
  stamps.mark_slot(1);
  const auto* words = reinterpret_cast<const shm::Stamp*>(heads.data() + shm::stamps_offset(0));
  std::vector<std::uint32_t> seen;
  for (int i = 0; i < 6; ++i) seen.push_back(words[i].load());
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 3, 3, 0, 0, 3));
}

}  // namespace
}  // namespace ringfeed
