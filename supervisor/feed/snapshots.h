// Snapshots of a running feed, one at a time: asked for, taken by a task, answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "supervisor/feed/answers.h"
#include "supervisor/feed/report.h"
#include "supervisor/feed/snapshot_task.h"

namespace ringfeed {
class Request;
class SnapshotManifest;
}  // namespace ringfeed

namespace ringfeed::process {

class Snapshots {
 public:
  struct Hooks {
    std::function<void(std::uint64_t ticket)> park;  // as of Parking
    // Says in the manifest what only the feed knows.
    std::function<void(SnapshotManifest&, const std::vector<std::vector<std::byte>>& copied)>
        describe;
    // newest() is another one: the feed's record is to name it.
    std::function<void()> on_taken;
    Report event;
  };

  // All references outlive this.
  Snapshots(EventLoop& loop, const layout::FeedMemory& memory, const std::string& feed,
            const Answers& answers, Hooks hooks);

  // True: the reply, a refusal, is to be sent now. Else it comes when the snapshot stands.
  // `is_scaled`: lanes get another number just now.
  [[nodiscard]] bool take(control::ConnectionId connection, const Request& request, Reply& reply,
                          bool is_scaled);
  // Is one being taken? One that was given up may still have its thread.
  [[nodiscard]] bool under_way() const { return task_ && !task_->over(); }
  void give_up(const std::string& why);
  // Whether nothing of one is left within this time.
  [[nodiscard]] bool ended_within(std::uint64_t ms) { return !task_ || task_->ended_within(ms); }
  // The directory of the newest; empty: none was taken.
  [[nodiscard]] const std::string& newest() const { return newest_; }

 private:
  void done(const Result<SnapshotTask::Facts>& result);
  void answer(const Result<SnapshotTask::Facts>& result);

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  const std::string& feed_;
  const Answers& answers_;
  Hooks hooks_;
  std::unique_ptr<SnapshotTask> task_;  // under way, or its thread is
  Asker asker_;
  std::string newest_;
};

}  // namespace ringfeed::process
