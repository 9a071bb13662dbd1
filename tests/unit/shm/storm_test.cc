// Two lanes in two processes over one ring, killed again and again while they work: every record
// comes out exactly once, in order.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "tests/support/rig/careful.h"
#include "tests/unit/shm/rig.h"

namespace ringfeed::shm {
namespace {

using testing::arena_word_ref;
using testing::Draws;
using testing::GetLane;
using testing::LaneMemory;
using testing::numbered_record;
using testing::PutLane;
using testing::RingMemory;

constexpr std::size_t kNextWord = 0;  // arena: number of the next record
constexpr int kExitWrongRecord = 3;

std::size_t bytes_of(std::uint64_t number) { return number * 37 % 400; }

template <typename Ready>
void sleep_in_storm(const LaneMemory& lane, Ready&& ready) {
  std::array<BellWord, 1> words{};
  while (!ready()) sleep(lane.page(), lane.bell(), words, kSleepMsMax, ready, [] {});
}

// Puts record after record, 1 to 8 a step, until `stop`; then closes.
[[noreturn]] void produce(const RingMemory& memory, const std::atomic<std::uint32_t>& stop) {
  PutLane lane(memory);
  lane.ring.wake(memory.consumer.as_neighbour());
  for (;;) {
    std::uint64_t number = lane.journal.load(arena_word_ref(kNextWord));
    const std::uint64_t step_end = number + 1 + number % 8;
    while (number < step_end && lane.put(numbered_record(number, bytes_of(number)))) ++number;
    const bool full = number < step_end;
    lane.journal.store(arena_word_ref(kNextWord), number);
    const bool last = stop.load() != 0;
    if (last) lane.ring.close(lane.journal);
    lane.commit();
    lane.ring.wake(memory.consumer.as_neighbour());
    if (last) ::_exit(0);
    if (full) {
      sleep_in_storm(memory.producer, [&] { return lane.ring.head_moved() || stop.load() != 0; });
    }
  }
}

// Takes record after record, 1 to 8 a step, and compares each with the one that must come.
[[noreturn]] void consume(const RingMemory& memory) {
  GetLane lane(memory);
  lane.ring.wake(memory.producer.as_neighbour());
  while (!lane.ring.ended()) {
    std::uint64_t number = lane.journal.load(arena_word_ref(kNextWord));
    for (std::uint64_t left = 1 + number % 8; left > 0; --left) {
      const std::optional<std::string> record = lane.get();
      if (!record) break;
      if (*record != numbered_record(number, bytes_of(number))) ::_exit(kExitWrongRecord);
      ++number;
    }
    lane.journal.store(arena_word_ref(kNextWord), number);
    lane.commit();
    lane.ring.wake(memory.producer.as_neighbour());
    sleep_in_storm(memory.consumer, [&] {
      return lane.ring.tail_moved() || lane.ring.ended() || lane.peek().has_value();
    });
  }
  lane.commit();
  ::_exit(0);
}

class Storm : public ::testing::TestWithParam<RingGeometry> {};

TEST_P(Storm, OfKillsLosesAndRepeatsNothing) {
  constexpr int kKills = 400;
  constexpr std::uint64_t kSeed = 20260101;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Draws draws(kSeed);
  const RingMemory memory(GetParam());
  const testing::SharedMemory flags(kPageBytes);
  auto& stop = flags.at<std::atomic<std::uint32_t>>(0);
  std::array<pid_t, 2> children{};
  const auto start = [&](std::size_t which) {
    children[which] = ::fork();
    if (children[which] == 0) {
      if (which == 0) produce(memory, stop);
      consume(memory);
    }
    ASSERT_GT(children[which], 0);
  };
  const auto commits = [&](std::size_t which) {
    return (which == 0 ? memory.producer : memory.consumer).page().commit.load();
  };
  start(0);
  start(1);
  bool survived = false;
  for (int kill = 0; kill < kKills && !survived; ++kill) {
    const std::size_t victim = draws.below(2);
    // At a random point of a random step soon to come; some while it attaches.
    const std::uint64_t at_commit = commits(victim) + draws.below(40);
    for (std::uint64_t spins = draws.below(20'000); commits(victim) < at_commit || spins > 0;) {
      if (spins > 0) --spins;
      int status = 0;
      if (spins % 64 == 0 && ::waitpid(children[victim], &status, WNOHANG) != 0) {
        ADD_FAILURE() << "child " << victim << " ended by itself: status " << status;
        survived = true;
        children[victim] = 0;
        break;
      }
    }
    if (survived) break;
    ASSERT_EQ(careful::kill_one(children[victim], SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(children[victim], &status, 0), children[victim]);
    if (!WIFSIGNALED(status)) {
      ADD_FAILURE() << "child " << victim << " had ended by itself: status " << status;
      children[victim] = 0;
      break;
    }
    start(victim);
  }
  stop = 1;
  ring(memory.producer.bell().rings);
  for (const pid_t child : children) {
    if (child == 0) continue;
    if (HasFailure()) careful::kill_one(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(HasFailure() || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
  }
  const std::uint64_t produced = memory.producer.arena_word(kNextWord);
  EXPECT_EQ(memory.consumer.arena_word(kNextWord), produced);
  const QueueView view = memory.view();
  EXPECT_EQ(view.put_total, produced);
  EXPECT_EQ(view.get_total, produced);
  EXPECT_EQ(view.size_records, 0U);
  EXPECT_GT(produced, 1000U) << "the test has not tested";
}
INSTANTIATE_TEST_SUITE_P(
    Rings, Storm,
    ::testing::Values(RingGeometry{.capacity_bytes = kPageBytes, .records_max = 3},
                      RingGeometry{.capacity_bytes = kPageBytes, .records_max = 1000},
                      RingGeometry{.capacity_bytes = 16 * kPageBytes, .records_max = 1000}),
    [](const auto& instance) { return "Ring" + std::to_string(instance.index); });

}  // namespace
}  // namespace ringfeed::shm
