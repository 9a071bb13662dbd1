// The warm parent of a stage's processes that somebody else has started: whoever runs the feed. It
// listens on a Unix socket (SOCK_SEQPACKET); this end connects to it.
//
//   from it             `ready`            it takes orders
//   to it               `fork GROUP`       with the setup socket, the log pipe and the lock
//   from it             `error TEXT`       nothing came of that order
//   from it             `later`            nor of that: the group has no work
//   from it             `work GROUP`       it has some now
//   from the new process, on its setup socket, before anything else: `here`
//   from it             `ended PID STATUS` how a process that it had forked ended, as wait() says
//   from it             `over`             it ends, and with it by order all that it has forked
//
// Behind `over` the stage's processes end between two steps, no death of theirs is counted, and the
// stage waits for the next parent. It may listen on the same socket: somebody else keeps that open.
//
// No process of the stage is started in another way. Without the parent the stage waits, and this
// end tries to connect: every kSoonMs in the first second, then every kLaterMs. It is none of the
// supervisor's children and never killed. One that does not answer is left, and tried again after a
// pause, or as soon as another file is in its place.
//
// What it says is not believed. The kernel says who has spoken on the setup socket (SO_PASSCRED):
// a process of the same user that began after the order.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "supervisor/group/spawn.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::process {

class GivenParent {
 public:
  struct Hooks {
    // Whoever waits for it can try; `all`: those that it spares, too.
    std::function<void(bool all)> on_ready;
    // A group that it has spared can try.
    std::function<void(const std::string& group)> on_work;
    std::function<void(pid_t pid)> on_ended;
    std::function<void()> on_over;  // its processes end by order; not to throw
    std::function<void(std::string_view level, std::string_view event, const std::string& values)>
        on_event;
  };
  static constexpr std::uint64_t kSoonMs = 10;
  static constexpr std::uint64_t kLaterMs = 100;
  static constexpr std::uint64_t kSoonForMs = 1'000;
  // After an order it takes none for so many rounds of the loop: in the first one a connection is
  // accepted, in the second its request is heard. So whom the first process serves already, or who
  // orders the end, does not wait until all others have been forked.
  static constexpr int kRestRounds = 2;
  static constexpr std::uint64_t kRestMs = 1;
  static constexpr std::uint64_t kPauseMsMin = 100;
  static constexpr std::uint64_t kPauseMsMax = 10'000;

  // `path`: absolute, and short enough for a socket.
  GivenParent(EventLoop& loop, std::string path, Hooks hooks);
  ~GivenParent();
  GivenParent(const GivenParent&) = delete;
  GivenParent& operator=(const GivenParent&) = delete;

  // Connects if it is time to; the rest follows by itself. Called at every tick, too.
  void look_after();
  // A process of that group that it has forked, with the links of spawn_worker(). Errors: kBusy
  // (not now; why() says it), and what the system lacks, as make_worker_links() throws it.
  [[nodiscard]] Result<Spawned> spawn(std::string_view group, int lock);
  // The last order was for a group that has no work.
  [[nodiscard]] bool spares() const { return spares_; }
  // How it says that the process ended, if it has said so; what `forget` has been called for, not.
  [[nodiscard]] std::optional<Ending> ending_of(pid_t pid) const;
  void forget(pid_t pid) { endings_.erase(pid); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool ready() const { return ready_; }
  // Why the last order or attempt has failed; "": it has not.
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    std::int64_t changed_ns = 0;
    friend bool operator==(const File&, const File&) = default;
  };
  [[nodiscard]] File file() const;
  void look_later();
  void connect();
  void on_packets();
  [[nodiscard]] std::optional<std::string> take_packet();
  void take(const std::string& said);
  void leave(std::string_view why);
  void give_pause();
  void note(std::string why);
  void rest(int rounds);
  [[nodiscard]] Result<Spawned> refused(std::string why);
  [[nodiscard]] Result<Spawned> await_child(WorkerLinks links, std::uint64_t ordered_ticks);

  EventLoop& loop_;
  std::string path_;
  Hooks hooks_;
  shm::Fd link_;
  File file_;  // that it was connected to
  bool ready_ = false;
  bool spares_ = false;
  bool over_ = false;  // it has said so, and has not closed the connection yet
  pid_t peer_ = 0;
  std::string why_;
  std::string logged_;               // of why_
  std::map<pid_t, Ending> endings_;  // as it says
  std::optional<EventLoop::TimerId> timer_;
  std::optional<EventLoop::TimerId> rest_;  // until then it takes no order
  std::uint64_t since_ms_;                  // it is not there
  std::uint64_t pause_ms_ = 0;              // the last one
  std::uint64_t paused_until_ms_ = 0;
};

}  // namespace ringfeed::process
