// Specification of supervisor/metrics/bottleneck.h: who limits a feed, by shares of its lanes'
// time.
//
//   provider > loader > pool > pool.read > unpacker > sampler > tensors > trainers
#include "supervisor/metrics/bottleneck.h"

#include <gmock/gmock.h>

#include "proto/metrics.pb.h"

namespace ringfeed::metrics {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Shares {
  double busy = 0;
  double starved = 0;
  double blocked = 0;
};

constexpr Shares kStarved{0.05, 0.95, 0};
constexpr Shares kBlocked{0.05, 0, 0.95};
constexpr Shares kBusy{0.98, 0.01, 0.01};
constexpr Shares kIdle{0, 1, 0};

enum Node { kProvider, kLoader, kPool, kRead, kUnpacker, kSampler, kTensors };

class Bottlenecks : public ::testing::Test {
 protected:
  Bottlenecks() {
    const char* const names[] = {"provider", "loader",  "pool",   "pool",
                                 "unpacker", "sampler", "tensors"};
    for (std::size_t i = 0; i < 7; ++i) {
      NodeLoad node;
      node.stage = names[i];
      node.lanes = 1;
      if (i != kProvider && i != kPool) {
        node.more_lanes = "set threads: {} in the configuration (threads={} in Python)";
      }
      if (i > 0) node.reads_from = {{.from = i - 1, .records = 64, .bytes = 1 << 20}};
      node.read_by = 1;
      nodes_.push_back(node);
    }
    nodes_[kRead].part = "read";
    nodes_[kPool].redraws = true;
    nodes_[kPool].reads_from.push_back({.from = kRead});  // what cannot be read
    nodes_[kUnpacker].lanes_max = 4;
    output_.feed = "lc0";
    output_.node = kTensors;
    output_.batches_per_s = 10;
    output_.batches = 1000;
    output_.trainers = 1;
    machine_ = {.cores = 16, .busy = 2, .idle = 12};
  }
  void set(Node node, const Shares& shares) {
    nodes_[node].busy = shares.busy;
    nodes_[node].starved = shares.starved;
    nodes_[node].blocked = shares.blocked;
    nodes_[node].cpu = shares.busy;
  }
  void set(std::initializer_list<Shares> all) {
    int node = 0;
    for (const Shares& shares : all) set(static_cast<Node>(node++), shares);
  }
  BottleneckProto find() const {
    BottleneckProto found;
    find_bottleneck(nodes_, machine_, output_, found);
    return found;
  }
  // An endless feed whose window is full: nothing comes from the first two stages any more.
  void steady(Node limit, const Shares& shares = kBusy) {
    set({kIdle, kIdle, kBlocked, kBlocked, kBlocked, kBlocked, kBlocked});
    set(limit, shares);
    for (int after = limit + 1; after <= kTensors; ++after) set(static_cast<Node>(after), kStarved);
  }

  std::vector<NodeLoad> nodes_;
  MachineLoad machine_;
  OutputLoad output_;
};

TEST_F(Bottlenecks, EachStageIsNamedWhenItIsBusyBetweenBlockedAndStarvedOnes) {
  for (const Node limit : {kPool, kRead, kUnpacker, kSampler, kTensors}) {
    steady(limit);
    const BottleneckProto found = find();
    EXPECT_EQ(found.kind(), BottleneckProto::STAGE) << found.sentence();
    EXPECT_EQ(found.stage(), nodes_[limit].stage);
    EXPECT_EQ(found.part(), nodes_[limit].part);
  }
}

TEST_F(Bottlenecks, BeforeTheFirstBatchItIsTheStageThatTheFirstWindowWaitsFor) {
  set({kBlocked, kBusy, kStarved, kStarved, kStarved, kStarved, kStarved});
  EXPECT_EQ(find().stage(), "loader");
  set({kBusy, kStarved, kStarved, kStarved, kStarved, kStarved, kStarved});
  EXPECT_EQ(find().stage(), "provider");
}

TEST_F(Bottlenecks, ASourceWithNothingNewIsForWantOfFiles) {
  set({kIdle, kStarved, kStarved, kStarved, kStarved, kStarved, kStarved});
  const BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::FILES);
  EXPECT_EQ(found.stage(), "provider");
  EXPECT_THAT(found.sentence(), HasSubstr("no new files"));
  EXPECT_FALSE(found.has_batches_per_s_next());
}

