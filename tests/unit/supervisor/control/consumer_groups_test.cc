// Specification of supervisor/control/consumer_groups.h: how groups join and leave, what becomes of
// what a dead member held, who is refused.
#include "supervisor/control/consumer_groups.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "supervisor/feed/linger.h"
#include "tests/unit/supervisor/feed_maker.h"
#include "tests/unit/supervisor/refused_memory.h"

thread_local std::int64_t ringfeed::test::allocations_left = -1;

void* operator new(std::size_t bytes) {
  std::int64_t& left = ringfeed::test::allocations_left;
  void* const at = left >= 0 && left-- == 0 ? nullptr : std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace ringfeed::control {
namespace {

using shm::ClaimState;
using shm::GroupState;
using test::ProducingLane;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr process::Identity kSomebody{77, 1};

// A feed with its lanes in this process, and groups as the supervisor keeps them.
class Groups : public ::testing::Test {
 protected:
  explicit Groups(const test::FeedShape& shape = {})
      : memory_(test::feed_memory(shape)), groups_(memory_->output()) {
    for (std::uint32_t l = 0; l < memory_->output().layout().geometry.lanes; ++l) {
      lanes_.push_back(std::make_unique<ProducingLane>(*memory_, l));
    }
  }

  Result<MemberPlace> enter(const GroupWish& wish) { return groups_.enter(wish, kSomebody, now_); }
  MemberPlace must_enter(const GroupWish& wish) { return enter(wish).value_or_throw(); }
  void answer() {
    for (const auto& lane : lanes_) lane->attend();
    groups_.advance(now_);
  }
  // What a member does in rf_next.
  bool take(const MemberPlace& at, std::uint64_t s) {
    std::atomic<std::uint64_t>& word = this->word(at.group, s);
    return shm::claim_take(word, word.load(), s, static_cast<std::uint8_t>(at.member));
  }
  bool release(const MemberPlace& at, std::uint64_t s) {
    return shm::claim_finish(word(at.group, s), s, static_cast<std::uint8_t>(at.member));
  }
  std::atomic<std::uint64_t>& word(std::uint32_t group, std::uint64_t s) {
    return memory_->output()
        .group(group)
        .words[s % memory_->output().layout().geometry.descriptors];
  }
  shm::Claim claim(std::uint32_t group, std::uint64_t s) {
    return shm::decode_claim(word(group, s).load());
  }
  std::uint64_t start(std::uint32_t group) {
    return memory_->output().group(group).head.start.load();
  }

  std::unique_ptr<layout::FeedMemory> memory_;
  ConsumerGroups groups_;
  std::vector<std::unique_ptr<ProducingLane>> lanes_;
  std::uint64_t now_ = 1000;
};

class GroupsOfTwoLanes : public Groups {
 protected:
  GroupsOfTwoLanes() : Groups({.packers = 2, .slots = 4}) {}
};

TEST_F(GroupsOfTwoLanes, AGroupIsActiveOnlyWhenEveryLaneHasAnswered) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  EXPECT_EQ(groups_.state(place.group), GroupState::kJoining);
  EXPECT_TRUE(groups_.in_motion());
  lanes_[0]->attend();
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kJoining) << "lane 1 has not answered";
  lanes_[1]->attend();
  const auto changes = groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].name, "a");
  EXPECT_FALSE(groups_.in_motion());
}

TEST_F(GroupsOfTwoLanes, AFinishedLaneNeedNotAnswer) {
  lanes_[1]->finish();
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  lanes_[0]->attend();
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
}

TEST_F(GroupsOfTwoLanes, AnAnswerToAnEarlierGroupOfThePageDoesNotCount) {
  const MemberPlace first = must_enter({.name = "a"});
  answer();
  groups_.leave(first, now_);
  groups_.close(first.group);
  groups_.advance(now_);
  ASSERT_EQ(groups_.state(first.group), GroupState::kUnused);
  // All other pages first, so that this one comes again.
  for (int i = 1; i < 16; ++i) {
    const MemberPlace other = must_enter({.name = "g" + std::to_string(i)});
    EXPECT_NE(other.group, first.group) << "the page freed last is used last";
  }
  const MemberPlace again = must_enter({.name = "b"});
  ASSERT_EQ(again.group, first.group);
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(again.group), GroupState::kJoining);
}

// One lane with 4 slots: batches 1..4 wait for the first group.
TEST_F(Groups, TheOldestIsTheFirstBatchThatIsStillHeld) {
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  const MemberPlace a = must_enter({.name = "a", .oldest = true});
  answer();
  EXPECT_EQ(start(a.group), 1U);
  for (std::uint64_t s = 1; s <= 2; ++s) {
    ASSERT_TRUE(take(a, s));
    ASSERT_TRUE(release(a, s));
  }
  ASSERT_EQ(lanes_[0]->publish_all(), 2);  // 5 and 6 in the slots of 1 and 2
  const MemberPlace b = must_enter({.name = "b", .oldest = true});
  answer();
  EXPECT_EQ(start(b.group), 3U);
}

TEST_F(Groups, TheNewestIsTheNextBatch) {
  const MemberPlace a = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  const MemberPlace b = must_enter({.name = "b", .oldest = false});
  answer();
  EXPECT_EQ(start(b.group), 5U);
  EXPECT_EQ(groups_.unfinished(b.group, false), 0U);
  EXPECT_EQ(groups_.unfinished(a.group, false), 4U);
}

TEST_F(Groups, DeclaredGroupsAreEntitledToTheFirstBatch) {
  ASSERT_TRUE(groups_.declare({.name = "train"}).ok());
  EXPECT_TRUE(groups_.ever_joined());
  const MemberPlace place = must_enter({.name = "train"});
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  EXPECT_EQ(start(place.group), 1U);
}

