#include "workers/runtime/calls.h"

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "proto/control.pb.h"
#include "proto/worker.pb.h"
#include "workers/runtime/log.h"

namespace ringfeed {
namespace {

// The answers of several lanes to one call; the last one that comes sends them.
class CallAnswers {
 public:
  CallAnswers(int socket, std::uint64_t id, std::size_t lanes) : fd_(socket), left_(lanes) {
    reply_.set_id(id);
    reply_.mutable_stage_control();
    if (left_ == 0) send();
  }
  // Of the lane of this stage; without a response: it has none to give.
  void add(const std::string& stage, const std::optional<std::string>& response) {
    const std::lock_guard lock(mutex_);
    if (response) {
      StageControlAnswer& answer = *reply_.mutable_stage_control()->add_answers();
      answer.set_stage(stage);
      answer.set_response(*response);
    }
    if (--left_ == 0) send();
  }

 private:
  void send() const {
    const std::string bytes = reply_.SerializeAsString();
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  int fd_;
  std::size_t left_;
  std::mutex mutex_;
  FromWorker reply_;
};

}  // namespace

void pass_on_call(int socket, const std::string& packet,
                  const std::vector<const LaneSetup*>& setups,
                  const std::vector<std::unique_ptr<LaneRuntime>>& lanes) {
  ToWorker call;
  if (!call.ParseFromString(packet)) return;
  if (call.has_log()) set_log_level(call.log().level());
  if (!call.has_stage_control()) return;
  const StageControlCall& asked = call.stage_control();
  std::vector<std::size_t> asked_lanes;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const std::string& stage = setups[i]->stage();
    if (lanes[i]->takes_messages() && (!asked.has_stage() || asked.stage() == stage)) {
      asked_lanes.push_back(i);
    }
  }
  const auto answers = std::make_shared<CallAnswers>(socket, call.id(), asked_lanes.size());
  for (const std::size_t i : asked_lanes) {
    lanes[i]->post({.key = asked.key(),
                    .request = asked.request(),
                    .answer = [answers, stage = setups[i]->stage()](
                                  const std::optional<std::string>& response) {
                      answers->add(stage, response);
                    }});
  }
}

}  // namespace ringfeed
