// Gives stage groups a fresh process, or another program, on request.
//
// Another program is asked for its plan first: it may take over only lanes that it would have laid
// out in the same way. The client gets the answer when the new process is ready or has been
// refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "supervisor/feed/answers.h"
#include "supervisor/group/group_process.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed {
class DataLoaderConfig;
class PipelinePlan;
class Request;
}  // namespace ringfeed

namespace ringfeed::process {

class Restarts {
 public:
  using Workers = std::vector<std::unique_ptr<GroupProcess>>;  // by stage group, as in the layout

  // All references outlive this.
  Restarts(EventLoop& loop, const DataLoaderConfig& config, const PipelinePlan& plan,
           const layout::FeedLayout& layout, const Workers& workers, const Answers& answers);

  // True: the reply, a refusal, must be sent now.
  [[nodiscard]] bool take(control::ConnectionId connection, const Request& request, Reply& reply);
  // The group's process is ready, or was refused for this reason. The waiting clients are told.
  void ready(const std::string& group, pid_t pid);
  void refused(const std::string& group, const std::string& reason) noexcept;

 private:
  [[nodiscard]] std::string other_plan(std::uint32_t group, const std::string& binary,
                                       const PipelinePlan& now) const;
  void replace(control::ConnectionId connection, std::uint32_t group, const std::string& binary,
               Reply& reply);
  void on_plan(const Asker& asker, std::uint32_t group, const std::string& binary,
               const Result<PipelinePlan>& plan);

  EventLoop& loop_;
  const DataLoaderConfig& config_;
  const PipelinePlan& plan_;
  const layout::FeedLayout& layout_;
  const Workers& workers_;
  const Answers& answers_;
  std::multimap<std::string, Asker> waiting_;  // by stage group
  int plans_asked_ = 0;                        // programs that have not answered yet
};

}  // namespace ringfeed::process
