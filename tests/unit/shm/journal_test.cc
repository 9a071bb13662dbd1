// The specification of ringfeed/shm/journal.h.
#include "ringfeed/shm/journal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "ringfeed/shm/failpoint.h"
#include "tests/unit/shm/rig.h"

namespace ringfeed::shm {
namespace {

using testing::SharedMemory;

constexpr std::uint32_t kCapacity = 16;
constexpr std::uint64_t kWordsBytes = kPageBytes;

// Everything that survives a lane with an arena and one output ring, in one block that can be
// copied and compared:
//   0x0000 lane page | 0x1000 journal areas | 0x2000 arena words | 0x3000 ring's first page
class World {
 public:
  World() : memory_(std::make_unique<SharedMemory>(4 * kPageBytes)) { point(); }
  [[nodiscard]] World copy() const {
    World other;
    std::memcpy(other.memory_->data(), memory_->data(), memory_->bytes());
    return other;
  }
  [[nodiscard]] LanePage& page() const { return memory_->at<LanePage>(0); }
  [[nodiscard]] JournalEntry* area(std::size_t index) const {
    return &memory_->at<JournalEntry>(kPageBytes + index * kCapacity * sizeof(JournalEntry));
  }
  [[nodiscard]] std::atomic<std::uint64_t>& word(WordRef ref) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(segments_[segment_of(ref)].data +
                                                          offset_of(ref));
  }
  // The words that journals change; the journal's own areas are not state.
  [[nodiscard]] std::string state() const {
    return std::string(reinterpret_cast<const char*>(memory_->data()) + 2 * kPageBytes,
                       2 * kWordsBytes);
  }
  [[nodiscard]] std::span<const WritableSegment> segments() const { return segments_; }

 private:
  void point() {
    segments_[kArenaSegment] = {memory_->data() + 2 * kPageBytes, kWordsBytes};
    segments_[kFirstRingSegment] = {memory_->data() + 3 * kPageBytes, kWordsBytes};
  }
  std::unique_ptr<SharedMemory> memory_;
  std::array<WritableSegment, kFirstRingSegment + 1> segments_{};
};

Journal attach(const World& world) {
  Journal journal(world.page(), world.area(0), world.area(1), kCapacity, world.segments());
  journal.recover();
  return journal;
}

constexpr WordRef arena(std::uint64_t index) { return word_ref(kArenaSegment, index * 8); }
constexpr WordRef ring(std::uint64_t offset) { return word_ref(kFirstRingSegment, offset); }
constexpr WordRef kTail = ring(2048);
constexpr WordRef kTailSeq = ring(2056);

// ---- one step -----------------------------------------------------------------------------------

TEST(Journal, AStoreHappensAtTheCommitAndNotBefore) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 11);
  journal.store(kTail, 22);
  EXPECT_EQ(world.word(arena(1)).load(), 0U);
  EXPECT_EQ(world.word(kTail).load(), 0U);
  journal.commit();
  EXPECT_EQ(world.word(arena(1)).load(), 11U);
  EXPECT_EQ(world.word(kTail).load(), 22U);
  EXPECT_EQ(world.page().commit.load(), 1U);
}

TEST(Journal, LoadSeesTheStepsOwnStores) {
  const World world;
  world.word(arena(1)) = 5;
  Journal journal = attach(world);
  EXPECT_EQ(journal.load(arena(1)), 5U);
  journal.store(arena(1), 6);
  EXPECT_EQ(journal.load(arena(1)), 6U);
  EXPECT_EQ(journal.load(arena(2)), 0U);
  journal.store(arena(1), 7);
  EXPECT_EQ(journal.load(arena(1)), 7U);
  EXPECT_EQ(journal.entries(), 1U) << "the same word again is the same entry";
}

TEST(Journal, WhatIsAppendedComesLastAndHappensWithTheStep) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 11);
  journal.append(kTail, 22);
  EXPECT_EQ(world.word(kTail).load(), 0U);
  EXPECT_EQ(journal.entries(), 2U);
  journal.commit();
  EXPECT_EQ(world.word(arena(1)).load(), 11U);
  EXPECT_EQ(world.word(kTail).load(), 22U);
  journal.append(kTail, 33);
  journal.abandon();
  journal.commit();
  EXPECT_EQ(world.word(kTail).load(), 22U) << "an abandoned step has never been";
}

