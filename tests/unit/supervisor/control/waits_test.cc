// Specification of supervisor/control/waits.h: who is told for whom the feed waits, and who hears
// that others have waited for it.
#include "supervisor/control/waits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "tests/unit/supervisor/feed_maker.h"

namespace ringfeed::control {
namespace {

using test::ProducingLane;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A feed of four slots with one lane, which has filled them; trainers are this process.
class WaitsOfAFeed : public ::testing::Test {
 protected:
  WaitsOfAFeed()
      : memory_(test::feed_memory({})),
        groups_(memory_->output()),
        lane_(*memory_, 0),
        waits_(
            memory_->output(), groups_,
            [this](const MemberPlace& place) {
              const auto at = trainers_.find(place);
              return at == trainers_.end() ? TrainerFacts() : at->second;
            },
            [this](bool trouble, std::string_view event, const std::string& values) {
              said_.push_back(std::string(trouble ? "! " : "") + std::string(event) + " " + values);
            }) {}

  MemberPlace enter(const GroupWish& wish, const std::string& client) {
    const process::Identity self{::getpid(), *process::start_ticks(::getpid())};
    const MemberPlace place = groups_.enter(wish, self, now_).value_or_throw();
    trainers_[place] = {self, client};
    lane_.attend();
    groups_.advance(now_);
    return place;
  }
  void take(const MemberPlace& at, std::uint64_t s) {
    std::atomic<std::uint64_t>& word = memory_->output().group(at.group).words[s % descriptors()];
    ASSERT_TRUE(shm::claim_take(word, word.load(), s, static_cast<std::uint8_t>(at.member)));
    memory_->output().group(at.group).members[at.member].last_ns.store(now_ * 1'000'000);
  }
  void give_back(const MemberPlace& at, std::uint64_t s) {
    std::atomic<std::uint64_t>& word = memory_->output().group(at.group).words[s % descriptors()];
    ASSERT_TRUE(shm::claim_finish(word, s, static_cast<std::uint8_t>(at.member)));
  }
  std::uint64_t descriptors() const { return memory_->output().layout().geometry.descriptors; }
  WaitReply ask(const MemberPlace& who, std::uint64_t waited_ms = 5000) {
    WaitReply reply;
    waits_.ask(who, waited_ms, now_, reply);
    return reply;
  }