TEST_F(Groups, WhatADeadMemberHeldCanBeTakenAgainAndSaysSo) {
  const MemberPlace dead = must_enter({.name = "a", .oldest = true});
  const MemberPlace other = must_enter({.name = "a"});
  ASSERT_NE(dead.member, other.member);
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  ASSERT_TRUE(take(dead, 1));
  ASSERT_TRUE(take(other, 2));
  ASSERT_TRUE(take(dead, 3));
  EXPECT_EQ(groups_.leave(dead, now_), 2U);
  EXPECT_EQ(claim(dead.group, 1).state, ClaimState::kAvail);
  EXPECT_EQ(claim(dead.group, 1).tries, 1);
  EXPECT_EQ(claim(dead.group, 2).state, ClaimState::kTaken) << "the living keep what they hold";
  EXPECT_TRUE(take(other, 1));
  EXPECT_EQ(groups_.leave(dead, now_), 0U) << "twice is the same as once";
  EXPECT_EQ(claim(dead.group, 1).state, ClaimState::kTaken);
}

TEST_F(Groups, AfterMaxTriesDeliveriesABatchIsClosed) {
  const GroupWish wish{.name = "a", .oldest = true, .max_tries = 2};
  MemberPlace place = must_enter(wish);
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  ASSERT_TRUE(take(place, 1));  // the first delivery
  groups_.leave(place, now_);
  ASSERT_EQ(claim(place.group, 1).state, ClaimState::kAvail);
  place = must_enter(wish);
  ASSERT_TRUE(take(place, 1));  // the second
  groups_.leave(place, now_);
  EXPECT_EQ(claim(place.group, 1).state, ClaimState::kSkipped);
}

TEST_F(Groups, WithoutRedeliveryABatchIsNeverGivenTwice) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true, .redeliver = false});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  ASSERT_TRUE(take(place, 1));
  groups_.leave(place, now_);
  EXPECT_EQ(claim(place.group, 1).state, ClaimState::kSkipped);
}

TEST_F(Groups, EachMemberSaysForItselfWhetherWhatItHoldsComesAgain) {
  const MemberPlace again = must_enter({.name = "a", .oldest = true});
  const MemberPlace once = must_enter({.name = "a", .redeliver = false});
  answer();
  ASSERT_EQ(again.group, once.group);
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  ASSERT_TRUE(take(again, 1));
  ASSERT_TRUE(take(once, 2));
  groups_.leave(again, now_);
  groups_.leave(once, now_);
  EXPECT_EQ(claim(again.group, 1).state, ClaimState::kAvail);
  EXPECT_EQ(claim(again.group, 2).state, ClaimState::kSkipped);
  EXPECT_EQ(groups_.lost(again.group), 1U);
  // The place is another's now, who did not ask for that.
  const MemberPlace next = must_enter({.name = "a"});
  ASSERT_TRUE(take(next, 3));
  groups_.leave(next, now_);
  EXPECT_EQ(claim(again.group, 3).state, ClaimState::kAvail);
}

TEST_F(Groups, AGroupWithoutMembersStaysForRejoinMsAndThenLeaves) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true, .rejoin_ms = 500});
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  ASSERT_EQ(lanes_[0]->publish_all(), 0);
  groups_.leave(place, now_);
  now_ += 499;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  now_ += 1;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kUnused);
}

TEST_F(Groups, AMemberThatComesBackInTimeFindsItsGroup) {
  MemberPlace place = must_enter({.name = "a", .oldest = true, .rejoin_ms = 500});
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  groups_.leave(place, now_);
  now_ += 400;
  place = must_enter({.name = "a"});
  now_ += 400;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  EXPECT_EQ(groups_.unfinished(place.group, false), 4U);
}

TEST_F(Groups, AMemberThatNeverCameTakesTheGroupThatWasMadeForItAlong) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  groups_.take_back(place, now_);
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kUnused) << "nobody is waited for";
  EXPECT_EQ(groups_.live_members(), 0U);
}

TEST_F(Groups, AMemberThatNeverCameLeavesTheGroupToTheOthers) {
  const MemberPlace first = must_enter({.name = "a", .oldest = true});
  answer();
  const MemberPlace second = must_enter({.name = "a"});
  groups_.take_back(second, now_);
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(first.group), GroupState::kActive);
  EXPECT_EQ(groups_.live_members(first.group), 1U);
  EXPECT_EQ(must_enter({.name = "a"}).member, second.member) << "its place is free";
}

TEST_F(Groups, AGroupIsNotPutBackForAMemberThatNeverCame) {
  const MemberPlace first = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  for (const std::uint64_t s : {1, 2}) ASSERT_TRUE(take(first, s) && release(first, s));
  groups_.leave(first, now_);
  const MemberPlace back = must_enter({.name = "a", .position = 1});
  ASSERT_NE(back.group, first.group);
  groups_.take_back(back, now_);
  answer();
  EXPECT_EQ(groups_.state(back.group), GroupState::kUnused);
  EXPECT_EQ(groups_.state(first.group), GroupState::kActive);
  EXPECT_EQ(groups_.next_batch(first.group), 3U) << "where it was";
  EXPECT_EQ(must_enter({.name = "a", .position = 1}).group == first.group, false)
      << "another one may be put back";
}

TEST_F(Groups, NobodyIsWaitedForLongerThanAWeek) {
  for (const GroupWish& wish : {GroupWish{.name = "a", .rejoin_ms = kRejoinMsMax + 1},
                                GroupWish{.name = "a", .stall_ms = kStallMsMax + 1},
                                GroupWish{.name = "a", .rejoin_ms = ~std::uint64_t{0}}}) {
    const Result<MemberPlace> place = enter(wish);
    ASSERT_FALSE(place.ok());
    EXPECT_EQ(place.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(place.error().message(), HasSubstr("rejoin_ms is at most 604800000 (a week)"));
  }
  EXPECT_TRUE(enter({.name = "a", .stall_ms = kStallMsMax, .rejoin_ms = kRejoinMsMax}).ok());
}

TEST_F(Groups, DeclaredGroupsStayWithoutMembers) {
  ASSERT_TRUE(groups_.declare({.name = "train", .rejoin_ms = 1}).ok());
  const MemberPlace place = must_enter({.name = "train"});
  groups_.leave(place, now_);
  now_ += 1'000'000;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  groups_.close(place.group);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
}

TEST_F(Groups, ADrainingGroupKeepsItsPageWhileABatchIsHeld) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  ASSERT_TRUE(take(place, 1));
  groups_.close(place.group);
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kDraining);
  const Result<MemberPlace> late = enter({.name = "a"});
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.error().message(), HasSubstr("being closed"));
  groups_.leave(place, now_);
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kUnused);
}

