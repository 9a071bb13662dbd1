// Takes one snapshot while the feed runs.
//
//   copying    a thread copies all segments and, as long as that gains something, what has changed
//              meanwhile (changes.h); lanes work on
//   parking    every lane is asked to stand still between two steps
//   at rest    what the supervisor or trainers write even now (control, feed control, groups) is
//              copied at once, here; the thread copies what has changed in all others, to memory;
//              then everyone's rest is checked, and the lanes go on
//   saving     the thread writes that, makes all of it durable and gives it its name
//
// A lane that dies while it stands still does no harm: its next incarnation stands still as well. A
// lane that went on (its process believed the supervisor dead) makes the snapshot void.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "supervisor/feed/parking.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/metrics/progress.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed {
class SnapshotManifest;
}

namespace ringfeed::process {

class SnapshotTask {
 public:
  struct Facts {
    std::string directory;
    std::uint64_t bytes = 0;         // of all segments
    std::uint64_t newest_batch = 0;  // published when the lanes stood still
    std::uint64_t pause_us = 0;      // from the order to park to the order to go on
    std::uint64_t total_ms = 0;
  };
  struct Hooks {
    // Parks all lanes under this ticket; 0: they go on.
    std::function<void(std::uint64_t ticket)> park;
    // Completes the manifest. Called while the lanes stand still, with the copies of the segments
    // that others write even then (empty for other segments).
    std::function<void(SnapshotManifest&, const std::vector<std::vector<std::byte>>&)> describe;
    std::function<void(const Result<Facts>&)> done;  // not called if the task is given up
    // The thread has nothing left to do. This call may destroy the task.
    std::function<void()> ended;
  };

  // Errors come through done(), later.
  SnapshotTask(EventLoop& loop, const layout::FeedMemory& memory, std::string directory,
               Hooks hooks);
  // Gives up if it is not done, and waits for the thread.
  ~SnapshotTask();
  SnapshotTask(const SnapshotTask&) = delete;
  SnapshotTask& operator=(const SnapshotTask&) = delete;

  // The lanes go on and nothing is left behind. The thread may still be in a call that does not
  // return, such as a write to a disk that hangs. This function does not wait for it.
  void give_up();
  // How far it is; nullopt: it is over.
  [[nodiscard]] std::optional<metrics::Progress> progress() const;
  // The task is done or given up; only the thread may still have to end.
  [[nodiscard]] bool over() const { return over_; }
  // Has the thread ended, or does it end within this time? The destructor waits without a limit.
  [[nodiscard]] bool ended_within(std::uint64_t ms);

 private:
  // The words that the thread says and waits for.
  enum class Word { kNothing, kCopied, kRest, kRestCopied, kPublish, kDone };

  void work() noexcept;
  void write();
  [[nodiscard]] Error failure() const noexcept;
  void guarded(const std::function<void()>& part);
  void say(Word word);
  bool await(Word word);  // false: given up
  void on_word();
  void park();
  void copy_small();
  void go_on();
  void finish(std::optional<Error> error);
  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  std::string directory_;
  Hooks hooks_;
  Parking parking_;
  Facts facts_;
  std::unique_ptr<SnapshotManifest> manifest_;
  std::uint64_t began_ms_ = 0;
  std::vector<std::uint64_t> commits_;  // by lane, at rest
  bool over_ = false;

  shm::Fd said_;  // an eventfd, for the loop
  std::mutex mutex_;
  std::condition_variable changed_;
  Word from_thread_ = Word::kNothing;
  Word to_thread_ = Word::kNothing;
  bool thread_over_ = false;
  std::optional<Error> failure_;               // of the thread
  std::vector<std::vector<std::byte>> small_;  // by segment; empty: the thread copies it
  std::atomic<bool> given_up_{false};
  // For whoever looks on.
  enum class Part { kCopying, kFollowing, kSaving };
  std::atomic<Part> part_{Part::kCopying};
  snapshot::Store::Looks looks_;
  std::thread thread_;
};

}  // namespace ringfeed::process