  std::unique_ptr<layout::FeedMemory> memory_;
  ConsumerGroups groups_;
  ProducingLane lane_;
  std::map<MemberPlace, TrainerFacts> trainers_;
  std::vector<std::string> said_;
  Waits waits_;
  std::uint64_t now_ = 100'000;
};

TEST_F(WaitsOfAFeed, WhoeverWaitsHearsWhoIsIdleSinceWhenWithWhatAndWhatToDo) {
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py");
  const MemberPlace idle = enter({.name = "idle", .oldest = true}, "notebook");
  EXPECT_THAT(ask(busy).awaited(), IsEmpty()) << "there is room";
  lane_.publish_all();
  take(idle, 1);
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  now_ += 57'000;
  const WaitReply reply = ask(busy);
  ASSERT_EQ(reply.awaited_size(), 1);
  const AwaitedTrainer& awaited = reply.awaited(0);
  EXPECT_EQ(awaited.group(), "idle");
  EXPECT_EQ(awaited.member(), idle.member);
  EXPECT_EQ(awaited.pid(), static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(awaited.idle_ms(), 57'000U);
  EXPECT_EQ(awaited.held(), 1U);
  EXPECT_EQ(awaited.command(), escaped(process::program_name(trainers_.at(idle).who)));
  EXPECT_THAT(awaited.text(),
              AllOf(HasSubstr(fmt::format("member 0 (process {}: ", ::getpid())),
                    HasSubstr("last took or gave back a batch 57 s ago and holds batch 1"),
                    Not(HasSubstr("kill")), HasSubstr("policy=\"skip\"")));
  EXPECT_THAT(
      waits_.text(now_).value_or(""),
      AllOf(HasSubstr("the feed waits for group 'idle': 4 batches behind, 1 member attached"),
            HasSubstr("57 s ago"), Not(HasSubstr("busy"))));
  EXPECT_THAT(waits_.idle(now_, 5000), HasSubstr("; group 'idle': member 0"));
  EXPECT_EQ(waits_.idle(now_, 58'000), "") << "not so long";
}

TEST_F(WaitsOfAFeed, TheLogHasALineAtFirstAndEachMinuteAndWhenItIsOver) {
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py");
  const MemberPlace idle = enter({.name = "idle", .oldest = true}, "notebook");
  lane_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  now_ += 5000;
  ask(busy);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], AllOf(HasSubstr("! group_holds_up group=idle member=0 pid="),
                              HasSubstr("for_ms=5000"), HasSubstr("command=")));
  now_ += 59'999;
  ask(busy);
  EXPECT_EQ(said_.size(), 1U);
  ++now_;
  ask(busy);
  EXPECT_EQ(said_.size(), 2U);
  waits_.look(now_);
  EXPECT_EQ(said_.size(), 2U) << "it is still so";
  take(idle, 1);
  give_back(idle, 1);
  now_ += 1000;
  waits_.look(now_);
  ASSERT_EQ(said_.size(), 3U);
  EXPECT_THAT(said_[2],
              AllOf(HasSubstr("group_goes_on group=idle member=0"), HasSubstr("held_up_ms=66000")));
}

TEST_F(WaitsOfAFeed, WhoeverComesBackHearsWhoHasWaitedForHim) {
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py\x1b[31m");
  const MemberPlace idle = enter({.name = "idle", .oldest = true}, "notebook");
  lane_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  WaitReply nobody;
  waits_.come_back(idle, now_, nobody);
  EXPECT_FALSE(nobody.has_held_up_ms()) << "nobody has asked";
  ask(busy);
  now_ += 30'000;
  WaitReply reply;
  waits_.come_back(idle, now_, reply);
  EXPECT_EQ(reply.held_up_ms(), 35'000U);
  EXPECT_THAT(reply.held_up(),
              AllOf(HasSubstr("group 'busy' member 0 (process "), HasSubstr("train.py\\x1b"),
                    HasSubstr("(group 'idle', member 0) for 35 s")));
  WaitReply again;
  waits_.come_back(idle, now_, again);
  EXPECT_FALSE(again.has_held_up_ms()) << "once";
}

TEST_F(WaitsOfAFeed, NobodyIsToldOfItself) {
  const MemberPlace one = enter({.name = "two", .oldest = true}, "a");
  const MemberPlace other = enter({.name = "two"}, "b");
  lane_.publish_all();
  take(one, 1);
  const WaitReply reply = ask(one);
  EXPECT_THAT(reply.awaited(), IsEmpty());
  ASSERT_EQ(ask(other).awaited_size(), 1);
  EXPECT_EQ(ask(other).awaited(0).member(), one.member);
}

TEST_F(WaitsOfAFeed, AGroupWithoutATrainerSaysHowLongItStays) {
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py");
  const MemberPlace gone = enter({.name = "gone", .oldest = true}, "crashed");
  lane_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  groups_.leave(gone, now_);
  trainers_.erase(gone);
  now_ += 23'000;
  const WaitReply reply = ask(busy);
  ASSERT_EQ(reply.awaited_size(), 1);
  EXPECT_FALSE(reply.awaited(0).has_member());
  EXPECT_EQ(reply.awaited(0).text(),
            "it has had no trainer for 23 s, and leaves the feed in 37 s if none comes");
}

TEST_F(WaitsOfAFeed, ADeclaredGroupThatNobodyReadsSaysSo) {
  ASSERT_TRUE(groups_.declare({.name = "eval"}).ok());
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py");
  lane_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  ASSERT_EQ(ask(busy).awaited_size(), 1);
  EXPECT_THAT(ask(busy).awaited(0).text(), HasSubstr("the configuration declares it"));
}

TEST_F(WaitsOfAFeed, WhatAMemberWroteInItsPageIsNotBelieved) {
  const MemberPlace busy = enter({.name = "busy", .oldest = true}, "train.py");
  const MemberPlace idle = enter({.name = "idle", .oldest = true}, std::string(5000, '\n'));
  lane_.publish_all();
  for (std::uint64_t s = 1; s <= 4; ++s) {
    take(busy, s);
    give_back(busy, s);
  }
  shm::GroupPage& page = memory_->output().group(idle.group);
  page.members[idle.member].last_ns.store(~std::uint64_t{0});  // has not come yet
  page.words[9 % descriptors()].store(
      shm::encode_claim({.seq = 1'000'000, .member = 0, .state = shm::ClaimState::kTaken}));
  const WaitReply reply = ask(busy);
  ASSERT_EQ(reply.awaited_size(), 1);
  EXPECT_EQ(reply.awaited(0).idle_ms(), 0U);
  EXPECT_EQ(reply.awaited(0).held(), 0U);
  EXPECT_LT(reply.ByteSizeLong(), 4000U);
}

}  // namespace
}  // namespace ringfeed::control