// The page's last group was done with batch 1, which is still held by nobody else: for the new
// group it counts as not given yet, also while it joins.
TEST_F(Groups, ANewGroupOnAnOldPageStartsWithCleanWords) {
  const MemberPlace old = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  ASSERT_TRUE(take(old, 1));
  ASSERT_TRUE(release(old, 1));
  memory_->output().group(old.group).low.store(2);
  groups_.leave(old, now_);
  groups_.close(old.group);
  groups_.advance(now_);
  std::uint32_t group = 99;
  for (int i = 0; i < 16; ++i) {
    group = must_enter({.name = "g" + std::to_string(i), .oldest = true}).group;
  }
  ASSERT_EQ(group, old.group);
  lanes_[0]->attend();
  EXPECT_EQ(lanes_[0]->publish_all(), 0) << "it has answered: from 1 on nothing is reused";
  groups_.advance(now_);
  ASSERT_EQ(groups_.state(group), GroupState::kActive);
  EXPECT_EQ(start(group), 1U);
  EXPECT_EQ(claim(group, 1).state, ClaimState::kNone);
  EXPECT_EQ(memory_->output().group(group).low.load(), 0U);
  EXPECT_EQ(groups_.unfinished(group, false), 4U);
}

TEST_F(Groups, RefusesToBeAnotherKindOfGroupThanItIs) {
  must_enter({.name = "a", .max_hold = 2});
  for (const GroupWish& wish : {
           GroupWish{.name = "a", .kind = shm::GroupKind::kRanked, .rank = 0, .world = 2},
           GroupWish{.name = "a", .policy = shm::GroupPolicy::kSkip},
           GroupWish{.name = "a", .max_tries = 9},
           GroupWish{.name = "a", .max_hold = 3},
       }) {
    const Result<MemberPlace> place = enter(wish);
    ASSERT_FALSE(place.ok());
    EXPECT_EQ(place.error().code(), ErrorCode::kIncompatible);
    EXPECT_THAT(place.error().message(), HasSubstr("consumer group 'a' has"));
  }
  EXPECT_TRUE(enter({.name = "a"}).ok()) << "what is not said agrees";
}

TEST_F(Groups, ARankIsOneMembersAndOnlyOnce) {
  const auto wish = [](std::uint32_t rank) {
    return GroupWish{
        .name = "r", .kind = shm::GroupKind::kRanked, .rank = rank, .world = 2, .oldest = true};
  };
  const MemberPlace one = must_enter(wish(1));
  EXPECT_EQ(one.member, 1U);
  EXPECT_EQ(must_enter(wish(0)).member, 0U);
  const Result<MemberPlace> taken = enter(wish(1));
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(taken.error().message(),
              HasSubstr("rank 1 of consumer group 'r' is taken by process 77"));
  const Result<MemberPlace> beyond = enter(wish(2));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), ErrorCode::kInvalidArgument);
  groups_.leave(one, now_);
  EXPECT_TRUE(enter(wish(1)).ok());
}

TEST_F(Groups, ARankedGroupNeedsARank) {
  const Result<MemberPlace> place =
      enter({.name = "r", .kind = shm::GroupKind::kRanked, .world = 2});
  ASSERT_FALSE(place.ok());
  EXPECT_EQ(place.error().code(), ErrorCode::kInvalidArgument);
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    EXPECT_EQ(groups_.state(g), GroupState::kUnused) << "nothing was made";
  }
}

