// The lock of a feed: one supervisor per name; and its record, for whoever comes after a supervisor
// that was killed, to take over the feed or to clean up.
//
// <feed>.lock is empty; the lock is flock() on it, and the kernel drops it with the process.
// <feed>.state is the record, replaced as a whole (rename) whenever a worker is started:
//   boot <id>                              of the system: after another boot nothing lives
//   supervisor <pid> <start_ticks>
//   feed_id <32 hexadecimal digits>
//   seed <number>
//   config <hexadecimal digits>            the serialized DataLoaderConfig, as it was given
//   groups <hexadecimal digits>            one with nothing but the stage groups that were formed
//   snapshot <path>                        the newest one that this feed has taken
//   worker <pid> <start_ticks> <stage group>
//   file <path>
// A record without its lock is the trace of a dead supervisor.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/process/identity.h"

namespace ringfeed::control {

struct LockRecord {
  process::Identity supervisor = {};
  // By stage group: whoever was given the memory. Those that an earlier supervisor started come
  // first, and may be beside another one of their group.
  std::vector<std::pair<std::string, process::Identity>> workers = {};
  std::vector<std::string> files = {};
  std::string boot = {};
  std::string feed_id = {};  // 16 bytes
  std::uint64_t seed = 0;
  std::string config = {};
  std::string groups = {};
  std::string snapshot = {};

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
  // The record is this one, or, with an Error (kIo, kNoMemory), the one before: a full directory,
  // or one that is gone or read-only, keeps no feed from going on.
  [[nodiscard]] Status write(const LockRecord& record);
  // Whether the lock's name is still that of the file that is locked: directories are removed,
  // replaced and covered by others while a feed runs.
  [[nodiscard]] bool in_place() const;
  // Locks what has the name now, or will have; then the file before is given up. `feed_id`: of
  // this feed. Errors: kBusy (the name is another feed's by now), kIo; the lock is the one before.
  [[nodiscard]] Status take_again(const std::string& feed, const std::string& feed_id);
  // Removes both files, unless they are another's by now, and gives up the lock.
  void remove();

 private:
  FeedLock() = default;
  shm::Fd fd_;
  std::string path_;
  LockRecord left_behind_;
};

// The system's present boot; "" if it does not say.
[[nodiscard]] std::string boot_id();

// The workers of the record that still live.
[[nodiscard]] std::vector<std::pair<std::string, process::Identity>> living_workers(
    const LockRecord& record);

// The record of a feed whose supervisor is dead and whose workers go on: the next `ringfeed run`
// can take it over. nullopt: there is no such feed. Takes no lock, so it is in nobody's way.
[[nodiscard]] std::optional<LockRecord> find_orphan(const std::string& lock_path);

// Ends the workers that a dead supervisor has left, by number and start time, and removes its
// files. Returns one line for each thing done.
[[nodiscard]] std::vector<std::string> clear_remains(const LockRecord& record);

}  // namespace ringfeed::control
