// The lock of a feed: one supervisor per name; and its record, for whoever comes after a supervisor
// that was killed, to take over the feed or to clean up.
//
// <feed>.lock is empty; the lock is flock() on it, and the kernel drops it with the process.
// Beside it every worker keeps another one there, for reading (OFD, by a descriptor that it
// inherits and does nothing with): as long as one of them lives, in whatever namespace and whatever
// /proc shows of it, the kernel says so.
//
// Both files are regular ones of this user: what somebody else has put in their place is neither
// believed nor waited for.
//
// <feed>.state is the record, replaced as a whole (rename) whenever a worker is started:
//   record 2                               its format
//   boot <id>                              of the system: after another boot nothing lives
//   namespaces <pid> <time>                inodes: in which process numbers and start times count
//   lock <device> <inode>                  of the file that the workers keep a lock on
//   supervisor <pid> <start_ticks>
//   feed_id <32 hexadecimal digits>
//   seed <number>
//   config <hexadecimal digits>            the serialized DataLoaderConfig, as it was given
//   groups <hexadecimal digits>            one with nothing but the stage groups that were formed
//   snapshot <path>                        the newest one that this feed has taken
//   worker <pid> <start_ticks> <stage group>
//   file <path>
//   making <mark> <directory>              files with that mark are being made there, and belong to
//                                          nothing yet
//   over                                   the feed has ended, and is being put away
//   failed <reason>                        it has failed; its record stays until another feed of the
//                                          name begins, or `ringfeed clean`
//   end
// In paths and reasons \n is a line's end and \\ a backslash. A record without its lock is the
// trace of a dead supervisor; one without its last line has been damaged.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/os/identity.h"

namespace ringfeed::control {

// The namespaces that give process numbers and start times their meaning; 0: the system has none.
struct Namespaces {
  std::uint64_t pid = 0;
  std::uint64_t time = 0;
  friend bool operator==(const Namespaces&, const Namespaces&) = default;
};
// Of this process. Errors: kIo, also if /proc is that of another pid namespace: then nothing can be
// said about any process.
[[nodiscard]] Result<Namespaces> own_namespaces();

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
  std::optional<Namespaces> namespaces = {};  // nullopt: not noted
  std::uint64_t lock_device = 0;
  std::uint64_t lock_inode = 0;
  std::string making_mark = {};
  std::string making_directory = {};
  bool over = false;
  std::string failed = {};  // why

  [[nodiscard]] std::string text() const;
  // What can be understood of a file that may be damaged, and whether it is whole.
  [[nodiscard]] static LockRecord parse(const std::string& text, bool* whole = nullptr);
};

class FeedLock {
 public:
  // A worker that was killed keeps its lock until its memory has been taken down.
  static constexpr std::chrono::milliseconds kDyingMs{1000};

  // Takes the lock. Errors: kBusy names the live supervisor; kIo (also if there is a record and it
  // cannot be read, or one of the two files is no regular one of this user).
  [[nodiscard]] static Result<FeedLock> take(const std::string& path, const std::string& feed);
  FeedLock(FeedLock&&) noexcept = default;
  FeedLock& operator=(FeedLock&&) noexcept = default;

  // What the last holder left, if it did not end properly.
  [[nodiscard]] const LockRecord& left_behind() const { return left_behind_; }
  // Is that all that it has written? Errors: kDamaged.
  [[nodiscard]] const Status& is_whole() const { return whole_; }
  // Do workers live of whom none can be told by its number from here: in another namespace, hidden
  // by /proc, or not in the record? In words; empty: none does, or a worker of the record is seen
  // to live. The kernel is asked; dying ones are waited for, `patience` long. Only before
  // worker_lock(). Throws Error (kIo) if it cannot be found out.
  [[nodiscard]] std::string lives_unseen(std::chrono::milliseconds patience = kDyingMs) const;
  // Were the workers of the record started in another pid or time namespace, in this boot?
  [[nodiscard]] bool is_elsewhere() const;
  // What to do where lives_unseen(), as the end of a sentence.
  [[nodiscard]] std::string unseen_remedy() const;
  // Does anybody keep the workers' lock? Throws Error (kIo).
  [[nodiscard]] bool workers_hold() const;
  // The record is this one, or, with an Error (kIo, kNoMemory), the one before: a full directory,
  // or one that is gone or read-only, keeps no feed from going on.
  [[nodiscard]] Status write(const LockRecord& record);
  // Whether the lock's name is still that of the file that is locked: directories are removed,
  // replaced and covered by others while a feed runs.
  [[nodiscard]] bool in_place() const;
  // Locks what has the name now, or will have; then the file before is given up. `feed_id`: of
  // this feed. Errors: kBusy (the name is another feed's by now), kIo; the lock is the one before.
  [[nodiscard]] Status take_again(const std::string& feed, const std::string& feed_id);
  // The record is for whoever comes next: remove() leaves both files.
  void keep(bool keeps) { keeps_ = keeps; }
  [[nodiscard]] bool keeps() const { return keeps_; }
  // Removes both files, unless they are kept or another's by now, and gives up the lock.
  void remove();
  // The descriptor for workers: a lock for reading goes with its last copy.
  [[nodiscard]] int worker_lock();

 private:
  FeedLock() = default;
  shm::Fd fd_;
  shm::Fd worker_lock_;
  std::string path_;
  LockRecord left_behind_;
  Status whole_;
  bool keeps_ = false;
};

// The system's present boot; "" if it does not say. Throws Error (kIo) if it cannot be asked.
[[nodiscard]] std::string boot_id();
// Whether the record's boot is over, which is known only if both boots are: a /proc without its
// files of the system (subset=pid) proves nothing. Throws Error (kIo).
[[nodiscard]] bool was_another_boot(const LockRecord& record);
// Whether it is of this boot, which is known only then as well. Throws Error (kIo).
[[nodiscard]] bool was_this_boot(const LockRecord& record);

// The workers of the record that are not proved dead. Numbers of another pid or time namespace name
// nobody here, see FeedLock::lives_unseen(). Throws Error (kIo).
[[nodiscard]] std::vector<std::pair<std::string, process::Identity>> living_workers(
    const LockRecord& record);

// The record of a feed whose supervisor is dead and whose workers go on: the next `ringfeed run`
// can take it over. nullopt: there is no such feed. Takes no lock, so it is in nobody's way.
// Errors: kIo (there is a record, and it cannot be read or is not this user's).
[[nodiscard]] Result<std::optional<LockRecord>> find_orphan(const std::string& lock_path);

// Removes files that were being made when their maker died.
void remove_unfinished(const LockRecord& record);

// Ends the workers that a dead supervisor has left, by number and start time, and removes its
// files. Returns one line for each thing done. With `lock`, none of whose workers are new, the
// kernel is asked before that whether all have ended. Throws Error: kIo if a worker that may live
// cannot be ended, kBusy if others live; the files are there then.
[[nodiscard]] std::vector<std::string> clear_remains(const LockRecord& record,
                                                     const FeedLock* lock = nullptr);

}  // namespace ringfeed::control
