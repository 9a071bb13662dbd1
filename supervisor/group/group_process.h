// One stage group: its process and the successors of that.
//
// The process gets its memory over the setup socket and says `ready`. It is then watched through
// its pidfd and heard through its log pipe. After its death its last output is read, it is reaped,
// and sleeping lanes are rung, because it may have owed them a wake-up. The death is counted on its
// lanes' pages, and a record that killed too often is put under quarantine. Then the table
// (child.h) and the restart budget decide what follows.
//
// A process whose lanes have all finished says so and stays, idle, until the feed is over: it holds
// the memory in case the supervisor dies. For the same reason it gets a successor if it dies.
//
// If the system has no descriptors, processes or memory left, this is not a death of the stage. The
// start is tried again with the reserve, then with backoff (kStarvedMsMin to kStarvedMsMax) until
// it succeeds. Neither is it a death if processes are forked by a parent that somebody else has
// started (given_parent.h), and that is not there: the group waits for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "supervisor/group/child.h"
#include "supervisor/group/log_tail.h"
#include "supervisor/group/restart_budget.h"
#include "supervisor/group/spawn.h"
#include "supervisor/group/suspects.h"
#include "supervisor/layout/worker_setup.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/reserve.h"

namespace ringfeed {
class FromWorker;
class ToWorker;
class WorkerSetup;
}  // namespace ringfeed

namespace ringfeed::process {

class GivenParent;

struct WorkerRules {
  std::string binary;
  int lock = -1;  // descriptor of the lock that shows that it lives (control/feed_lock.h)
  RestartLimits restarts;
  std::uint32_t max_attempts = 3;  // deaths on one record before it is set aside
  std::uint64_t stop_ms = 3'000;   // after an order to stop; then it is killed
  std::uint64_t ready_ms = 0;      // after its start; then it is killed; 0: without a limit
  std::uint64_t stall_start_ms =
      0;  // after which restart.stall_ms kills one that is starting; 0: never
  DescriptorReserve* reserve = nullptr;
  // Forks a process that has loaded what it needs (warm_parent.h); nothing: it is started like any
  // other. The argument is `lock`.
  std::function<std::optional<Spawned>(int lock)> fork_warm = {};
  // Set: it forks each process, and none is started in another way.
  GivenParent* given = nullptr;
};

// A record that was set aside, and why.
struct Condemned {
  std::uint64_t key = 0;
  std::uint32_t deaths = 0;
  std::string cause;
};

// Sends the setup and its descriptors over the socket of a worker that has just been started.
// Throws Error (kIo), but not if the worker is already dead.
void send_setup(int socket, const WorkerSetup& setup, const layout::GroupSetup& group,
                const layout::FeedMemory& memory);

class GroupProcess {
 public:
  struct Hooks {
    std::function<void()> on_started;  // another process runs the group
    std::function<void()> on_ready;
    std::function<void()> on_over;                           // done or gone
    std::function<void(const std::string& reason)> on_lost;  // the feed cannot go on
    std::function<void(std::string_view line)> on_line;      // what the process says
    std::function<void(std::string_view level, std::string_view event, const std::string& values)>
        on_event;
    std::function<void(const FromWorker&)> on_message;  // answers to calls
    // A new program could not take over; the old one runs the group again.
    std::function<void(const std::string& reason)> on_refused;
  };

  GroupProcess(EventLoop& loop, const layout::FeedMemory& memory, std::uint32_t group,
               const layout::SetupFacts& facts, const WorkerRules& rules, Hooks hooks);
  ~GroupProcess();
  GroupProcess(const GroupProcess&) = delete;
  GroupProcess& operator=(const GroupProcess&) = delete;

  static constexpr std::uint64_t kStarvedMsMin = 10;
  static constexpr std::uint64_t kStarvedMsMax = 1'000;

