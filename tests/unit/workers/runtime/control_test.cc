// Messages to stages: each takes effect between two steps, exactly once, whatever dies.
#include "ringfeed/worker/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "proto/control.pb.h"
#include "tests/support/rig/lane_rig.h"
#include "tests/unit/workers/runtime/test_stages.h"

namespace ringfeed {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the tests' own helpers
using ::testing::ElementsAre;

// Passes records on, and counts messages: each answer says how many there were with it.
class Counting final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : control(layout), messages(layout.word()) {}
    ControlBox control;
    Word messages;
  };
  explicit Counting(const StageContext& context)
      : state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        forward_(forward(context)) {}
  StepStatus step(Step& step) noexcept override { return forward_(step); }
  [[nodiscard]] const ControlBox* control_box() const noexcept override { return &state_.control; }
  void control(Step& step, const StageControlRequest& request,
               StageControlResponse& response) noexcept override {
    const std::uint64_t messages = step.load(state_.messages) + 1;
    step.store(state_.messages, messages);
    response.mutable_chunk_pool_response()->set_chunk_anchor(
        fmt::format("{} {}", request.chunk_pool_request().set_chunk_anchor(), messages));
  }

 private:
  State state_;
  StepFunction forward_;
};

std::string request(const std::string& text) {
  StageControlRequest message;
  message.mutable_chunk_pool_request()->set_set_chunk_anchor(text);
  return message.SerializeAsString();
}

class Messages : public ::testing::Test {
 protected:
  Messages() {
    rig.add_source("in", 1, {.capacity = 4, .bytes = 4096});
    NodeSpec spec = function_node({}, forward);
    StateLayout layout;
    (void)Counting::State(layout);
    spec.state_bytes = layout.bytes();
    spec.create = [](const StageContext& context) { return std::make_unique<Counting>(context); };
    rig.add_node("count", std::move(spec));
    rig.add_sink("out", "count");
    rig.build();
    lane = rig.lanes_of("count").front();
  }
  // Posts the message; what is answered to it goes to `answers`.
  void post(std::uint64_t key, const std::string& bytes) {
    rig.lane(lane).post({.key = key, .request = bytes, .answer = [this](const auto& response) {
                           StageControlResponse message;
                           answers.push_back(!response ? "nothing"
                                             : message.ParseFromString(*response)
                                                 ? message.chunk_pool_response().chunk_anchor()
                                                 : "damaged");
                         }});
  }
  LaneRig rig;
  std::size_t lane = 0;
  std::vector<std::string> answers;
};

TEST_F(Messages, AreAnsweredBetweenTwoRounds) {
  EXPECT_TRUE(rig.lane(lane).takes_messages());
  EXPECT_FALSE(rig.lane(rig.lanes_of("out").front()).takes_messages());
  post(7, request("a"));
  post(8, request("b"));
  EXPECT_THAT(answers, ElementsAre());
  rig.round(lane);
  EXPECT_THAT(answers, ElementsAre("a 1", "b 2"));
  rig.feed("in", {.bytes = "x"});
  rig.finish("in");
  rig.run();
  EXPECT_EQ(texts(rig.got("out")), (std::vector<std::string>{"x"}));
}

TEST_F(Messages, ThatComeAgainGetTheSameAnswer) {
  for (int life = 0; life < 3; ++life) {
    post(7, request("a"));
    post(8, request("b"));
    post(7, request("a"));
    rig.round(lane);
    EXPECT_THAT(answers, ElementsAre("a 1", "b 2", "a 1")) << life;
    answers.clear();
    rig.restart(lane);
  }
}

TEST_F(Messages, AreRememberedSixteenAtATime) {
  for (std::uint64_t key = 1; key <= 100; ++key) {
    post(key, request(std::to_string(key)));
    rig.round(lane);
    ASSERT_EQ(answers.back(), fmt::format("{} {}", key, key));
    if (key % 7 == 0) rig.restart(lane);
    for (std::uint64_t back = key > 15 ? key - 15 : 1; back <= key; ++back) {
      post(back, request("again"));
      rig.round(lane);
      ASSERT_EQ(answers.back(), fmt::format("{} {}", back, back));
    }
  }
}

TEST_F(Messages, ThatCannotBeReadAreAnsweredWithNothing) {
  post(1, "\xff\xff");
  post(0, request("without a key"));
  rig.round(lane);
  EXPECT_THAT(answers, ElementsAre("nothing", "nothing"));
}

TEST_F(Messages, ToALaneThatEndsAreAnsweredWithNothing) {
  rig.finish("in");
  post(1, request("a"));
  EXPECT_TRUE(rig.run_in_threads());
  // It was answered by the stage, or the lane had ended; never is it forgotten.
  ASSERT_EQ(answers.size(), 1U);
  post(2, request("b"));
  EXPECT_THAT(answers.back(), "nothing");
}

TEST_F(Messages, WakeALaneThatSleeps) {
  std::atomic<bool> answered{false};
  std::thread asker;
  EXPECT_TRUE(rig.run_in_threads([&] {
    if (!asker.joinable()) {
      asker = std::thread([&] {
        rig.lane(lane).post(
            {.key = 5, .request = request("a"), .answer = [&](const auto&) { answered = true; }});
      });
    }
    return answered.load();
  }));
  asker.join();
}

#ifdef RINGFEED_FAILPOINTS
// Whoever asks does not know whether the dead lane had carried the message out: it asks again.
TEST_F(Messages, TakeEffectOnceWhereverTheLaneDies) {
  constexpr std::array kPoints = {"runtime.lane.message", "shm.journal.before_commit",
                                  "shm.journal.after_commit", "shm.journal.carry_out",
                                  "runtime.lane.message_done"};
  std::mt19937_64 random(3);
  std::uint64_t deaths = 0;
  for (std::uint64_t key = 1; key <= 60; ++key) {
    const auto ask = [&](LaneRuntime& runtime) {
      runtime.post(
          {.key = key, .request = request(std::to_string(key)), .answer = [](const auto&) {}});
    };
    while (random() % 4 != 0) {
      deaths += rig.die(lane, kPoints[random() % kPoints.size()], 1 + random() % 2, ask) ? 1 : 0;
    }
    answers.clear();
    post(key, request(std::to_string(key)));
    rig.round(lane);
    ASSERT_THAT(answers, ElementsAre(fmt::format("{} {}", key, key)));
  }
  EXPECT_GT(deaths, 10U);
}
#endif

}  // namespace
}  // namespace ringfeed
