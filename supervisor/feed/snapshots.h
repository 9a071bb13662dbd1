// Takes snapshots of a running feed on request, one at a time, each by a task, and answers the
// request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
    std::function<void(std::uint64_t ticket)> park;  // as for Parking
    // Writes into the manifest what only the feed knows.
    std::function<void(SnapshotManifest&, const std::vector<std::vector<std::byte>>& copied)>
        describe;
    // newest() has changed: the feed's record must name it.
    std::function<void()> on_taken;
    Report event;
  };

  // All references outlive this.
  Snapshots(EventLoop& loop, const layout::FeedMemory& memory, const std::string& feed,
            const Answers& answers, Hooks hooks);

  // True: the reply, a refusal, must be sent now. Else it comes when the snapshot is complete.
  // `is_scaled`: a stage's number of lanes is just being changed.
  [[nodiscard]] bool take(control::ConnectionId connection, const Request& request, Reply& reply,
                          bool is_scaled);
  // One that nobody has asked for: false: not now. The result comes through `done`.
  [[nodiscard]] bool take_own(const std::string& directory,
                              std::function<void(const Result<SnapshotTask::Facts>&)> done);
  // Is a snapshot being taken? One that was given up may still have its thread.
  [[nodiscard]] bool under_way() const { return task_ && !task_->over(); }
  // How far it is; nullopt: there is none.
  [[nodiscard]] std::optional<metrics::Progress> progress() const {
    return task_ ? task_->progress() : std::nullopt;
  }
  void give_up(const std::string& why);
  // Is nothing left of a snapshot within this time?
  [[nodiscard]] bool ended_within(std::uint64_t ms) { return !task_ || task_->ended_within(ms); }
  // The directory of the newest snapshot; empty: none was taken.
  [[nodiscard]] const std::string& newest() const { return newest_; }

 private:
  void done(const Result<SnapshotTask::Facts>& result);
  void begin(const std::string& directory);
  void tell(const Result<SnapshotTask::Facts>& result);
  void answer(const Result<SnapshotTask::Facts>& result);

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  const std::string& feed_;
  const Answers& answers_;
  Hooks hooks_;
  std::unique_ptr<SnapshotTask> task_;  // the one under way, or one whose thread still runs
  Asker asker_;                         // of a snapshot that was asked for
  std::function<void(const Result<SnapshotTask::Facts>&)> own_;  // of one that was not
  std::string newest_;
};

}  // namespace ringfeed::process
