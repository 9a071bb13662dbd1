// A feed from its first process to its last: starts the workers, answers clients, ends the feed.
//
//   state                        event                                       next state
//   starting                     all workers are ready                       running
//   starting, running            SIGTERM, SIGINT, a request to stop          draining
//   starting, running, draining  all lanes have finished                     lingering
//   lingering                    every group has had its batches             end (0)
//   any but failing              a second of these orders, SIGQUIT,          stopping
//                                stop now, drain_timeout_s is over,
//                                the owner has ended
//   draining                     no trainer is there for what is on its way  stopping
//   stopping                     all workers are gone                        end (0)
//   any                          a worker died for good, or a finite run     failing
//                                is over without a single batch
//   failing                      all workers are gone                        end (1)
//
// The number is the exit status. Trainers of a failing feed get the reason; if none has come yet,
// it waits kEmptyFeedMs for one. A lingering or failing feed that is told to stop ends at once.
//
// While it lingers, published batches stay readable, and those of dead trainers go to others
// (linger.h). The feed has one thread and one event loop (another thread copies a snapshot); the
// data path does not need them.
#pragma once

#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "supervisor/control/feed_lock.h"
#include "supervisor/control/trainers.h"
#include "supervisor/control/waits.h"
#include "supervisor/feed/answers.h"
#include "supervisor/feed/auto_snapshots.h"
#include "supervisor/feed/losses.h"
#include "supervisor/feed/restarts.h"
#include "supervisor/feed/scaling.h"
#include "supervisor/feed/service.h"
#include "supervisor/feed/snapshots.h"
#include "supervisor/feed/stage_calls.h"
#include "supervisor/feed/standstill.h"
#include "supervisor/feed/web_process.h"
#include "supervisor/group/given_parent.h"
#include "supervisor/group/group_process.h"
#include "supervisor/group/warm_parent.h"
#include "supervisor/metrics/bottleneck.h"
#include "supervisor/metrics/history.h"
#include "supervisor/metrics/progress.h"
#include "supervisor/metrics/talk.h"
#include "supervisor/os/reserve.h"
#include "supervisor/report/account.h"

namespace ringfeed {
class AttachRequest;
class BatchSchema;
class DataLoaderConfig;
class MetricsReply;
class PipelinePlan;
class Reply;
class Request;
class SnapshotManifest;
class StageControlReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::process {

struct FeedRun {
  const DataLoaderConfig& config;
  const PipelinePlan& plan;
  std::uint64_t seed = 0;
  std::string config_file;  // for status
  std::string worker_binary;
  std::string socket;                // path of the control socket
  std::string recorded_groups = {};  // for the lock's record: the stage groups that were formed
  std::string recorded_config = {};  // the configuration as it was given
  std::string dead_letters = {};     // directory for records that are set aside
  std::string lineage = {};          // what names its batches, if it can begin with any of them
  std::string resumed_from = {};     // the snapshot that `found` memory was read from
  std::string file_mark = {};        // for new files in storage.directory
  // Called once, when the record is this feed's: what an earlier feed left may then be removed.
  std::function<void()> on_recorded = {};
  // Called once, when the feed's socket is there.
  std::function<void()> on_listening = {};
  int owner = -1;                     // a pidfd: the feed stops when this process has ended
  ServiceManager* service = nullptr;  // that has started this process
  bool report = false;                // keeps account of the run, for Feed::report()
};

class Feed {
 public:
  // Creates the segments. Throws Error (kNoMemory, kIo); nothing is left behind then.
  // `found`: the memory of a feed to take over, whose supervisor has died.
  Feed(const FeedRun& run, layout::FeedLayout layout, control::FeedLock& lock, metrics::Talk& talk,
       std::optional<layout::FoundMemory> found = {});
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Runs until the feed has ended. Returns the exit status: 0 ended or stopped, 1 failed. Throws
  // Error if the feed cannot be started; nothing is left behind then. Also throws if this process
  // cannot go on; the feed then does, and workers, files and record stay for the next supervisor.
  int run();
  // The run that is over as a page (report/page.h); empty: none was wanted, or it never began.
  [[nodiscard]] const std::string& report() const { return report_; }

 private:
  struct Output;
  enum class Phase { kStarting, kRunning, kDraining, kLingering, kStopping, kFailing };

  void watch_signals();
  void watch_owner();
  void on_signal(int signal, pid_t from);
  void declare_groups(Output& output);
  void make_workers();
  WarmParent* warm_parent_of(const layout::GroupPlan& group, const WorkerRules& rules,
                             const layout::SetupFacts& facts);
  GivenParent* given_parent_of(const layout::GroupPlan& group);
  void look_after_parents();
  void look_for_desertion();
  void reap_strays();
  void take_over();
  void record_workers();
  void serve();

