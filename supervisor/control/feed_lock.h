// The lock file of a feed: one supervisor per name, and what is left to clean when it was killed.
//
// Lines of the file, rewritten whole by the supervisor whenever a worker is started:
//   supervisor <pid> <start_ticks>
//   worker <pid> <start_ticks> <stage group>
//   file <path>
// The lock itself is flock() on the file: the kernel drops it with the process, so a file without
// its lock is the trace of a dead supervisor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/process/identity.h"

namespace ringfeed::control {

struct LockRecord {
  process::Identity supervisor;
  std::vector<std::pair<std::string, process::Identity>> workers;  // by stage group
  std::vector<std::string> files;

  [[nodiscard]] std::string text() const;
  // What can be understood of a file that may be cut short.
  [[nodiscard]] static LockRecord parse(const std::string& text);
};

class FeedLock {
 public:
  // Takes the lock. Errors: kBusy names the live supervisor; kIo.
  [[nodiscard]] static Result<FeedLock> take(const std::string& path, const std::string& feed);
  FeedLock(FeedLock&&) noexcept = default;
  FeedLock& operator=(FeedLock&&) noexcept = default;

  // What the last holder left, if it did not end properly.
  [[nodiscard]] const LockRecord& left_behind() const { return left_behind_; }
  void write(const LockRecord& record);
  // Removes the file and gives up the lock.
  void remove();

 private:
  FeedLock() = default;
  shm::Fd fd_;
  std::string path_;
  LockRecord left_behind_;
};

// Ends the workers that a dead supervisor has left, by number and start time, and removes its
// files. Returns one line for each thing done.
[[nodiscard]] std::vector<std::string> clear_remains(const LockRecord& record);

}  // namespace ringfeed::control