TEST_F(Groups, ASeventeenthMemberIsRefused) {
  for (int i = 0; i < 16; ++i) must_enter({.name = "a"});
  const Result<MemberPlace> place = enter({.name = "a"});
  ASSERT_FALSE(place.ok());
  EXPECT_EQ(place.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(place.error().message(), HasSubstr("16 members"));
}

TEST_F(Groups, ASeventeenthGroupIsRefused) {
  for (int i = 0; i < 16; ++i) must_enter({.name = "g" + std::to_string(i)});
  const Result<MemberPlace> place = enter({.name = "one-more"});
  ASSERT_FALSE(place.ok());
  EXPECT_EQ(place.error().code(), ErrorCode::kBusy);
}

// 4 slots a lane: a group with policy skip may hold 2 and leaves 2 to spare; no second one fits.
TEST_F(Groups, ASkippingGroupThatLeavesTooFewSlotsIsRefusedWithTheNumbers) {
  must_enter({.name = "a", .policy = shm::GroupPolicy::kSkip, .max_hold = 2});
  const Result<MemberPlace> place = enter({.name = "b", .max_hold = 1});
  ASSERT_FALSE(place.ok());
  EXPECT_EQ(place.error().code(), ErrorCode::kNoMemory);
  EXPECT_THAT(place.error().message(),
              AllOf(HasSubstr("group 'a'"), HasSubstr("needs 5 slots"), HasSubstr("has 4"),
                    HasSubstr("feed_output.slots to 5")));
}

TEST_F(Groups, BlockingGroupsNeedNoSpareSlots) {
  must_enter({.name = "a", .max_hold = 200});
  EXPECT_TRUE(enter({.name = "b", .max_hold = 200}).ok());
}

TEST_F(Groups, SlotsInUseAreThoseThatSomeGroupStillNeeds) {
  EXPECT_EQ(groups_.slots_used(), 0U);
  lanes_[0]->publish_all();
  EXPECT_EQ(groups_.slots_used(), 4U) << "nobody has come yet, so they wait";
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_TRUE(take(place, 2));
  EXPECT_EQ(groups_.slots_used(), 4U);
  ASSERT_TRUE(release(place, 2));
  EXPECT_EQ(groups_.slots_used(), 3U);
}

// ---- a member that spoils its group's page ------------------------------------------------------

class SpoiledGroups : public Groups {
 protected:
  SpoiledGroups() {
    bad_ = must_enter({.name = "bad", .oldest = true});
    good_ = must_enter({.name = "good", .oldest = true});
    answer();
    EXPECT_TRUE(lanes_[0]->publish());
  }
  shm::GroupPage& page() { return memory_->output().group(bad_.group); }
  // The first change that advance() tells of.
  std::string damage() {
    const auto changes = groups_.advance(now_);
    return changes.empty() ? "" : std::string(changes[0].damage);
  }

  MemberPlace bad_;
  MemberPlace good_;
};

TEST_F(SpoiledGroups, WhatMembersMayWriteIsNoDamage) {
  ASSERT_TRUE(take(bad_, 1));
  page().low.store(1);
  page().bell.store(99);
  page().members[bad_.member].taken.store(77);
  for (const auto state :
       {shm::MemberState::kAtEnd, shm::MemberState::kLeft, shm::MemberState::kLeftFailed}) {
    page().members[bad_.member].state.store(static_cast<std::uint32_t>(state));
    EXPECT_EQ(damage(), "");
  }
  EXPECT_EQ(groups_.state(bad_.group), GroupState::kActive);
}

TEST_F(SpoiledGroups, WhatNobodyMayWriteIsFoundAndEndsTheGroup) {
  const std::pair<const char*, std::function<void(shm::GroupPage&)>> deeds[] = {
      {"state", [](auto& page) { page.head.state.store(77); }},
      {"state", [](auto& page) { page.head.state.store(0); }},
      {"terms", [](auto& page) { page.head.policy = 1; }},
      {"terms", [](auto& page) { page.head.world = 0xffff; }},
      {"terms", [](auto& page) { std::memset(page.head.name, 'x', sizeof page.head.name); }},
      {"epoch", [](auto& page) { page.head.epoch.store(0); }},
      {"start", [](auto& page) { page.head.start.store(~0ULL); }},
      {"members", [](auto& page) { page.members[0].pid = 1; }},
      {"members", [](auto& page) { page.members[9].state.store(1); }},
      {"words", [](auto& page) { page.words[3].store(~0ULL); }},
      {"words", [](auto& page) { page.words[3].store(shm::encode_claim({.seq = 9999})); }},
      {"words", [](auto& page) { page.low.store(1ULL << 39); }},
  };
  for (const auto& [what, deed] : deeds) {
    deed(page());
    EXPECT_EQ(damage(), what);
    EXPECT_EQ(groups_.state(bad_.group), GroupState::kDraining) << what;
    EXPECT_EQ(groups_.state(good_.group), GroupState::kActive) << what;
    groups_.leave(bad_, now_);
    groups_.advance(now_);
    EXPECT_EQ(groups_.state(bad_.group), GroupState::kUnused) << what;
    bad_ = must_enter({.name = "bad", .oldest = true});
    answer();
    ASSERT_EQ(groups_.state(bad_.group), GroupState::kActive) << what;
  }
}

// Its claim is one that only its end would undo, and it never ends.
TEST_F(SpoiledGroups, NoLaneWaitsForThemAnyMore) {
  ASSERT_EQ(lanes_[0]->publish_all(), 3);
  for (std::uint64_t s = 1; s <= 4; ++s) {
    ASSERT_TRUE(take(good_, s) && release(good_, s));
    ASSERT_TRUE(take(bad_, s));
  }
  EXPECT_EQ(lanes_[0]->publish_all(), 0);
  page().head.policy = 2;
  groups_.advance(now_);
  page().head.state.store(static_cast<std::uint32_t>(GroupState::kActive));
  EXPECT_EQ(lanes_[0]->publish_all(), 4);
  EXPECT_EQ(groups_.unfinished(bad_.group, false), 0U);
}

TEST_F(SpoiledGroups, TheirMembersAreCountedByTheSupervisorAlone) {
  for (shm::Member& member : page().members) member.state.store(1);
  EXPECT_EQ(groups_.live_members(bad_.group), 1U);
  groups_.leave(bad_, now_);
  EXPECT_EQ(groups_.live_members(bad_.group), 0U);
}

TEST_F(SpoiledGroups, AClaimOfAMemberThatIsNotThereGoesBack) {
  word(bad_.group, 1)
      .store(shm::encode_claim({.seq = 1, .member = 7, .state = ClaimState::kTaken}));
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(bad_.group), GroupState::kActive) << "that alone is no proof of harm";
  EXPECT_TRUE(take(bad_, 1));
}

TEST_F(SpoiledGroups, OneThatHasLeftCanNotBringItsGroupBack) {
  groups_.leave(bad_, now_);
  groups_.close(bad_.group);
  groups_.advance(now_);
  page().head.state.store(static_cast<std::uint32_t>(GroupState::kActive));
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(bad_.group), GroupState::kUnused);
  ASSERT_TRUE(take(good_, 1) && release(good_, 1));
  page().head.state.store(static_cast<std::uint32_t>(GroupState::kActive));
  EXPECT_EQ(lanes_[0]->publish_all(), 4) << "no lane respects what it wrote";
}

TEST_F(Groups, ADeclaredGroupThatWasSpoiledIsMadeAnew) {
  ASSERT_TRUE(groups_.declare({.name = "train"}).ok());
  const MemberPlace place = must_enter({.name = "train"});
  memory_->output().group(place.group).head.kind = 77;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kDraining);
  groups_.leave(place, now_);
  groups_.advance(now_);
  answer();
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  EXPECT_TRUE(groups_.declared(place.group));
  ASSERT_TRUE(lanes_[0]->publish());
  EXPECT_TRUE(take(must_enter({.name = "train"}), 1));
}

