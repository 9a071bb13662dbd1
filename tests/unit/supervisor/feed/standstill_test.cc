// Specification of supervisor/feed/standstill.h: when nobody works and somebody waits, and what is
// none of that.
#include "supervisor/feed/standstill.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::process {
namespace {

using control::MemberPlace;
using ::testing::HasSubstr;

constexpr std::uint64_t kLimitMs = 5'000;

class Stands : public ::testing::Test {
 protected:
  explicit Stands(const test::FeedShape& shape = {})
      : memory_(test::feed_memory(shape)), groups_(memory_->output()), last_(*memory_, 0) {
    for (std::uint32_t i = 0; i < lanes(); ++i) page(i).pid.store(100 + i);
  }

  [[nodiscard]] std::uint32_t lanes() const {
    return static_cast<std::uint32_t>(memory_->layout().lanes.size());
  }
  shm::LanePage& page(std::uint32_t lane) {
    return const_cast<shm::LanePage&>(memory_->lane(lane));
  }
  MemberPlace enter(const std::string& group) {
    const MemberPlace place =
        groups_.enter({.name = group, .oldest = true}, {77, 1}, now_ms_).value_or_throw();
    last_.attend();
    groups_.advance(now_ms_);
    return place;
  }
  shm::Member& member(const MemberPlace& at) {
    return memory_->output().group(at.group).members[at.member];
  }
  bool take(const MemberPlace& at, std::uint64_t s) {
    std::atomic<std::uint64_t>& word =
        memory_->output()
            .group(at.group)
            .words[s % memory_->output().layout().geometry.descriptors];
    return shm::claim_take(word, word.load(), s, static_cast<std::uint8_t>(at.member));
  }

  void sleeps(std::uint32_t lane) { page(lane).counters.sleeps.fetch_add(20); }
  void all_sleep() {
    for (std::uint32_t i = 0; i < lanes(); ++i) sleeps(i);
  }
  void waits(const MemberPlace& at) { member(at).waited_ns.fetch_add(900'000'000); }

  // How long it has stood still after twice the limit, in each second of which that happens.
  std::uint64_t stood(const std::function<void()>& in_each_second) {
    std::uint64_t stood_ms = 0;
    for (std::uint64_t ms = 0; ms <= 2 * kLimitMs; ms += 1'000) {
      in_each_second();
      now_ms_ += 1'000;
      stood_ms = look();
    }
    return stood_ms;
  }
  std::uint64_t look() {
    const layout::OutputMemory memory = memory_->output();
    const Standstill::Output output{&memory, &groups_};
    return watch_.look(*memory_, {&output, 1}, now_ms_);
  }

  std::unique_ptr<layout::FeedMemory> memory_;
  control::ConsumerGroups groups_;
  test::ProducingLane last_;
  Standstill watch_{kLimitMs};
  std::uint64_t now_ms_ = 1'000'000;
};

TEST_F(Stands, IfAllSleepAndSomebodyWaits) {
  const MemberPlace place = enter("train");
  const auto still = [&] {
    all_sleep();
    waits(place);
  };
  EXPECT_EQ(stood(still), 2 * kLimitMs);
  EXPECT_THAT(lanes_text(*memory_), HasSubstr("mix.0 (process 101) sleeps before 0 records"));
  page(1).commit.fetch_add(1);
  still();
  now_ms_ += 1'000;
  EXPECT_EQ(look(), 0U) << "it goes on";
}

TEST_F(Stands, NotBeforeTheLimit) {
  const MemberPlace place = enter("train");
  for (std::uint64_t ms = 0; ms < kLimitMs; ms += 500) {
    all_sleep();
    waits(place);
    EXPECT_EQ(look(), 0U) << ms;
    now_ms_ += 500;
  }
  all_sleep();
  waits(place);
  EXPECT_NE(look(), 0U);
}

TEST_F(Stands, NotIfNobodyWaits) {
  enter("train");
  EXPECT_EQ(stood([&] { all_sleep(); }), 0U);
}

TEST_F(Stands, NotIfALaneDoesNotSleepAsItIsInAStepStoppedDeadOrWaitsForAFile) {
  const MemberPlace place = enter("train");
  for (std::uint32_t awake = 0; awake < lanes(); ++awake) {
    EXPECT_EQ(stood([&] {
                for (std::uint32_t i = 0; i < lanes(); ++i) {
                  if (i != awake) sleeps(i);
                }
                waits(place);
              }),
              0U)
        << awake;
  }
}

TEST_F(Stands, NotIfALaneCommitsSteps) {
  const MemberPlace place = enter("train");
  EXPECT_EQ(stood([&] {
              all_sleep();
              waits(place);
              page(0).commit.fetch_add(1);
            }),
            0U);
}

TEST_F(Stands, ALaneThatHasEndedNeedNotSleep) {
  const MemberPlace place = enter("train");
  page(0).state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished));
  const auto rest = [&] {
    for (std::uint32_t i = 1; i < lanes(); ++i) sleeps(i);
    waits(place);
  };
  EXPECT_EQ(stood(rest), 2 * kLimitMs);
  for (std::uint32_t i = 1; i < lanes(); ++i) {
    page(i).state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished));
  }
  EXPECT_EQ(stood(rest), 0U) << "it is over, and its processes end";
}

TEST_F(Stands, NotIfTrainersTakeBatches) {
  const MemberPlace place = enter("train");
  EXPECT_EQ(stood([&] {
              all_sleep();
              waits(place);
              member(place).last_ns.fetch_add(1);
            }),
            0U);
}

TEST_F(Stands, NotIfAnotherTrainerHoldsWhatIsMissing) {
  const MemberPlace quick = enter("quick");
  const MemberPlace slow = enter("slow");
  last_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) ASSERT_TRUE(take(slow, s));
  EXPECT_EQ(stood([&] {
              all_sleep();
              waits(quick);
            }),
            0U)
      << "it works on them";
  EXPECT_EQ(stood([&] {
              all_sleep();
              waits(slow);
            }),
            0U)
      << "the other one has not taken them";
  EXPECT_NE(stood([&] {
              all_sleep();
              waits(quick);
              waits(slow);
            }),
            0U)
      << "both want others before they give these back";
}

TEST_F(Stands, NotIfAGroupHasNoTrainerYet) {
  const MemberPlace quick = enter("quick");
  ASSERT_TRUE(groups_.declare({.name = "late"}).ok());
  last_.attend();
  groups_.advance(now_ms_);
  last_.publish_all();
  EXPECT_EQ(stood([&] {
              all_sleep();
              waits(quick);
            }),
            0U);
}

TEST_F(Stands, TimeInWhichNobodyLookedSaysNothing) {
  const MemberPlace place = enter("train");
  for (int i = 0; i < 4; ++i) {
    all_sleep();
    waits(place);
    now_ms_ += 3'600'000;
    EXPECT_EQ(look(), 0U) << "the machine has slept";
  }
}

TEST_F(Stands, WhoeverComesMeanwhileChangesNothing) {
  const MemberPlace place = enter("train");
  const auto still = [&] {
    all_sleep();
    waits(place);
  };
  EXPECT_NE(stood(still), 0U);
  enter("late");
  still();
  now_ms_ += 1'000;
  EXPECT_NE(look(), 0U);
}

}  // namespace
}  // namespace ringfeed::process