TEST_F(Bottlenecks, WhoWorksOnRequestIsNotShortOfFiles) {
  nodes_.resize(1);
  output_.node = 0;
  set(kProvider, kStarved);
  nodes_[kProvider].on_request = "ask for more ahead";
  BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::TRAINERS);
  EXPECT_THAT(found.sentence(), HasSubstr("'provider' waits 95 % of the time to be asked"));
  output_.trainers_wait = 0.5;
  found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::QUEUE);
  EXPECT_THAT(found.sentence(), HasSubstr("wait for one 50 % of the time"));
  EXPECT_THAT(found.sentence(), HasSubstr("ask for more ahead"));
}

// It may be busy with that, and the machine full of it.
TEST_F(Bottlenecks, AStageThatSaysThatItGivesNothingIsTheReasonInItsOwnWords) {
  steady(kPool);
  nodes_[kPool].core_wait = 0.9;
  machine_ = {.cores = 1, .busy = 1, .idle = 0};
  nodes_[kPool].gives_nothing = true;
  nodes_[kPool].reason = "gives nothing: in 10 passes ...";
  const BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::GIVES_NOTHING);
  EXPECT_EQ(found.stage(), "pool");
  EXPECT_EQ(found.sentence(), "stage 'pool' gives nothing: in 10 passes ...");
}

TEST_F(Bottlenecks, AnIdleSourceBehindAFullWindowIsNoReason) {
  steady(kUnpacker);
  EXPECT_EQ(find().kind(), BottleneckProto::STAGE);
}

TEST_F(Bottlenecks, TheTrainersAreItWhenTheLastStageWaitsForSlots) {
  set({kIdle, kIdle, kBlocked, kBlocked, kBlocked, kBlocked, {0.5, 0, 0.5}});
  output_.held_up_by = "run-a";
  BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::TRAINERS);
  EXPECT_THAT(found.sentence(), HasSubstr("group run-a"));
  EXPECT_THAT(found.sentence(), HasSubstr("up to 20.0 batches/s instead of 10.0"));
  EXPECT_FALSE(found.has_stage());
  machine_.idle = 1;
  EXPECT_THAT(find().sentence(), HasSubstr("up to 15.0 batches/s instead of 10.0, with the proc"));
  machine_.idle = 0;
  EXPECT_THAT(find().sentence(), Not(HasSubstr("could deliver")));
  output_.trainers = 0;
  found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::TRAINERS);
  EXPECT_THAT(found.sentence(), HasSubstr("no trainer takes batches"));
}

TEST_F(Bottlenecks, AShortWaitForASlotIsNoTrainersFault) {
  steady(kTensors, {0.97, 0, 0.03});
  EXPECT_EQ(find().stage(), "tensors");
}

TEST_F(Bottlenecks, OfStagesThatWaitForEachOtherTheBusierOneIsNamed) {
  steady(kUnpacker);
  set(kUnpacker, {0.6, 0.1, 0.3});
  set(kSampler, {0.85, 0.15, 0});
  set(kTensors, {0.3, 0.7, 0});
  EXPECT_EQ(find().stage(), "sampler");
}