// One who has left and lives may still have the page: the next groups get others, also if they
// come to another supervisor.
TEST_F(Groups, PagesThatALivingProcessMayHaveAreGivenToNobodyWhileThereAreOthers) {
  const process::Identity self{::getpid(), process::start_ticks(::getpid()).value()};
  const auto leave = [&](ConsumerGroups& groups, const MemberPlace& place) {
    groups.leave(place, now_);
    groups.advance(now_);
  };
  const MemberPlace kept =
      groups_.enter({.name = "kept", .rejoin_ms = 0}, self, now_).value_or_throw();
  answer();
  leave(groups_, kept);
  ConsumerGroups next(memory_->output());
  next.adopt();
  for (ConsumerGroups* groups : {&groups_, &next}) {
    for (std::uint32_t i = 0; i < 2 * shm::kGroupsMax; ++i) {
      const MemberPlace place =
          groups->enter({.name = "later", .rejoin_ms = 0}, kSomebody, now_).value_or_throw();
      EXPECT_NE(place.group, kept.group);
      lanes_[0]->attend();
      groups->advance(now_);
      leave(*groups, place);
      ASSERT_EQ(groups->state(place.group), GroupState::kUnused);
    }
    // All others are taken.
    std::vector<MemberPlace> taken;
    for (std::uint32_t i = 0; i < shm::kGroupsMax; ++i) {
      taken.push_back(groups->enter({.name = std::to_string(i), .rejoin_ms = 0}, kSomebody, now_)
                          .value_or_throw());
    }
    EXPECT_EQ(taken.back().group, kept.group);
    lanes_[0]->attend();
    groups->advance(now_);
    for (const MemberPlace& place : taken) leave(*groups, place);
  }
}

// A page says that it is another group's; whoever takes over believes his predecessor alone.
TEST_F(SpoiledGroups, AreNotAskedAtATakeoverWhoTheyAre) {
  std::memcpy(page().head.name, "good", 5);
  page().head.declared = 1;
  page().head.start.store(77);
  page().head.epoch.store(99);
  page().members[bad_.member].pid = 1;
  page().members[9].state.store(1);
  ConsumerGroups next(memory_->output());
  const auto members = next.adopt();
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(members[0].place, bad_);
  EXPECT_EQ(members[0].who, kSomebody);
  EXPECT_EQ(next.terms(bad_.group).name, "bad");
  EXPECT_FALSE(next.declared(bad_.group));
  EXPECT_EQ(next.start(bad_.group), 1U);
  EXPECT_EQ(next.epoch(bad_.group), groups_.epoch(bad_.group));
  // Whoever comes for "good" is beside its member, not in the page that took its name.
  EXPECT_EQ(next.enter({.name = "good"}, kSomebody, now_).value_or_throw().group, good_.group);
  EXPECT_EQ(next.live_members(bad_.group), 1U);
}

// A supervisor that died between its account and the page has not been heard by the group yet.
TEST_F(SpoiledGroups, AreBroughtUpToTheAccount) {
  page().head.state.store(static_cast<std::uint32_t>(GroupState::kJoining));
  page().members[bad_.member].state.store(static_cast<std::uint32_t>(shm::MemberState::kFree));
  ConsumerGroups next(memory_->output());
  EXPECT_EQ(next.adopt().size(), 2U);
  EXPECT_EQ(page().head.state.load(), static_cast<std::uint32_t>(GroupState::kActive));
  EXPECT_EQ(page().members[bad_.member].state.load(),
            static_cast<std::uint32_t>(shm::MemberState::kLive));
  next.advance(now_);
  EXPECT_EQ(next.state(bad_.group), GroupState::kActive) << "and nobody is barred for it";
}

// One that has left when nobody was there to be told.
TEST_F(SpoiledGroups, KeepForTheNextSupervisorWhoHasLeft) {
  EXPECT_EQ(groups_.left(bad_), std::nullopt);
  page().members[bad_.member].state.store(static_cast<std::uint32_t>(shm::MemberState::kLeft));
  ConsumerGroups next(memory_->output());
  EXPECT_EQ(next.adopt().size(), 2U) << "it may have batches to give back";
  EXPECT_EQ(next.left(bad_), ConsumerGroups::Leaving::kDone);
  EXPECT_EQ(next.left(good_), std::nullopt);
  page().members[bad_.member].state.store(
      static_cast<std::uint32_t>(shm::MemberState::kLeftFailed));
  EXPECT_EQ(next.left(bad_), ConsumerGroups::Leaving::kFailed);
}

// The next supervisor knows from the lanes' pages who was barred.
TEST_F(SpoiledGroups, StayBarredForTheNextSupervisor) {
  page().head.redeliver = 7;
  groups_.advance(now_);
  page().head.redeliver = 1;
  page().head.state.store(static_cast<std::uint32_t>(GroupState::kActive));
  ConsumerGroups next(memory_->output());
  EXPECT_EQ(next.adopt().size(), 2U);
  EXPECT_EQ(next.state(bad_.group), GroupState::kDraining);
  EXPECT_EQ(next.state(good_.group), GroupState::kActive);
}