  // Lifecycle (feed.cc).
  void worker_ready();
  void worker_over();
  void drain(const std::string& why);
  void stop(const std::string& why);
  void fail(const std::string& reason);
  void end_telling();
  void linger();
  bool still_needed();  // sets lingers_for_
  void finish(int status);
  [[nodiscard]] bool all_over() const;
  void tick();
  void note_groups();
  void advance_groups();
  void advance_groups(Output& output);
  // Has every output ever had a consumer group? Does any output have a trainer now?
  [[nodiscard]] bool ever_joined() const;  // of each output
  [[nodiscard]] bool any_came() const;
  [[nodiscard]] bool any_trainer() const;
  // Do all outputs that wait for trainers lack anybody to take the batches on their way?
  [[nodiscard]] bool nobody_takes() const;
  void end_unread();
  void look_after_workers();
  void look_for_trials();
  void look_for_late_starts();
  void look_for_stalls();
  void look_for_standstill();
  void order_end(bool now, const std::string& why);
  void show_progress();
  void tell_service(bool over);
  // The progress of stages that warm up, and what the feed waits for.
  [[nodiscard]] metrics::Talk::Wait awaited() const;
  [[nodiscard]] std::string warming_text(const metrics::Progress* longest) const;
  void look_at_progress();
  void look_at_drain();
  [[nodiscard]] std::string waiting_text() const;
  [[nodiscard]] std::string counts_text() const;
  void count_losses();
  void look_at_losses();
  void tell_left_out(control::ConnectionId connection);
  void tell_stands_still(control::ConnectionId connection);
  void tell_all(void (Feed::*what)(control::ConnectionId));
  void tell_notices(control::ConnectionId connection);
  void tell_losses();
  [[nodiscard]] bool totals_awaited();
  [[nodiscard]] std::string totals_text() const;
  void log_drain();
  void event(metrics::Level level, std::string_view event, const std::string& values) const;
  void survive(const std::exception& error) noexcept;  // reports what a callback has thrown

