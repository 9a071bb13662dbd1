// What must hold between lanes that run at the same time: bells, rings, claim words. Lanes are
// threads here, so that ThreadSanitizer sees both sides.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/claim.h"
#include "tests/unit/shm/rig.h"

namespace ringfeed::shm {
namespace {

using testing::Draws;
using testing::GetLane;
using testing::LaneMemory;
using testing::numbered_record;
using testing::PutLane;
using testing::RingMemory;

// ---- bells --------------------------------------------------------------------------------------

// One of two lanes that wait for each other: a cursor, and how its sleeps went.
struct Side {
  explicit Side(std::uint64_t seed) : draws(seed) {}
  LaneMemory lane;
  Draws draws;
  alignas(128) std::atomic<std::uint64_t> cursor{0};
  alignas(128) std::atomic<std::uint64_t> told{0};  // the last cursor for which wake() is over
  std::atomic<std::int64_t> told_ms{0};             // and when it was over
  std::uint64_t sleeps = 0;
  std::uint64_t lost = 0;
};

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using Sleep = void (*)(Side& own, const Side& other, std::uint64_t round, bool& looked_in_vain);

// The sleep of bell.h, which also tells whether its last look found nothing.
void sleep_as_designed(Side& own, const Side& other, std::uint64_t round, bool& looked_in_vain) {
  std::array<BellWord, 1> words{};
  sleep(
      own.lane.page(), own.lane.bell(), words, kSleepMsMax,
      [&] {
        looked_in_vain = other.cursor.load(std::memory_order_seq_cst) < round;
        return !looked_in_vain;
      },
      [] {});
}

// The planted mistake: it looks before it says that it sleeps, and dawdles between the two, so that
// the mistake is found on a busy machine too.
void sleep_announced_late(Side& own, const Side& other, std::uint64_t round, bool& looked_in_vain) {
  std::array<BellWord, 1> words{BellWord{&own.lane.bell().rings, own.lane.bell().rings.load()}};
  looked_in_vain = other.cursor.load(std::memory_order_seq_cst) < round;
  // The answer comes in between: the other side is awake, and needs no more than this.
  const std::int64_t until_ms = now_ms() + 20;
  while (looked_in_vain && other.told.load() < round && now_ms() < until_ms) {
    std::this_thread::yield();
  }
  own.lane.page().waiting.store(1, std::memory_order_seq_cst);
  if (looked_in_vain) futex_wait_any(words, kSleepMsMax);
  own.lane.page().waiting.store(0, std::memory_order_relaxed);
}

// Never sleeps, and so answers while the other is just falling asleep.
void stay_awake(Side&, const Side& other, std::uint64_t round, bool& looked_in_vain) {
  looked_in_vain = false;
  for (int looks = 0; looks < 10'000; ++looks) {
    if (other.cursor.load(std::memory_order_seq_cst) >= round) return;
  }
  std::this_thread::yield();
}

// Waits until the other side's cursor has come to `round`. A wake-up is lost if the sleep went on
// until its time was over, nobody had rung, and yet the waker was done with cursor and ring long
// before. (One that the machine had stopped comes when the time is over, finds nobody asleep, and
// rightly does not ring.)
//
// It looks a random number of times before it sleeps, so that the answer falls on every moment of
// falling asleep; an answer to one who sleeps soundly would put nothing to the test.
void await(Side& own, const Side& other, std::uint64_t round, Sleep sleep_once) {
  for (std::uint64_t looks = own.draws.below(std::uint64_t{1} << own.draws.below(10)); looks > 0;
       --looks) {
    if (other.cursor.load(std::memory_order_seq_cst) >= round) return;
  }
  while (other.cursor.load(std::memory_order_seq_cst) < round) {
    const std::uint32_t rings = own.lane.bell().rings.load();
    bool looked_in_vain = false;
    const std::int64_t begun_ms = now_ms();
    sleep_once(own, other, round, looked_in_vain);
    if (!looked_in_vain) continue;
    ++own.sleeps;
    const bool rung = own.lane.bell().rings.load() != rings;
    const bool slept_on = now_ms() - begun_ms >= kSleepMsMax - 5;
    if (!rung && slept_on && other.told.load() >= round &&
        other.told_ms.load() < begun_ms + kSleepMsMax / 2) {
      ++own.lost;
    }
  }
}

// Two lanes hand a round to and fro; each answer races with the other's falling asleep. Ends early
// when something was lost.
std::uint64_t play(Side& first, Side& second, std::uint64_t rounds, Sleep sleep_first,
                   Sleep sleep_second) {
  std::atomic<bool> stop{false};
  const auto tell = [](Side& own, const Side& other, std::uint64_t round) {
    // seq_cst, as the ends of a ring store a cursor before they look who sleeps.
    own.cursor.store(round, std::memory_order_seq_cst);
    other.lane.as_neighbour().wake();
    own.told_ms.store(now_ms());
    own.told.store(round);
  };
  std::thread answering([&] {
    for (std::uint64_t round = 1; round <= rounds && !stop.load(); ++round) {
      await(second, first, round, sleep_second);
      tell(second, first, round);
      if (second.lost != 0) stop = true;
    }
    tell(second, first, rounds);
  });
  for (std::uint64_t round = 1; round <= rounds && !stop.load(); ++round) {
    tell(first, second, round);
    await(first, second, round, sleep_first);
    if (first.lost != 0) stop = true;
  }
  tell(first, second, rounds);
  answering.join();
  return first.lost + second.lost;
}

TEST(BellThreads, NoWakeUpIsLostInAMillionRounds) {
  Side sleeper(1);
  Side awake(2);
  EXPECT_EQ(play(sleeper, awake, 1'000'000, sleep_as_designed, stay_awake), 0U);
  EXPECT_GT(sleeper.sleeps, 10U) << "hardly anybody slept: nothing was tested";
}

TEST(BellThreads, NoWakeUpIsLostBetweenTwoThatBothSleep) {
  Side first(3);
  Side second(4);
  EXPECT_EQ(play(first, second, 100'000, sleep_as_designed, sleep_as_designed), 0U);
  EXPECT_GT(first.sleeps + second.sleeps, 10U) << "hardly anybody slept: nothing was tested";
}

TEST(BellThreads, ASleeperThatLooksBeforeItAnnouncesIsFoundOut) {
  Side sleeper(1);
  Side awake(2);
  EXPECT_GT(play(sleeper, awake, 1'000'000, sleep_announced_late, stay_awake), 0U)
      << "the tests above could not have seen a lost wake-up";
}

TEST(BellThreads, ARingBetweenTheLastLookAndTheWaitIsNotSleptOver) {
  const LaneMemory lane;
  std::array<BellWord, 1> words{};
  int settled = 0;
  // The ring comes when the last look is over: the wait must end at once, not after an hour.
  sleep(
      lane.page(), lane.bell(), words, 3'600'000,
      [&] {
        ring(lane.bell().rings);
        return false;
      },
      [&] { ++settled; });
  EXPECT_EQ(settled, 1);
  EXPECT_EQ(lane.page().waiting.load(), 0U);
}

// Bells are rung without asking who sleeps where one word tells of many things. Whoever reads the
// new value, and so would sleep on, must see what it was rung for. (ThreadSanitizer finds the
// race.)
TEST(BellThreads, WhoHasReadTheNewValueSeesWhatItWasRungFor) {
  const LaneMemory lane;
  int news = 0;  // not atomic: ordered by the bell alone
  std::thread ringer([&] {
    news = 1;
    ring(lane.bell().rings);
  });
  while (lane.bell().rings.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  EXPECT_EQ(news, 1);
  ringer.join();
}

TEST(BellThreads, OnlyASleeperIsRung) {
  const LaneMemory lane;
  EXPECT_FALSE(lane.as_neighbour().wake());
  EXPECT_EQ(lane.bell().rings.load(), 0U);
  lane.page().waiting = 1;
  EXPECT_TRUE(lane.as_neighbour().wake());
  EXPECT_EQ(lane.bell().rings.load(), 1U);
}

TEST(BellThreads, ASleeperWakesToAnyOfItsBells) {
  const LaneMemory lane;
  for (std::size_t which = 0; which < 3; ++which) {
    std::array<LaneMemory, 2> others;
    std::array<BellWord, 3> words{BellWord{}, BellWord{&others[0].bell().rings, 0},
                                  BellWord{&others[1].bell().rings, 0}};
    const Bell& rung = which == 0 ? lane.bell() : others[which - 1].bell();
    std::atomic<bool> done{false};
    std::thread ringer([&] {
      while (!done.load()) {
        if (lane.page().waiting.load() != 0) ring(const_cast<Bell&>(rung).rings);
        std::this_thread::yield();
      }
    });
    const std::uint32_t before = rung.rings.load();
    while (rung.rings.load() == before) {
      sleep(
          lane.page(), lane.bell(), words, kSleepMsMax, [] { return false; }, [] {});
    }
    done = true;
    ringer.join();
  }
}

// ---- rings --------------------------------------------------------------------------------------

template <typename Ready>
void sleep_until(const LaneMemory& lane, Ready&& ready) {
  std::array<BellWord, 1> words{};
  while (!ready()) sleep(lane.page(), lane.bell(), words, kSleepMsMax, ready, [] {});
}

// A million records in steps of 1 to 16 on both sides, through a ring that is often full and often
// empty: each comes out once, in order, as it went in.
TEST(RingThreads, AMillionRecordsComeOutAsTheyWentIn) {
  constexpr std::uint64_t kRecords = 1'000'000;
  const RingMemory memory({.capacity_bytes = 2 * kPageBytes, .records_max = 40});
  const auto bytes_of = [](std::uint64_t number) { return number * 7 % 250; };
  std::thread producing([&] {
    Draws draws(1);
    PutLane lane(memory);
    std::uint64_t number = 0;
    while (number < kRecords) {
      const std::uint64_t step_end = std::min(kRecords, number + 1 + draws.below(16));
      while (number < step_end && lane.put(numbered_record(number, bytes_of(number)))) ++number;
      const bool full = number < step_end;
      lane.commit();
      lane.ring.wake(memory.consumer.as_neighbour());
      if (full) sleep_until(memory.producer, [&] { return lane.ring.head_moved(); });
    }
    lane.close_and_commit();
    lane.ring.wake(memory.consumer.as_neighbour());
  });
  Draws draws(2);
  GetLane lane(memory);
  std::uint64_t number = 0;
  std::uint64_t wrong = 0;
  while (!lane.ring.ended()) {
    for (std::uint64_t left = 1 + draws.below(16); left > 0; --left) {
      const std::optional<std::string> record = lane.get();
      if (!record) break;
      wrong += *record != numbered_record(number, bytes_of(number));
      ++number;
    }
    lane.commit();
    lane.ring.wake(memory.producer.as_neighbour());
    sleep_until(memory.consumer, [&] {
      return lane.ring.tail_moved() || lane.ring.ended() || lane.peek().has_value();
    });
    if (wrong != 0) break;
  }
  if (wrong != 0) FAIL() << "record " << number - 1;
  producing.join();
  EXPECT_EQ(number, kRecords);
}

// A consumer that reads for long while the producer gives up old records without pause: what it
// reads stays whole until it commits.
TEST(RingThreads, KeepNewestNeverTouchesWhatIsBeingRead) {
  constexpr std::uint64_t kRecords = 200'000;
  const RingMemory memory(
      {.capacity_bytes = 2 * kPageBytes, .records_max = 12, .overflow = Overflow::kKeepNewest});
  const auto bytes_of = [](std::uint64_t number) { return 8 + number * 13 % 600; };
  std::atomic<std::uint64_t> dropped{0};
  std::thread producing([&] {
    Draws draws(3);
    PutLane lane(memory);
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      std::string record = numbered_record(number, bytes_of(number));
      std::memcpy(record.data(), &number, 8);
      if (!lane.put(record)) ++dropped;
      if (draws.below(3) == 0) lane.commit();
      if (draws.below(64) == 0) std::this_thread::yield();
    }
    lane.close_and_commit();
  });
  Draws draws(4);
  auto lane = std::make_unique<GetLane>(memory);
  std::uint64_t least = 0;            // numbers only grow
  std::uint64_t committed_least = 0;  // until a step is abandoned
  std::uint64_t taken = 0;
  std::uint64_t step_taken = 0;
  std::uint64_t wrong = 0;
  std::vector<RecordView> views;
  while (!lane->ring.ended()) {
    views.clear();
    for (std::uint64_t left = 1 + draws.below(6); left > 0; --left) {
      const std::optional<RecordView> record = lane->ring.peek();
      if (!record) break;
      views.push_back(*record);
      lane->ring.consume();
    }
    // Looked at only now, while the producer runs on.
    for (const RecordView& view : views) {
      std::uint64_t number = 0;
      std::memcpy(&number, view.bytes.data(), 8);
      std::string expected = numbered_record(number, bytes_of(number));
      std::memcpy(expected.data(), &number, 8);
      wrong += std::string_view(reinterpret_cast<const char*>(view.bytes.data()),
                                view.bytes.size()) != expected;
      wrong += number < least;
      least = number + 1;
    }
    step_taken = views.size();
    switch (draws.below(8)) {
      case 0:
        lane->ring.abandon();
        least = committed_least;
        break;
      case 1:  // death
        lane = std::make_unique<GetLane>(memory);
        least = committed_least;
        break;
      default:
        lane->commit();
        committed_least = least;
        taken += step_taken;
    }
  }
  lane->commit();
  producing.join();
  EXPECT_EQ(wrong, 0U);
  const QueueView view = memory.view();
  EXPECT_EQ(view.put_total, kRecords);
  EXPECT_EQ(view.get_total, taken);
  EXPECT_EQ(view.put_total, view.get_total + view.size_records + view.drop_total);
  EXPECT_GT(taken, 1000U) << "the test has not tested";
  EXPECT_GT(view.drop_total, dropped.load()) << "nothing was ever given up";
}

// ---- claims -------------------------------------------------------------------------------------

// Four members and a feed of 8 words: each batch is taken by exactly one of them.
TEST(ClaimThreads, EachBatchIsClaimedExactlyOnce) {
  constexpr std::uint64_t kBatches = 100'000;
  constexpr std::uint64_t kWords = 8;
  std::array<std::atomic<std::uint64_t>, kWords> words{};
  std::atomic<std::uint64_t> newest{0};
  std::vector<std::uint32_t> plain_slots(kWords);  // written and read without atomics
  std::vector<std::atomic<std::uint32_t>> taken(kBatches + 1);
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> members;
  for (std::uint8_t member = 0; member < 4; ++member) {
    members.emplace_back([&, member] {
      for (std::uint64_t s = 1; s <= kBatches; ++s) {
        while (newest.load(std::memory_order_acquire) < s) std::this_thread::yield();
        std::atomic<std::uint64_t>& word = words[s % kWords];
        const std::uint64_t seen = word.load(std::memory_order_acquire);
        if (!claim_open(decode_claim(seen), s) || !claim_take(word, seen, s, member)) continue;
        ++taken[s];
        wrong += plain_slots[s % kWords] != s;
        wrong += !claim_finish(word, s, member);
      }
    });
  }
  for (std::uint64_t s = 1; s <= kBatches; ++s) {
    // acquire: the reads of the slot are over before it is written again.
    while (s > kWords &&
           !claim_finished(decode_claim(words[s % kWords].load(std::memory_order_acquire)),
                           s - kWords)) {
      std::this_thread::yield();
    }
    plain_slots[s % kWords] = static_cast<std::uint32_t>(s);
    newest.store(s, std::memory_order_release);
  }
  for (std::thread& member : members) member.join();
  EXPECT_EQ(wrong.load(), 0U);
  for (std::uint64_t s = 1; s <= kBatches; ++s) ASSERT_EQ(taken[s].load(), 1U) << s;
}

// Members die holding a batch; two recoveries of the same death run at the same time; a producing
// lane closes batches in between. Each batch ends exactly once: finished by one member, or closed.
TEST(ClaimThreads, DeathsAndSkipsEndEachBatchExactlyOnce) {
  constexpr std::uint64_t kBatches = 30'000;
  constexpr std::uint32_t kTriesMax = 2;
  std::vector<std::atomic<std::uint64_t>> words(kBatches + 1);
  std::vector<std::atomic<std::uint32_t>> ends(kBatches + 1);
  std::vector<std::atomic<std::uint32_t>> given_back(kBatches + 1);
  struct Place {
    std::atomic<std::uint64_t> batch{0};  // held at death, 0: alive
    std::atomic<int> recoveries{0};
  };
  std::array<Place, 3> places;
  std::atomic<int> running{3};
  std::atomic<std::uint64_t> deaths{0};
  std::vector<std::thread> threads;
  for (std::uint8_t member = 0; member < 3; ++member) {
    threads.emplace_back([&, member] {
      Draws draws(100 + member);
      for (int round = 0; round < 2; ++round) {  // the second time round for what came back
        for (std::uint64_t s = 1; s <= kBatches; ++s) {
          const std::uint64_t seen = words[s].load(std::memory_order_acquire);
          if (!claim_open(decode_claim(seen), s) || !claim_take(words[s], seen, s, member)) {
            continue;
          }
          if (draws.below(4) != 0) {
            if (claim_finish(words[s], s, member)) ++ends[s];
            continue;
          }
          ++deaths;
          Place& place = places[member];
          place.recoveries.store(0);
          place.batch.store(s);
          // A place is used again only when both recoveries are over.
          while (place.recoveries.load() < 2) std::this_thread::yield();
          place.batch.store(0);
        }
      }
      --running;
    });
  }
  for (int supervisor = 0; supervisor < 2; ++supervisor) {
    threads.emplace_back([&] {
      std::array<std::uint64_t, 3> done{};
      while (running.load() > 0) {
        for (std::uint8_t member = 0; member < 3; ++member) {
          Place& place = places[member];
          const std::uint64_t s = place.batch.load();
          if (s == 0) done[member] = 0;
          if (s == 0 || done[member] == s) continue;
          if (claim_recover(words[s], member, true, kTriesMax)) ++given_back[s];
          done[member] = s;
          ++place.recoveries;
        }
        std::this_thread::yield();
      }
    });
  }
  threads.emplace_back([&] {
    Draws draws(7);
    while (running.load() > 0) {
      const std::uint64_t s = 1 + draws.below(kBatches);
      if (draws.below(50) == 0) claim_close(words[s], s);
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  std::uint64_t back_total = 0;
  for (std::uint64_t s = 1; s <= kBatches; ++s) {
    const Claim claim = decode_claim(words[s].load());
    ASSERT_EQ(ends[s].load(), claim.state == ClaimState::kDone ? 1U : 0U) << s;
    ASSERT_TRUE(claim_finished(claim, s) || claim.state == ClaimState::kAvail) << s;
    ASSERT_EQ(claim.tries, given_back[s].load()) << s << ": one death counts once";
    back_total += given_back[s].load();
  }
  EXPECT_EQ(back_total, deaths.load());
  EXPECT_GT(deaths.load(), 1000U) << "the test has not tested";
}

}  // namespace
}  // namespace ringfeed::shm