// A feed in files whose processes have all died: what groups have finished was noted a moment
// before. Four slots; the group had 1 and 2 then, and finished 3 since.
class DeadGroups : public ::testing::TestWithParam<bool> {
 protected:
  DeadGroups() : directory_(::testing::TempDir() + "rf_dead_" + std::to_string(::getpid())) {
    std::filesystem::create_directory(directory_);
  }
  ~DeadGroups() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_P(DeadGroups, GoOnWithWhatIsWhole) {
  const bool redelivers = GetParam();
  const layout::FeedLayout layout = test::laid_out({.slots = 4});
  const shm::FeedId id = shm::random_feed_id();
  std::vector<std::string> files;
  {
    layout::FeedMemory memory(layout, shm::Storage{directory_}, {id, 1});
    memory.remove_files(false);
    files = memory.files();
    ConsumerGroups groups(memory.output());
    ASSERT_TRUE(groups.declare({.name = "g", .redeliver = redelivers, .max_hold = 4}).ok());
    const MemberPlace at = groups.enter({.name = "g"}, kSomebody, 1).value_or_throw();
    ProducingLane lane(memory, 0);
    const auto word = [&](std::uint64_t s) -> std::atomic<std::uint64_t>& {
      return memory.output().group(at.group).words[s % layout.outputs[0].geometry.descriptors];
    };
    const auto take = [&](std::uint64_t s) { return shm::claim_take(word(s), word(s), s, 0); };
    ASSERT_EQ(lane.publish_all(), 4);
    for (const std::uint64_t s : {1, 2}) ASSERT_TRUE(take(s) && shm::claim_finish(word(s), s, 0));
    ASSERT_TRUE(take(4));
    groups.note_words();
    ASSERT_TRUE(take(3) && shm::claim_finish(word(3), 3, 0));
    ASSERT_EQ(lane.publish_all(), 3) << "5, 6 and 7, in the slots of 1, 2 and 3";
  }
  Result<layout::FoundMemory> found = layout::find_memory(layout, id, files, {});
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->made_anew.size(), shm::kGroupsMax);
  layout::FeedMemory memory(layout, std::move(*found));
  memory.remove_files(true);
  ConsumerGroups groups(memory.output());
  const auto members = groups.adopt();
  ASSERT_EQ(members.size(), 1U);
  EXPECT_EQ(members[0].who, kSomebody);
  EXPECT_EQ(groups.leave(members[0].place, 1), 1U) << "4 was in his hand";
  const auto claim = [&](std::uint64_t s) {
    return shm::decode_claim(memory.output()
                                 .group(members[0].place.group)
                                 .words[s % layout.outputs[0].geometry.descriptors]
                                 .load());
  };
  EXPECT_TRUE(shm::claim_finished(claim(3), 3)) << "its bytes are those of 7 now";
  if (redelivers) {
    EXPECT_EQ(groups.next_batch(members[0].place.group), 4U);
    EXPECT_EQ(claim(4), (shm::Claim{.seq = 4, .tries = 1, .state = ClaimState::kAvail}));
    // They may have been delivered since it was noted, and say so.
    for (const std::uint64_t s : {5, 6, 7}) {
      EXPECT_EQ(claim(s), (shm::Claim{.seq = s, .tries = 1, .state = ClaimState::kAvail}));
    }
  } else {
    // Any of them may have been delivered since it was noted.
    EXPECT_EQ(groups.next_batch(members[0].place.group), 8U);
  }
  EXPECT_TRUE(groups.declared(members[0].place.group));
  EXPECT_EQ(groups.state(members[0].place.group), GroupState::kActive);
}
INSTANTIATE_TEST_SUITE_P(Redelivers, DeadGroups, ::testing::Bool());

class StarvedGroups : public Groups {
 protected:
  // A member of every page has left, and lives: to find that out takes memory.
  StarvedGroups() {
    const process::Identity self{::getpid(), process::start_ticks(::getpid()).value()};
    for (std::uint32_t i = 0; i < shm::kGroupsMax; ++i) {
      const MemberPlace place =
          groups_.enter({.name = "before", .rejoin_ms = 0}, self, now_).value_or_throw();
      answer();
      groups_.leave(place, now_);
      for (int turn = 0; turn < 2; ++turn) answer();
    }
  }
  // With the nth allocation refused.
  bool enters(const GroupWish& wish, std::int64_t nth) {
    return !test::throws_without_memory(nth, [&] { ASSERT_TRUE(enter(wish).ok()); });
  }
};

// A group without a member, which never had one, waits for nobody: it would hold up the feed.
TEST_F(StarvedGroups, AMemberThatIsRefusedMemoryLeavesNoGroupBehind) {
  std::int64_t refused = 0;
  while (!enters({.name = "a", .rejoin_ms = 0}, refused)) {
    ++refused;
    for (int turn = 0; turn < 3; ++turn) answer();
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      ASSERT_EQ(groups_.state(g), GroupState::kUnused) << "after allocation " << refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(StarvedGroups, AGroupIsNotPutBackForAMemberThatIsRefusedMemory) {
  ASSERT_EQ(lanes_[0]->publish_all(), 4);
  const MemberPlace first = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_TRUE(take(first, 1));
  ASSERT_TRUE(release(first, 1));
  std::int64_t refused = 0;
  while (!enters({.name = "a", .position = 1}, refused)) {
    ++refused;
    for (int turn = 0; turn < 3; ++turn) answer();
    ASSERT_EQ(groups_.state(first.group), GroupState::kActive) << "after allocation " << refused;
    ASSERT_EQ(groups_.live_members(first.group), 1U);
  }
  EXPECT_GT(refused, 0);
}

// The first changes that could not be told are told with the next ones.
TEST_F(StarvedGroups, WhatChangesIsToldAlsoIfThereWasNoMemoryToTellIt) {
  const MemberPlace place = must_enter({.name = "a"});
  for (const auto& lane : lanes_) lane->attend();
  EXPECT_TRUE(test::throws_without_memory(0, [&] { groups_.advance(now_); }));
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  const auto changes = groups_.advance(now_);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].state, GroupState::kActive);
}

TEST_F(Groups, WhatAGroupHasLostIsCountedForItsLife) {
  const MemberPlace skips = must_enter({.name = "skips",
                                        .oldest = true,
                                        .policy = shm::GroupPolicy::kSkip,
                                        .redeliver = false,
                                        .max_hold = 1});
  answer();
  for (int i = 0; i < 700; ++i) ASSERT_TRUE(lanes_[0]->publish());
  EXPECT_EQ(groups_.lost(skips.group), 700U - 4U) << "more than there are words";
  ASSERT_TRUE(take(skips, 700));
  groups_.leave(skips, now_);
  EXPECT_EQ(groups_.lost(skips.group), 700U - 4U + 1U);
}

TEST_F(Groups, TheFeedIsHeldUpByThoseWhoNeedTheOldestBatchOfALaneWithoutASlot) {
  ASSERT_TRUE(groups_.declare({.name = "eval"}).ok());
  const MemberPlace place = must_enter({.name = "train", .oldest = true});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  EXPECT_THAT(groups_.awaited(), IsEmpty()) << "there is room";
  lanes_[0]->publish_all();
  EXPECT_THAT(groups_.awaited(), ElementsAre(Awaited{0}, Awaited{place.group, place.member}));
  EXPECT_THAT(groups_.holding_up(), ElementsAre(0, place.group));
  for (std::uint64_t s = 1; s <= 4; ++s) {
    ASSERT_TRUE(take(place, s));
    EXPECT_THAT(groups_.held(place), ElementsAre(s));
    ASSERT_TRUE(release(place, s));
  }
  EXPECT_THAT(groups_.awaited(), ElementsAre(Awaited{0}));
  lanes_[0]->finish();
  EXPECT_THAT(groups_.awaited(), IsEmpty()) << "it has nothing more to write";
}

