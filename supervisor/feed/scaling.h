// Gives stages more or fewer lanes while the feed runs: on request, or because the feed was taken
// over with a configuration that has another number. One change at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "supervisor/feed/answers.h"
#include "supervisor/feed/report.h"
#include "supervisor/feed/scale_task.h"

namespace ringfeed {
class DataLoaderConfig;
class Request;
}  // namespace ringfeed

namespace ringfeed::process {

class Scaling {
 public:
  struct Hooks {
    std::function<void(std::uint64_t ticket)> park;  // as for Parking
    Report event;
    std::function<void(const std::exception&)> survive;  // reports what a callback has thrown
  };
  // What else the feed is doing at the time of a request.
  struct Moment {
    bool ending = false;
    bool takes_snapshot = false;
  };

  // All references outlive this.
  Scaling(EventLoop& loop, const layout::FeedMemory& memory, const DataLoaderConfig& config,
          const Answers& answers, Hooks hooks);

  // True: the reply must be sent now. Else it comes when the stage has its lanes, or cannot have
  // them.
  [[nodiscard]] bool take(control::ConnectionId connection, const Request& request, Reply& reply,
                          const Moment& moment);
  [[nodiscard]] bool under_way() const { return task_ != nullptr; }
  void give_up(const std::string& why);

  // The feed was taken over with the lanes that it had; the configuration says how many there
  // should be.
  void note_taken_over();
  // Starts the next change towards the configuration, if one is due. Called while the feed runs and
  // nothing else parks the lanes.
  void follow_configuration();

 private:
  [[nodiscard]] std::string stage_name(std::uint32_t stage) const;
  void scale(std::uint32_t node, std::uint32_t lanes, std::uint64_t patience_ms);
  void done(const Result<ScaleTask::Facts>& result) noexcept;
  void answer(const Asker& asker, std::uint32_t node, const Result<ScaleTask::Facts>& result) const;
  void report(std::uint32_t node, const Result<ScaleTask::Facts>& result, bool asked);

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  const DataLoaderConfig& config_;
  const Answers& answers_;
  Hooks hooks_;
  std::unique_ptr<ScaleTask> task_;  // the one under way
  std::optional<Asker> asker_;
  std::vector<std::uint32_t> due_;  // nodes that were taken over
};

}  // namespace ringfeed::process