TEST_F(Bottlenecks, AQueueThatBothItsEndsWaitForIsNamedWithWhatWouldDo) {
  steady(kSampler, {0.5, 0.1, 0.4});
  set(kTensors, {0.4, 0.6, 0});
  nodes_[kTensors].reads_from[0].records = 1;
  BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::QUEUE) << found.sentence();
  EXPECT_EQ(found.stage(), "sampler");
  EXPECT_EQ(found.setting(), "queue_capacity");
  EXPECT_EQ(found.setting_now(), 1U);
  EXPECT_EQ(found.setting_useful(), 64U);
  EXPECT_THAT(found.sentence(), HasSubstr("2.0 times as much (10.0 to 20.0 batches/s)"));
  nodes_[kTensors].reads_from[0].records = 1000;
  nodes_[kTensors].reads_from[0].record_bytes = 100'000;
  found = find();
  EXPECT_EQ(found.setting(), "queue_bytes") << "ten records of that size fill it";
  EXPECT_EQ(found.setting_useful(), std::uint64_t{4} << 20);
  // What else could be waited for: another input, or another reader.
  nodes_[kSampler].read_by = 2;
  EXPECT_EQ(find().kind(), BottleneckProto::STAGE);
}

TEST_F(Bottlenecks, TooFewSlotsAreNamedAndNotTheTrainers) {
  set({kIdle, kIdle, kBlocked, kBlocked, kBlocked, kBlocked, {0.4, 0, 0.6}});
  output_.slots = 1;
  output_.trainers_wait = 0.4;
  const BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::QUEUE) << found.sentence();
  EXPECT_EQ(found.stage(), "tensors");
  EXPECT_EQ(found.setting_useful(), 8U);
  EXPECT_THAT(found.sentence(), HasSubstr("set queue_capacity: 8 (it is 1) of stage 'tensors'"));
  output_.slots_given = true;
  EXPECT_THAT(find().sentence(), HasSubstr("set slots: 8 (it is 1) of feed_output"));
  EXPECT_THAT(found.sentence(),
              HasSubstr("the slots are too few: the trainers wait for a batch 40 %"));
  output_.trainers_wait = 0;
  EXPECT_EQ(find().kind(), BottleneckProto::TRAINERS);
}

TEST_F(Bottlenecks, WhatLeavesOutMoreThanHalfIsTheHeadlineWhateverElseIsSlow) {
  for (const double blocked : {0.0, 0.9}) {
    steady(kUnpacker);
    set(kTensors, {0.1, 0.9 - blocked, blocked});
    nodes_[kSampler].left_out = 0.5;
    nodes_[kSampler].what_left_out = "5 of 10 samples (5 ValueError)";
    EXPECT_NE(find().kind(), BottleneckProto::LEAVES_OUT);
    nodes_[kSampler].left_out = 1;
    const BottleneckProto found = find();
    EXPECT_EQ(found.kind(), BottleneckProto::LEAVES_OUT) << found.sentence();
    EXPECT_EQ(found.sentence(),
              "stage 'sampler' leaves out 100 % of what it gets: 5 of 10 samples (5 ValueError)");
    nodes_[kSampler].left_out = 0;
  }
}

TEST_F(Bottlenecks, ALaneReadyWithoutAProcessorIsTheMachinesFaultOnlyIfNoneIsIdle) {
  steady(kTensors);
  nodes_[kTensors].cpu = 0.5;
  nodes_[kTensors].core_wait = 0.48;
  EXPECT_EQ(find().kind(), BottleneckProto::STAGE) << "twelve are idle";
  machine_ = {.cores = 2, .busy = 1.9, .idle = 0.05};
  const BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::MACHINE);
  EXPECT_EQ(found.stage(), "tensors");
  EXPECT_THAT(found.sentence(), HasSubstr("none of its 2 processors is idle"));
  EXPECT_THAT(found.sentence(), Not(HasSubstr("ringfeed scale")));
  nodes_[kTensors].cpu = 0.1;
  nodes_[kTensors].core_wait = 0.35;
  EXPECT_EQ(find().kind(), BottleneckProto::STAGE) << "it waits longer for something else";
}