  // The first start. Throws Error if the system refuses it.
  void start();
  // The first start in a feed that already runs. If the system refuses, it waits, or counts a
  // death.
  void start_late();
  // Watches a process that an earlier supervisor started and that runs the lanes. False: it has
  // just ended. Throws Error (kIo) if it cannot be watched; it may still live then.
  [[nodiscard]] bool adopt(const Identity& process);
  // The lanes had all finished before this supervisor started; their process may be adopted or not.
  void adopt_finished() { state_ = ChildState::kDone; }
  // Starts a process for lanes that have finished, to hold the memory.
  void start_idle() { spawn_or_count(); }
  // The adopted process asks for its links. Returns the ends to give to it; empty if `peer` is not
  // that process.
  [[nodiscard]] std::optional<WorkerLinks> relink(pid_t peer);
  // Sources stop, and work in progress flows out. This holds for later incarnations too.
  void drain();
  // The lanes stand still between two steps, also those of later incarnations; 0: they go on.
  void park(std::uint64_t ticket);
  // The process ends between two steps, or is killed after stop_ms.
  void stop();
  // Kills the process; the rest follows as after any death.
  void kill();
  // The same because this lane hangs, after it has had a moment to say where.
  void kill_stalled(std::uint32_t lane);
  // Kills a process that is not ready ready_ms after its start. Called at every tick.
  void look_at_start();
  // If the process at hand has not been ready for some seconds: a sentence that says so, else "".
  [[nodiscard]] std::string late_start() const;
  // Is it being killed because a lane hangs?
  [[nodiscard]] bool stalled() const { return stalled_.has_value(); }
  // The parent that forks its processes (WorkerRules::given) can do so now; `has_work`: also if it
  // has spared this group.
  void parent_ready(bool has_work);
  // That parent has said how one of its processes ended.
  void heard_ending(pid_t pid);
  // That parent ends, and with it by order its processes: the end of the process is no death, and
  // the next parent forks another one.
  void dismiss() noexcept;
  // Does what should have followed an event but lacked memory. Called at every tick.
  void look_after();
  // This supervisor ends but the feed does not: the process lives on for the next supervisor.
  void leave();
  // A fresh process takes over between two steps; false if the group does not run. `binary` is its
  // program from now on, unless that ends before it is ready; empty: as before.
  bool replace(const std::string& binary);
  // Of the process and of those that follow, as LogConfig.Level.
  void set_log_level(int level);
  // False if there is no process to talk to.
  bool send(const ToWorker& message);

  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] std::uint32_t group() const { return group_; }
  [[nodiscard]] ChildState state() const { return state_; }
  [[nodiscard]] bool ready() const;
  [[nodiscard]] const Identity& identity() const { return process_.identity; }
  [[nodiscard]] std::uint32_t restarts() const {
    return starts_ == 0 ? 0 : starts_ - 1 - dismissals_;
  }
  // By the signal that ended the process before: its number, 0 if it ended by itself,
  // kUnknownSignal if it had been started by somebody else.
  static constexpr std::size_t kUnknownSignal = 65;
  using SignalCounts = std::array<std::uint32_t, kUnknownSignal + 1>;
  [[nodiscard]] const SignalCounts& restarts_by_signal() const { return restarts_by_signal_; }
  [[nodiscard]] std::uint64_t started_ms() const { return started_ms_; }
  // Is a new program being tried that is not ready yet?
  [[nodiscard]] bool on_trial() const {
    return state_ == ChildState::kStarting && binary_before_.has_value();
  }
  // If the system has nothing left to start a process with: a sentence that says so, else "".
  [[nodiscard]] std::string starvation() const;
  // Does it wait for the parent that forks its processes?
  [[nodiscard]] bool awaits_parent() const { return awaits_parent_ && !spared_; }
  // What the process that runs, or has just ended, said last; "" if nothing.
  [[nodiscard]] std::string last_words() const;
  // now_ms() when the current process said that it is ready.
  [[nodiscard]] std::uint64_t ready_ms() const { return ready_ms_; }
  // What it has written and nobody has read, in this call.
  void read_log();