TEST_F(Groups, OfASharedGroupWhoeverHoldsTheBatchIsAwaitedAndElseEachOfThem) {
  const MemberPlace one = must_enter({.name = "two", .oldest = true});
  const MemberPlace other = must_enter({.name = "two"});
  answer();
  lanes_[0]->publish_all();
  EXPECT_THAT(groups_.awaited(),
              ElementsAre(Awaited{one.group, one.member}, Awaited{one.group, other.member}));
  ASSERT_TRUE(take(other, 1));
  EXPECT_THAT(groups_.awaited(), ElementsAre(Awaited{one.group, other.member}));
  // What stands in the page was written by members: a number that nobody has names nobody.
  word(one.group, 1)
      .store(shm::encode_claim({.seq = 1, .member = 200, .state = ClaimState::kTaken}));
  EXPECT_THAT(groups_.awaited(),
              ElementsAre(Awaited{one.group, one.member}, Awaited{one.group, other.member}));
}

TEST_F(Groups, OfARankedGroupTheRankIsAwaitedWhoseBatchItIs) {
  const MemberPlace place = must_enter(
      {.name = "ddp", .kind = shm::GroupKind::kRanked, .rank = 1, .world = 3, .oldest = true});
  answer();
  lanes_[0]->publish_all();
  EXPECT_THAT(groups_.awaited(), ElementsAre(Awaited{place.group})) << "batch 1 is that of rank 0";
  EXPECT_THAT(groups_.missing_ranks(place.group), ElementsAre(0, 2));
}

TEST_F(Groups, AGroupWhoseTermsNobodyGaveGoesSoonAfterItsLastMemberHasLeft) {
  const MemberPlace place = must_enter({.name = "brief", .oldest = true});
  answer();
  groups_.leave(place, now_, ConsumerGroups::Leaving::kDone);
  EXPECT_EQ(groups_.rejoin_left_ms(place.group, now_), kBriefMs);
  now_ += kBriefMs - 1;
  groups_.advance(now_);
  EXPECT_EQ(groups_.state(place.group), GroupState::kActive);
  ++now_;
  groups_.advance(now_);
  EXPECT_NE(groups_.state(place.group), GroupState::kActive);
}

TEST_F(Groups, AfterADeathAndWhereAWaitWasAskedForItStays) {
  const MemberPlace died = must_enter({.name = "died", .oldest = true});
  const MemberPlace asked = must_enter({.name = "asked", .oldest = true, .rejoin_ms = 60'000});
  const MemberPlace ranked = must_enter(
      {.name = "ranked", .kind = shm::GroupKind::kRanked, .rank = 0, .world = 1, .oldest = true});
  answer();
  groups_.leave(died, now_);
  groups_.leave(asked, now_, ConsumerGroups::Leaving::kDone);
  groups_.leave(ranked, now_, ConsumerGroups::Leaving::kDone);
  now_ += 59'999;
  groups_.advance(now_);
  for (const MemberPlace& place : {died, asked, ranked}) {
    EXPECT_EQ(groups_.state(place.group), GroupState::kActive) << place.group;
  }
  ++now_;
  groups_.advance(now_);
  for (const MemberPlace& place : {died, asked, ranked}) {
    EXPECT_NE(groups_.state(place.group), GroupState::kActive) << place.group;
  }
}

TEST_F(Groups, TheNextSupervisorKnowsThatNobodyAskedForAWait) {
  const MemberPlace place = must_enter({.name = "brief", .oldest = true});
  answer();
  ConsumerGroups after(memory_->output());
  after.adopt();
  EXPECT_TRUE(after.terms(place.group).brief);
  after.leave(place, now_, ConsumerGroups::Leaving::kDone);
  EXPECT_EQ(after.rejoin_left_ms(place.group, now_), kBriefMs);
}

TEST_F(Groups, WhoeverAsksForAnotherWorldIsToldTheGroups) {
  must_enter({.name = "ddp", .kind = shm::GroupKind::kRanked, .rank = 0, .world = 3});
  const auto refusal = [this](const GroupWish& wish) { return enter(wish).error().message(); };
  EXPECT_THAT(refusal({.name = "ddp", .kind = shm::GroupKind::kRanked, .rank = 1, .world = 2}),
              AllOf(HasSubstr("has a world of 3"), HasSubstr("but 2 was requested")));
  EXPECT_THAT(refusal({.name = "ddp"}), HasSubstr("give world 3 and a rank from 0 to 2"));
  EXPECT_THAT(refusal({.name = "ddp", .kind = shm::GroupKind::kShared}),
              HasSubstr("ranked with a world of 3"));
}

class Linger : public Groups {
 protected:
  std::optional<std::string> why(bool draining = false) {
    return process::reason_to_linger(groups_,
                                     {.draining = draining,
                                      .now_ms = now_,
                                      .ended_ms = ended_,
                                      .batches = memory_->output().batches_published(),
                                      .empty = memory_->output().batches_published() == 0});
  }
  std::uint64_t ended_ = 1000;
};

TEST_F(Linger, BatchesWaitForTheFirstTrainerUnlessSomebodyAskedForTheEnd) {
  lanes_[0]->publish_all();
  lanes_[0]->finish();
  now_ += 1'000'000;
  ASSERT_TRUE(why().has_value());
  EXPECT_THAT(*why(), HasSubstr("4 batches wait for the first trainer"));
  EXPECT_EQ(why(true), std::nullopt);
}

TEST_F(Linger, AFeedWithoutBatchesDoesNotWaitForEver) {
  lanes_[0]->finish();
  EXPECT_TRUE(why().has_value());
  now_ += process::kEmptyFeedMs;
  EXPECT_EQ(why(), std::nullopt);
}

TEST_F(Linger, AFeedWithoutBatchesWaitsAMomentForADeclaredGroupsFirstMember) {
  ASSERT_TRUE(groups_.declare({.name = "train"}).ok());
  lanes_[0]->finish();
  EXPECT_TRUE(why().has_value()) << "one that is being started meets the end, not a missing feed";
  EXPECT_EQ(why(true), std::nullopt);
  const MemberPlace place = must_enter({.name = "train"});
  groups_.leave(place, now_);
  EXPECT_EQ(why(), std::nullopt) << "it has met it";
  now_ += process::kEmptyFeedMs;
  EXPECT_EQ(why(), std::nullopt);
}

TEST_F(Linger, UntilTheLastBatchIsGivenBack) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  lanes_[0]->finish();
  ASSERT_TRUE(take(place, 1));
  EXPECT_TRUE(why().has_value()) << "a death would give it to somebody else";
  EXPECT_TRUE(why(true).has_value());
  ASSERT_TRUE(release(place, 1));
  EXPECT_EQ(why(), std::nullopt);
}

TEST_F(Linger, NotForAMemberThatHasSeenTheEndAndKeepsItsLastBatch) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  lanes_[0]->finish();
  ASSERT_TRUE(take(place, 1));
  memory_->output()
      .group(place.group)
      .members[place.member]
      .state.store(static_cast<std::uint32_t>(shm::MemberState::kAtEnd));
  EXPECT_EQ(why(), std::nullopt);
}