TEST(Journal, AnAbandonedStepHasNeverBeen) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 1);
  journal.abandon();
  EXPECT_EQ(journal.load(arena(1)), 0U);
  EXPECT_EQ(journal.entries(), 0U);
  journal.commit();
  EXPECT_EQ(world.word(arena(1)).load(), 0U);
}

TEST(Journal, AStepWithoutStoresIsAStep) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 1);
  journal.commit();
  journal.commit();
  EXPECT_EQ(journal.committed(), 2U);
  EXPECT_EQ(world.page().entry_counts[0].load(), 0U);
  attach(world);
  EXPECT_EQ(world.word(arena(1)).load(), 1U);
}

TEST(Journal, AreasTakeTurns) {
  const World world;
  Journal journal = attach(world);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    journal.store(arena(1), 100 + step);
    EXPECT_EQ(world.area(step & 1)[0].value, 100 + step) << "step s writes area s & 1";
    if (step > 1) {
      EXPECT_EQ(world.area((step - 1) & 1)[0].value, 100 + step - 1)
          << "the list of the committed step is not touched";
    }
    journal.commit();
    EXPECT_EQ(world.page().entry_counts[step & 1].load(), 1U);
  }
}

// ---- rolling back -------------------------------------------------------------------------------

TEST(JournalRollback, RestoresEntriesAndTheirValues) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 1);
  journal.store(arena(2), 2);
  const Journal::Savepoint here = journal.savepoint();
  journal.store(arena(2), 22);
  journal.store(arena(2), 222);
  journal.store(arena(3), 3);
  journal.rollback(here);
  EXPECT_EQ(journal.load(arena(1)), 1U);
  EXPECT_EQ(journal.load(arena(2)), 2U);
  EXPECT_EQ(journal.load(arena(3)), 0U);
  EXPECT_EQ(journal.entries(), 2U);
  journal.commit();
  EXPECT_EQ(world.word(arena(2)).load(), 2U);
  EXPECT_EQ(world.word(arena(3)).load(), 0U);
}

TEST(JournalRollback, MayHappenAgainAndWhatFollowsCounts) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(1), 1);
  const Journal::Savepoint here = journal.savepoint();
  for (std::uint64_t i = 0; i < 3; ++i) {
    journal.store(arena(1), 10 + i);
    journal.store(arena(2 + i), i);
    journal.rollback(here);
  }
  journal.store(arena(2), 99);
  journal.commit();
  EXPECT_EQ(world.word(arena(1)).load(), 1U);
  EXPECT_EQ(world.word(arena(2)).load(), 99U);
}

// Forgotten entries must not fill the table in which stored words are looked up.
TEST(JournalRollback, MayHappenMoreOftenThanTheJournalHasEntries) {
  const World world;
  Journal journal = attach(world);
  journal.store(arena(0), 7);
  const Journal::Savepoint here = journal.savepoint();
  for (std::uint64_t i = 0; i < 100 * kCapacity; ++i) {
    journal.store(arena(1 + i % 400), i);
    journal.store(arena(450), i);
    journal.rollback(here);
  }
  EXPECT_EQ(journal.load(arena(1)), 0U);
  EXPECT_EQ(journal.load(arena(0)), 7U);
  EXPECT_EQ(journal.entries_free(), kCapacity - 1);
}