TEST_F(Bottlenecks, AnotherLaneBringsItsShareUpToTheNextBottleneck) {
  steady(kUnpacker);
  nodes_[kUnpacker].lanes = 2;
  BottleneckProto found = find();
  EXPECT_NEAR(found.batches_per_s_next(), 15, 1e-6);
  EXPECT_EQ(found.next(), "machine") << "with twelve idle processors it goes a long way";
  EXPECT_THAT(found.sentence(), HasSubstr("1.5 times as much (10.0 to 15.0 batches/s)"));
  EXPECT_THAT(found.sentence(), HasSubstr("`ringfeed scale lc0 unpacker 3`"));
  set(kSampler, {0.8, 0.2, 0});
  found = find();
  EXPECT_NEAR(found.batches_per_s_next(), 12.5, 1e-6);
  EXPECT_EQ(found.next(), "sampler");
  EXPECT_EQ(found.lanes_useful(), 3U);
  EXPECT_THAT(found.sentence(), HasSubstr("then 'sampler' is as slow"));
}

TEST_F(Bottlenecks, WhereALaneBringsNothingThatIsSaid) {
  steady(kUnpacker);
  set(kSampler, {0.97, 0.03, 0});
  BottleneckProto found = find();
  EXPECT_EQ(found.stage(), "sampler") << "met first, and it waits for nobody";
  steady(kUnpacker);
  machine_ = {.cores = 2, .busy = 1.9, .idle = 0.05};
  found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::STAGE) << "it got its processor";
  EXPECT_THAT(found.sentence(), HasSubstr("almost nothing: no processor is idle"));
  EXPECT_EQ(found.lanes_useful(), 1U);
}

TEST_F(Bottlenecks, WhatCannotBeScaledIsSaidWithWhatCanBeDone) {
  steady(kPool);
  EXPECT_THAT(find().sentence(), HasSubstr("cannot be shared among lanes"));
  steady(kSampler);
  EXPECT_THAT(find().sentence(),
              HasSubstr("set threads: 2 in the configuration (threads=2 in Python)"));
  steady(kUnpacker);
  nodes_[kUnpacker].lanes = 4;
  EXPECT_THAT(find().sentence(), HasSubstr("set threads: 5 in the configuration"));
  steady(kPool);
  nodes_[kPool].if_slow = "What it does can be done before it";
  EXPECT_THAT(find().sentence(), AllOf(HasSubstr("What it does can be done before it"),
                                       Not(HasSubstr("cannot be shared"))));
}

TEST_F(Bottlenecks, AStageThatWaitsForADiskIsSaidToWait) {
  steady(kRead);
  nodes_[kRead].cpu = 0.1;
  EXPECT_THAT(find().sentence(), HasSubstr("computing 10 %, the rest waiting for files"));
}

TEST_F(Bottlenecks, AFeedAtItsEndHasNoBottleneck) {
  steady(kTensors);
  nodes_[kTensors].lanes = 0;
  const BottleneckProto found = find();
  EXPECT_EQ(found.kind(), BottleneckProto::UNKNOWN);
  EXPECT_THAT(found.sentence(), HasSubstr("no lane that makes batches"));
}

TEST_F(Bottlenecks, StagesThatHaveEndedAreLeftOut) {
  steady(kRead);
  nodes_[kProvider].lanes = nodes_[kLoader].lanes = nodes_[kPool].lanes = 0;
  EXPECT_EQ(find().stage(), "pool");
}

TEST_F(Bottlenecks, OfSeveralInputsTheBusyOneIsNamed) {
  steady(kTensors);
  NodeLoad other;
  other.stage = "other";
  other.lanes = 1;
  other.busy = 0.99;
  nodes_.push_back(other);
  set({kIdle, kStarved, kStarved, kStarved, kStarved, kStarved, kStarved});
  nodes_[kTensors].reads_from = {{.from = kSampler}, {.from = 7}};
  EXPECT_EQ(find().kind(), BottleneckProto::STAGE) << "one input alone waits for files";
  EXPECT_EQ(find().stage(), "other");
}

}  // namespace
}  // namespace ringfeed::metrics
