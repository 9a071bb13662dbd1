// Messages to stages: passes them on to the processes of their groups, and answers when all of
// these have answered.
//
// Only stages read messages and answers. Here they are bytes; at most the numbers of their fields
// are looked at. If a process has died, its successor is asked again once it is ready; stages know
// by the key which messages they have answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "supervisor/feed/answers.h"
#include "supervisor/group/group_process.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed {
class DataLoaderConfig;
class PipelinePlan;
class Request;
class StageControlAnswer;
class StageControlCall;
class StageControlReply;
}  // namespace ringfeed

namespace ringfeed::process {

class StageCalls {
 public:
  using Workers = std::vector<std::unique_ptr<GroupProcess>>;  // by stage group, as in the layout
  using Heard = std::function<void(const StageControlReply&)>;

  // All references outlive this. `on_answer` sees every answer of a stage group.
  StageCalls(EventLoop& loop, const DataLoaderConfig& config, const PipelinePlan& plan,
             const layout::FeedLayout& layout, const Workers& workers, const Answers& answers,
             Heard on_answer);

  // True: the reply, a refusal, must be sent now. Else the answer comes when all have answered, or
  // when the time is over.
  [[nodiscard]] bool take(control::ConnectionId connection, const Request& request, Reply& reply);
  // The group has a process that is ready, has found this supervisor, or has ended. It is asked
  // again what the process before may not have answered, or what had no way to it.
  void ask_again(std::size_t group);
  void on_answer(std::uint64_t call, std::size_t group, const StageControlReply& answer);

 private:
  // A call, passed on to some workers.
  struct Call {
    control::ConnectionId connection = 0;
    std::set<std::size_t> awaited;  // stage groups that have not answered
    std::unique_ptr<StageControlCall> asked;
    std::unique_ptr<Reply> reply;
    EventLoop::TimerId timer = 0;
  };
  struct PastAnswer {
    std::uint64_t key = 0;
    std::unique_ptr<StageControlAnswer> answer;
  };

  [[nodiscard]] std::set<std::size_t> groups_of(const StageControlCall& asked) const;
  void begin(std::uint64_t id, control::ConnectionId connection, const Request& request,
             std::set<std::size_t> groups);
  void send(std::uint64_t id, std::size_t group);
  void end(std::uint64_t id);
  void give_up(std::uint64_t id);
  void add_answers(std::size_t group, const StageControlCall& asked,
                   const StageControlReply& answer, StageControlReply& reply);

  EventLoop& loop_;
  const DataLoaderConfig& config_;
  const PipelinePlan& plan_;
  const layout::FeedLayout& layout_;
  const Workers& workers_;
  const Answers& answers_;
  Heard on_answer_;
  std::map<std::uint64_t, Call> calls_;
  // The last answers of each stage group, oldest first. A message that comes again after its lane
  // has finished still gets its answer.
  std::map<std::size_t, std::deque<PastAnswer>> past_answers_;
  // Starts at a number that no earlier supervisor is likely to have used, so that a late answer to
  // that one's call is not taken for an answer to ours.
  std::uint64_t next_call_;
};

}  // namespace ringfeed::process