TEST_F(Linger, ForATrainerThatMayComeBackAndNoLongerThanThat) {
  const MemberPlace place = must_enter({.name = "a", .oldest = true, .rejoin_ms = 500});
  answer();
  lanes_[0]->publish_all();
  lanes_[0]->finish();
  groups_.leave(place, now_);
  EXPECT_TRUE(why().has_value());
  EXPECT_EQ(why(true), std::nullopt);
  now_ += 500;
  EXPECT_EQ(why(), std::nullopt);
}

TEST_F(Linger, ForADeclaredGroupThatNobodyHasCalledForYet) {
  ASSERT_TRUE(groups_.declare({.name = "train"}).ok());
  lanes_[0]->publish_all();
  lanes_[0]->finish();
  now_ += 1'000'000;
  ASSERT_TRUE(why().has_value());
  EXPECT_THAT(*why(), HasSubstr("first trainer of group 'train'"));
  EXPECT_TRUE(why(true).has_value()) << "until drain_timeout_s";
}

TEST_F(Linger, ADrainWithoutAnybodyToTakeTheBatchesIsHopeless) {
  EXPECT_TRUE(process::drain_is_hopeless(groups_, false));
  const MemberPlace place = must_enter({.name = "a"});
  EXPECT_FALSE(process::drain_is_hopeless(groups_, false));
  groups_.leave(place, now_);
  EXPECT_TRUE(process::drain_is_hopeless(groups_, false));
  ASSERT_TRUE(groups_.declare({.name = "train"}).ok());
  EXPECT_FALSE(process::drain_is_hopeless(groups_, false));
}

TEST_F(Linger, ADrainIsNotHopelessWhenTheTrainersHaveHadAllAndLeft) {
  const layout::OutputMemory output = memory_->output();
  const auto is_hopeless = [&] { return process::drain_is_hopeless(groups_, output.all_closed()); };
  EXPECT_TRUE(is_hopeless()) << "nobody has ever come";
  const MemberPlace place = must_enter({.name = "a", .oldest = true, .rejoin_ms = 500});
  answer();
  ASSERT_TRUE(lanes_[0]->publish());
  ASSERT_TRUE(lanes_[0]->publish());
  EXPECT_FALSE(output.all_closed());
  lanes_[0]->finish();
  EXPECT_TRUE(output.all_closed());
  ASSERT_TRUE(take(place, 1) && release(place, 1));
  groups_.leave(place, now_);
  EXPECT_TRUE(is_hopeless()) << "batch 2 waits for somebody";
  const MemberPlace next = must_enter({.name = "a", .rejoin_ms = 500});
  EXPECT_FALSE(is_hopeless());
  ASSERT_TRUE(take(next, 2) && release(next, 2));
  groups_.leave(next, now_);
  EXPECT_FALSE(is_hopeless());
}

// ---- an output that keeps the newest

class GroupsOfTheNewest : public Groups {
 protected:
  GroupsOfTheNewest() : Groups({.slots = 6, .keep_newest = true}) {
    EXPECT_TRUE(groups_.declare(
        {.name = kDefaultGroup, .policy = shm::GroupPolicy::kSkip, .max_hold = kMaxHoldYielding}));
  }
  int publish(int count) {
    int published = 0;
    int in_vain = 0;  // a lane that makes a group leave tries again
    while (published < count && in_vain < 3) {
      const bool done = lanes_[0]->publish();
      published += done ? 1 : 0;
      in_vain = done ? 0 : in_vain + 1;
      answer();
    }
    return published;
  }
};

TEST_F(GroupsOfTheNewest, BatchesGoOnWithoutAnyTrainer) {
  EXPECT_EQ(publish(600), 600);
  EXPECT_EQ(memory_->output().newest_batch(), 600U);
}

// After so many batches as there are descriptors the one that is held is needed: its group has to
// leave, and must be there again when the trainer is gone, or nothing would ever be written again.
TEST_F(GroupsOfTheNewest, BatchesGoOnAfterATrainerThatKeptOneForLong) {
  const MemberPlace place = must_enter({.name = kDefaultGroup, .policy = shm::GroupPolicy::kSkip});
  ASSERT_EQ(publish(1), 1);
  ASSERT_TRUE(take(place, 1));
  EXPECT_EQ(publish(600), 600) << "he keeps his slot, and stops nobody";
  EXPECT_EQ(groups_.state(place.group), GroupState::kDraining);
  groups_.leave(place, now_);
  for (int i = 0; i < 3; ++i) answer();
  EXPECT_EQ(publish(600), 600);
  const MemberPlace again = must_enter({.name = kDefaultGroup, .policy = shm::GroupPolicy::kSkip});
  EXPECT_EQ(groups_.state(again.group), GroupState::kActive);
  groups_.leave(again, now_);
  now_ += 1'000'000;
  answer();
  EXPECT_EQ(publish(600), 600);
}

}  // namespace
}  // namespace ringfeed::control
