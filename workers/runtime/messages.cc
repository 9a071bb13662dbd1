// Messages to a lane's stage: taken in by any thread, answered between two steps.
#include "proto/stages.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/worker/control.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/lane_words.h"

namespace ringfeed {

void LaneRuntime::post(LaneMessage message) {
  {
    const std::lock_guard lock(messages_mutex_);
    if (!over_) {
      messages_.push_back(std::move(message));
      posted_.store(true, std::memory_order_relaxed);  // relaxed: ordered by the bell and the mutex
      shm::ring(parts_.bell->rings);
      return;
    }
  }
  message.answer(std::nullopt);
}

// Each message is a step of its own; one that was answered before gets the same answer.
void LaneRuntime::answer_messages() noexcept {
  std::vector<LaneMessage> messages;
  {
    const std::lock_guard lock(messages_mutex_);
    messages.swap(messages_);
    posted_.store(false, std::memory_order_relaxed);  // relaxed: as above
  }
  const ControlBox* const box = stage_->control_box();
  for (LaneMessage& message : messages) {
    StageControlRequest request;
    if (box == nullptr || message.key == 0 || !request.ParseFromString(message.request)) {
      message.answer(std::nullopt);
      continue;
    }
    begin_attempt();
    Step step(*this);
    std::optional<std::string> answer = box->find(step, message.key);
    if (!answer) {
      StageControlResponse response;
      stage_->control(step, request, response);
      if (response.ByteSizeLong() == 0) {  // it is for another kind of stage
        commit(now_ns());
        message.answer(std::nullopt);
        continue;
      }
      answer = response.SerializeAsString();
      box->keep(step, message.key, *answer);
      RF_FAILPOINT("runtime.lane.message");
    }
    commit(now_ns());
    RF_FAILPOINT("runtime.lane.message_done");
    message.answer(std::move(answer));
  }
}

void LaneRuntime::refuse_messages() noexcept {
  std::vector<LaneMessage> messages;
  {
    const std::lock_guard lock(messages_mutex_);
    over_ = true;
    messages.swap(messages_);
  }
  for (LaneMessage& message : messages) message.answer(std::nullopt);
}

}  // namespace ringfeed