 private:
  void spawn();
  void spawn_with_reserve();
  void spawn_or_count();
  void abandon_start();
  void wait_out(std::string why) noexcept;
  void wait_for_parent() noexcept;
  [[nodiscard]] bool awaits_words();
  [[nodiscard]] Ending reaped();
  void watch_links();
  void send_setup();
  void send_log_level();
  void read_messages();
  void on_message(const FromWorker& message);
  void process_ended();
  void forget_process();
  void settle();
  void after_end(const Ending& ending);
  void when(std::uint64_t delay_ms, void (GroupProcess::*then)()) noexcept;
  void next_try();
  void next_holder();
  void end_patience();
  void finished();
  void keep_memory(const Ending& ending);
  struct DeathCount {
    bool certain = false;  // certainly caused by a record
    std::uint32_t explained =
        0;  // deaths, including this one, by a record that is set aside from now on
  };
  DeathCount count_death(const Ending& ending);
  [[nodiscard]] std::uint64_t group_steps() const;
  [[nodiscard]] bool has_worked() const;
  [[nodiscard]] bool has_run() const;
  void apply(ChildEvent event);
  void order_end();
  void set_desires(shm::LaneDesire desire);
  [[nodiscard]] bool lanes_finished() const;

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  std::uint32_t group_;
  layout::SetupFacts facts_;
  WorkerRules rules_;
  std::optional<std::string> binary_before_;  // while a new one is not ready yet
  Hooks hooks_;
  RestartBudget budget_;
  Suspects suspects_;
  std::map<std::uint32_t, Condemned> condemned_;    // by lane: the last one
  std::map<std::uint32_t, std::uint32_t> counted_;  // by lane: incarnation whose death was
  std::uint32_t barren_ = 0;  // records set aside in a row, without a step in between
  std::uint64_t steps_at_verdict_ = 0;
  std::optional<std::uint32_t> stalled_;  // lane for which it is being killed
  ChildState state_ = ChildState::kWaiting;
  Spawned process_;
  bool is_child_ = false;  // of this process
  LogTail tail_;
  std::uint32_t starts_ = 0;
  std::uint32_t dismissals_ = 0;  // starts that follow a dismissal
  bool dismissed_ = false;        // the process at hand is, or the last one was
  SignalCounts restarts_by_signal_{};
  std::size_t last_signal_ = 0;  // of the last process
  std::uint64_t started_ms_ = 0;
  std::uint64_t ready_ms_ = 0;
  bool is_late_ = false;           // it is being killed because it was not ready in time
  std::uint32_t late_starts_ = 0;  // in a row
  std::uint64_t ordered_ms_ = 0;   // when it was told to end
  std::uint64_t patient_until_ms_ = ~std::uint64_t{0};  // then it is killed
  shm::LaneDesire desire_ = shm::LaneDesire::kRun;      // of a process that is not told to end
  std::uint64_t park_ticket_ = 0;                       // 0: they run
  std::optional<EventLoop::TimerId> timer_;             // backoff, or the time limit of a stop
  std::uint64_t delay_ms_ = 0;
  std::optional<int> log_level_;  // if it is not the configuration's
  bool ended_ = false;            // the feed has ended: its memory need not be held
  std::string failure_;           // what the process said about its end
  std::uint64_t starved_ = 0;     // starts in a row that the system had no room for
  std::uint64_t starved_ms_ = 0;  // until the next one
  std::string starved_why_;
  bool awaits_parent_ = false;
  bool spared_ = false;                            // by the parent: it has no work
  std::uint64_t parent_ms_ = 0;                    // until it is asked again
  std::optional<EventLoop::TimerId> words_timer_;  // for the parent to say how it ended
  bool words_over_ = false;
  std::optional<Ending> ending_;  // of the last process, until something follows
  bool holder_due_ = false;       // lanes have finished, but no process holds the memory
  bool has_run_ = false;          // before the process at hand
  bool permanent_ = false;        // a restart would meet the same
  bool starving_ = false;         // it ended because the system lacked something for now
  std::string obituary_;
};

}  // namespace ringfeed::process