  // Requests (requests/, a file for each kind). Each function returns whether its reply must be
  // sent now; if not, it was sent already or will be sent later.
  void answer(control::ConnectionId connection, const Request& request);
  void refuse_for(const Asker& asker, const std::exception& error) noexcept;
  void on_request(control::ConnectionId connection, const Request& request);
  bool on_attach_request(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_detach(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_rejoin(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_worker_rejoin(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_status(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_metrics(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_stop(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_stage_control(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_restart(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_scale(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_snapshot(control::ConnectionId connection, const Request& request, Reply& reply);
  [[nodiscard]] bool is_steered() const;
  bool on_snapshots(control::ConnectionId connection, const Request& request, Reply& reply);
  void log_request(control::ConnectionId connection, const Request& request) const;
  bool on_log(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_wait(control::ConnectionId connection, const Request& request, Reply& reply);
  bool on_origin(control::ConnectionId connection, const Request& request, Reply& reply);
  // Parts of attach.
  void answer_attach(control::ConnectionId connection, const Request& request, Reply& reply);
  void on_attach(control::ConnectionId connection, const AttachRequest& request, Reply& reply,
                 std::vector<int>& fds);
  [[nodiscard]] const BatchSchema& schema_of(const Output& output) const;
  void tell_trainers();
  // Parts of snapshot.
  void describe_snapshot(SnapshotManifest& manifest,
                         const std::vector<std::vector<std::byte>>& copied) const;
  // Parts of status.
  void fill_status(StatusReply& status) const;
  [[nodiscard]] int shown_state() const;  // StatusReply::State

  // Numbers (feed_metrics.cc).
  void look_around(bool regular);
  void keep_looking();
  void fill_bottlenecks(const metrics::FeedFacts& facts, MetricsReply& reply) const;
  [[nodiscard]] Losses losses_between(const metrics::FeedFacts& facts, const metrics::Look& begin,
                                      const metrics::Look& end) const;
  void find_bottlenecks(const metrics::FeedFacts& facts, std::size_t begin,
                        MetricsReply& reply) const;
  [[nodiscard]] metrics::FeedFacts metrics_facts() const;

  // The report (feed_report.cc).
  void note_look();
  void note_trainers();
  void note_epochs(std::uint64_t now);
  void note_limits();
  void make_report() noexcept;

  void park(std::uint64_t ticket);  // all lanes; 0: they go on
  // Does a task need the lanes parked now?
  [[nodiscard]] bool lanes_park() const { return snapshots_.under_way() || scaling_.under_way(); }

  // Trouble with the surroundings (feed_place.cc).
  void keep_web();
  void keep_place();
  [[nodiscard]] Status restore_place();
  void note_problem(const std::string& what, const std::string& text);
  [[nodiscard]] std::vector<std::string> problems() const;

  FeedRun run_;
  control::FeedLock& lock_;
  metrics::Talk& talk_;
  EventLoop loop_;
  layout::FeedMemory memory_;
  // One output; by number, as in the layout.
  struct Output {
    layout::OutputMemory memory;
    control::ConsumerGroups groups;
    control::Trainers trainers;
    control::Waits waits;
    Output(EventLoop& loop, const layout::OutputMemory& of, const BatchSchema& schema,
           const control::Trainers::Report& report, const control::Waits::Report& waits_report)
        : memory(of),
          groups(of),
          trainers(loop, of, groups, schema, report),
          waits(
              of, groups,
              [this](const control::MemberPlace& place) { return trainers.facts(place); },
              waits_report) {}
  };
  std::vector<std::unique_ptr<Output>> outputs_;
  DescriptorReserve reserve_{kReserveForRestart + kReserveForClients};
  // Read once, while there are descriptors.
  const std::string boot_ = control::boot_id();
  const control::Namespaces namespaces_ =
      control::own_namespaces().ok() ? *control::own_namespaces() : control::Namespaces();
  const Identity self_{::getpid(), start_ticks(::getpid()).value_or(0)};
  const std::vector<std::pair<std::string, Identity>> workers_before_;  // of an earlier supervisor
  bool record_due_ = false;  // the record could not be written
  struct Problem {
    std::string text;
    std::uint64_t times = 0;
  };
  std::map<std::string, Problem> problems_;  // by the thing that has the problem
  Losses losses_;
  std::uint64_t losses_looked_ms_ = 0;
  bool most_is_left_out_ = false;
  std::uint64_t losses_told_at_ = 0;  // so many samples left out are said next
  std::string left_out_;              // what trainers are told of them; "": they are few
  std::string stands_still_;          // what trainers are told of it; "": somebody works
  metrics::Looker looker_;
  metrics::History history_;
  metrics::Texts texts_;
  std::uint64_t failures_ = 0;  // of callbacks
  std::uint64_t looks_ = 0;
  std::uint64_t looking_ns_ = 0;  // CPU time
  double cores_ = 1;
  std::unique_ptr<report::Account> account_;  // null: no report is wanted
  // What goes wrong with a note costs the report that note, and nothing else.
  template <typename Note>
  void for_report(const Note& note) const noexcept try {
    if (account_) note();
  } catch (const std::exception&) {
  }
  struct Noted {
    std::uint64_t ms = 0;
    std::uint64_t limits_ms = 0;
    std::vector<std::uint64_t> batches;    // of each output
    std::vector<std::uint64_t> waited_ns;  // of its trainers, since the last look
    std::vector<std::uint32_t> live;
  } noted_;
  std::string report_;
  std::unique_ptr<control::ControlServer> server_;
  std::vector<std::unique_ptr<WarmParent>> warm_parents_;
  std::vector<std::unique_ptr<GivenParent>> given_parents_;
  std::vector<std::unique_ptr<GroupProcess>> workers_;
  std::unique_ptr<WebProcess> web_;
  pid_t stray_ = 0;  // a child of nobody's that had ended at the last look
  shm::Fd signals_;
  Phase phase_ = Phase::kStarting;
  bool adopts_ = false;
  bool steered_ = false;   // messages or a drain have changed which batches come
  bool lives_ = false;     // the feed could go on without this process
  bool draining_ = false;  // a drain was ordered; stays set while the feed lingers
  EventLoop::TimerId tick_ = 0;
  std::uint64_t ticked_ms_ = 0;         // the last tick
  std::uint64_t deserted_ms_ = 0;       // since when nobody needs the feed; 0: somebody does
  std::uint64_t patient_until_ms_ = 0;  // no worker counts as hanging before this
  std::optional<bool> end_due_;         // an order to end that lacked memory; true: stop now
  bool moving_ = false;                 // a timer for groups in motion is set
  bool first_batch_ = false;
  std::vector<metrics::Progress> under_way_;  // as of the last tick
  metrics::Paces paces_;
  std::uint64_t drain_most_ = 0;  // records and batches that a drain had to wait for
  bool tells_reason_ = false;     // the feed failed and waits for a first trainer
  int status_ = 0;
  std::uint64_t started_ms_ = 0;
  std::uint64_t ended_ms_ = 0;
  std::uint64_t needless_ms_ = 0;  // when all had received everything; 0: not yet
  std::uint64_t deaths_ = 0;       // of workers
  std::string reason_;
  std::string lingers_for_;
  std::set<std::size_t> unread_;       // workers whose lanes nobody reads any more
  std::set<std::string> drain_waits_;  // what the drain waits for, as logged

  const Answers answers_;
  StageCalls stage_calls_;
  Restarts restarts_;
  Snapshots snapshots_;
  AutoSnapshots auto_snapshots_;
  Scaling scaling_;
  Standstill standstill_;
  Service service_;
};

}  // namespace ringfeed::process