TEST(JournalRollback, BehavesAsAMapWithCopies) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::Draws draws(seed);
    const World world;
    auto journal = std::make_unique<Journal>(attach(world));
    std::map<std::uint64_t, std::uint64_t> committed;
    std::map<std::uint64_t, std::uint64_t> step = committed;
    std::map<std::uint64_t, std::uint64_t> saved = committed;
    Journal::Savepoint savepoint = journal->savepoint();
    const auto begin = [&] {
      step = saved = committed;
      savepoint = journal->savepoint();
    };
    for (int operation = 0; operation < 20'000; ++operation) {
      const std::uint64_t index = draws.below(24);
      switch (draws.below(10)) {
        case 0:
          savepoint = journal->savepoint();
          saved = step;
          break;
        case 1:
          journal->rollback(savepoint);
          step = saved;
          break;
        case 2:
          journal->commit();
          committed = step;
          begin();
          break;
        case 3:
          if (draws.below(2) == 0) {
            journal->abandon();
          } else {
            journal = std::make_unique<Journal>(attach(world));
          }
          begin();
          break;
        default:
          if (journal->entries_free() == 0) break;
          journal->store(arena(index), draws.below(1000));
          step[index] = journal->load(arena(index));
      }
      const std::uint64_t look = draws.below(24);
      const auto it = step.find(look);
      ASSERT_EQ(journal->load(arena(look)), it == step.end() ? 0 : it->second) << operation;
    }
  }
}

// ---- what is refused ----------------------------------------------------------------------------

TEST(JournalDeathTest, MoreEntriesThanThereIsRoomForAreRefused) {
  const World world;
  Journal journal = attach(world);
  for (std::uint64_t i = 0; i < kCapacity; ++i) journal.store(arena(i), i);
  EXPECT_EQ(journal.entries_free(), 0U);
  journal.store(arena(0), 99);  // no new entry
  EXPECT_DEATH(journal.store(arena(kCapacity), 0), "16, 16");
}

// Found at the commit's carrying-out, it would abort every later incarnation too.
TEST(JournalDeathTest, SoAreThoseThatAreAppended) {
  const World world;
  Journal journal = attach(world);
  for (std::uint32_t i = 0; i < kCapacity; ++i) journal.append(arena(i), i);
  EXPECT_DEATH(journal.append(arena(kCapacity), 0), "check failed");
  EXPECT_DEATH(attach(world).append(word_ref(kFirstRingSegment, kWordsBytes), 0), "check failed");
  EXPECT_DEATH(attach(world).append(word_ref(kHeadsSegment, 0), 0), "check failed");
}

TEST(JournalDeathTest, AWordThatDoesNotExistIsRefusedBeforeTheCommit) {
  const World world;
  Journal journal = attach(world);
  EXPECT_DEATH(journal.store(word_ref(kHeadsSegment, 0), 1), "check failed") << "not mapped";
  EXPECT_DEATH(journal.store(word_ref(200, 0), 1), "check failed") << "not in the table";
  EXPECT_DEATH(journal.store(word_ref(kArenaSegment, kWordsBytes), 1), "check failed");
  EXPECT_DEATH(journal.store(word_ref(kArenaSegment, 4), 1), "check failed") << "not aligned";
}

TEST(JournalDeathTest, ACountBeyondTheAreaIsRefused) {
  const World world;
  world.page().entry_counts[0] = kCapacity + 1;
  EXPECT_DEATH(attach(world), "17, 16");
}

TEST(JournalDeathTest, ADamagedEntryIsRefused) {
  const World world;
  {
    Journal journal = attach(world);
    journal.store(arena(1), 1);
    journal.commit();
  }
  world.area(1)[0].where = word_ref(kFeedControlSegment, 0).where;
  EXPECT_DEATH(attach(world), "check failed");
}

TEST(JournalDeathTest, AnOlderSavepointIsNoWayBack) {
  const World world;
  Journal journal = attach(world);
  const Journal::Savepoint older = journal.savepoint();
  journal.store(arena(1), 1);
  static_cast<void>(journal.savepoint());
  EXPECT_DEATH(journal.rollback(older), "check failed");
}

// ---- recovery -----------------------------------------------------------------------------------

// A world in which two steps have been made, and a third step's stores.
void make_two_steps(const World& world) {
  Journal journal = attach(world);
  journal.store(arena(1), 101);
  journal.store(kTail, 128);
  journal.commit();
  journal.store(arena(1), 201);
  journal.store(arena(2), 202);
  journal.store(kTailSeq, 2);
  journal.store(kTail, 256);
  journal.commit();
}
void list_third_step(Journal& journal) {
  journal.store(arena(1), 301);
  journal.store(arena(3), 303);
  journal.store(kTailSeq, 3);
  journal.store(kTail, 384);
}

