// Snapshots that a feed takes by itself (SnapshotConfig): when, where, and how many stay.
//
// One is begun when it is due and the disk has room for it; if it fails, it is tried again a minute
// later. When one is complete and the feed's record names it, older ones are removed, by a thread
// of their own: taking away a large file lasts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "supervisor/feed/snapshot_task.h"
#include "supervisor/snapshot/series.h"

namespace ringfeed {
class DataLoaderConfig;
}

namespace ringfeed::process {

class AutoSnapshots {
 public:
  using Done = std::function<void(const Result<SnapshotTask::Facts>&)>;
  struct Hooks {
    // Begins a snapshot; false: not now.
    std::function<bool(const std::string& directory, Done done)> take;
    // What keeps it from being taken; empty: nothing does.
    std::function<void(const std::string& text)> on_problem;
  };

  // `bytes`: of the whole feed. The configuration outlives this.
  AutoSnapshots(const DataLoaderConfig& config, std::uint64_t bytes, Hooks hooks);
  ~AutoSnapshots();
  AutoSnapshots(const AutoSnapshots&) = delete;
  AutoSnapshots& operator=(const AutoSnapshots&) = delete;

  // Called often while the feed runs; takes one if it is due.
  void look(std::uint64_t now_ms, std::uint64_t newest_batch);

 private:
  [[nodiscard]] bool due(std::uint64_t now_ms, std::uint64_t newest_batch) const;
  [[nodiscard]] std::string no_room() const;
  void done(const Result<SnapshotTask::Facts>& result);
  void prune();

  const DataLoaderConfig& config_;
  std::uint64_t bytes_;
  Hooks hooks_;
  std::uint64_t begun_ms_ = 0;     // the last one, or the feed; 0: look() was not called yet
  std::uint64_t begun_batch_ = 0;  // the newest one then
  std::uint64_t not_before_ms_ = 0;
  std::string problem_;
  std::thread pruner_;
};

}  // namespace ringfeed::process