TEST(JournalRecovery, CarryingOutTwiceOrThriceIsCarryingOutOnce) {
  const World world;
  make_two_steps(world);
  const std::string once = world.state();
  for (int i = 0; i < 3; ++i) {
    Journal journal = attach(world);
    EXPECT_EQ(journal.committed(), 2U);
    EXPECT_EQ(world.state(), once);
  }
}

TEST(JournalRecovery, AListThatWasNotCommittedIsIgnored) {
  const World world;
  make_two_steps(world);
  const std::string before = world.state();
  {
    Journal journal = attach(world);
    list_third_step(journal);
  }
  // Even its number may have been written.
  world.page().entry_counts[1] = 4;
  Journal journal = attach(world);
  EXPECT_EQ(world.state(), before);
  EXPECT_EQ(journal.committed(), 2U);
  journal.commit();  // an empty third step, with the old list still in the area
  EXPECT_EQ(world.state(), before);
  attach(world);
  EXPECT_EQ(world.state(), before);
}

// The lane died with any number of its stores made, in the step's order; then its recovery died in
// the same way; the next one makes the step whole.
TEST(JournalRecovery, FollowsFromEveryPrefixOfTheStores) {
  const World world;
  make_two_steps(world);
  Journal journal = attach(world);
  list_third_step(journal);
  const std::uint32_t count = journal.entries();
  const World before = world.copy();
  journal.commit();
  for (std::uint32_t made = 0; made <= count; ++made) {
    for (std::uint32_t made_again = 0; made_again <= count; ++made_again) {
      const World dead = before.copy();
      dead.page().entry_counts[1] = count;
      dead.page().commit = 3;
      for (const std::uint32_t prefix : {made, made_again}) {
        for (std::uint32_t i = 0; i < prefix; ++i) {
          const JournalEntry& entry = dead.area(1)[i];
          dead.word({entry.where}) = entry.value;
        }
      }
      Journal next_life = attach(dead);
      ASSERT_EQ(dead.state(), world.state()) << made << " then " << made_again;
      ASSERT_EQ(next_life.committed(), 3U);
    }
  }
}

// ---- real deaths --------------------------------------------------------------------------------

#ifdef RINGFEED_FAILPOINTS

// Killed at each named place of a third step, at each passing of it: the step has happened whole or
// not at all, and which of the two is told by commit alone.
TEST(JournalCrash, AStepHappensWholeOrNotAtAll) {
  std::string without;
  std::string with;
  {
    const World world;
    make_two_steps(world);
    without = world.state();
    Journal journal = attach(world);
    list_third_step(journal);
    journal.commit();
    with = world.state();
  }
  std::vector<std::string> names;
  for (const Failpoint* place = failpoints_begin(); place != failpoints_end(); ++place) {
    if (std::string_view(place->name()).starts_with("shm.journal."))
      names.emplace_back(place->name());
  }
  ASSERT_GE(names.size(), 4U);
  int killed = 0;
  for (const std::string& name : names) {
    for (std::uint64_t passing = 1; passing < 20; ++passing) {
      SCOPED_TRACE(name + " @" + std::to_string(passing));
      const World world;
      make_two_steps(world);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        arm_failpoint(name.c_str(), 'k', passing);
        Journal journal = attach(world);
        list_third_step(journal);
        journal.commit();
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      const bool happened = world.page().commit.load() == 3;
      {
        Journal next_life = attach(world);
        EXPECT_EQ(world.state(), happened ? with : without);
        if (!happened) {
          list_third_step(next_life);
          next_life.commit();
        }
      }
      EXPECT_EQ(world.state(), with);
      if (WIFEXITED(status)) break;  // the place is not passed that often
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
    }
  }
  // carry_out: four stores of the recovery and four of the step; the other places once each.
  EXPECT_EQ(killed, 4 + 4 + 3);
}

#endif

}  // namespace
}  // namespace ringfeed::shm
