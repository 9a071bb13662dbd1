#include "supervisor/feed/feed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/feed/linger.h"
#include "supervisor/layout/memory.h"
#include "supervisor/metrics/status.h"
#include "supervisor/os/signals.h"

namespace ringfeed::process {
namespace {

constexpr std::uint64_t kTickMs = 100;
constexpr std::uint64_t kLossesMs = 500;
constexpr std::uint64_t kStandsMs = 30'000;  // a standstill, unless restart.stall_ms says another
constexpr std::size_t kRecordedReasonBytes = 4096;
// People should know of such a share, once there are so many samples.
constexpr double kLossesShare = 0.01;
constexpr std::uint64_t kLossesAfter = 1000;
// Of more than half people hear sooner.
constexpr double kMostOfThem = 0.5;
constexpr std::uint64_t kMostAfter = 16;
constexpr std::size_t kNoticeBytes = 2000;  // of what trainers are told; they have room for it
// A feed that is over ends this soon after the last batch has been given back.
constexpr std::uint64_t kLingerTickMs = 10;
// Groups that join or leave are looked at this often: lanes answer between two steps.
constexpr std::uint64_t kMotionMs = 2;
// With storage.directory, what consumer groups have finished is noted this often: after the death
// of all processes, trainers too, at most what was given back since comes again.
constexpr std::uint64_t kNoteMs = 5;
// A process that has to be replaced when it hangs may take this long to become ready: it maps its
// memory and rebuilds its caches.
constexpr std::uint64_t kStartMsMax = 10'000;
// A tick that is so late was held up from outside, as its workers may have been: a machine that
// slept, a container that was frozen.
constexpr std::uint64_t kLateMs = 1'000;
// At the feed's end nobody is left who would hear why this process does not end.
constexpr std::uint64_t kSnapshotEndMs = 2'000;
// Without a warm parent and a trainer a feed of theirs goes on for so long.
constexpr std::uint64_t kDesertedMs = 30'000;

std::uint64_t hash_of(const std::string& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

shm::FeedIdentity identity_of(const DataLoaderConfig& config) {
  layout::raise_file_limit();
  return {shm::random_feed_id(), hash_of(config.SerializeAsString())};
}

metrics::Level level_of(std::string_view level) { return metrics::level_named(level); }

metrics::Talk::Source worker_source(const std::string& group, pid_t pid = 0) {
  return {"worker/" + group, group, static_cast<std::uint32_t>(pid)};
}

}  // namespace

Feed::Feed(const FeedRun& run, layout::FeedLayout layout, control::FeedLock& lock,
           metrics::Talk& talk, std::optional<layout::FoundMemory> found)
    : run_(run),
      lock_(lock),
      talk_(talk),
      memory_(
          found ? layout::FeedMemory(std::move(layout), std::move(*found))
                : layout::FeedMemory(std::move(layout),
                                     shm::Storage{run.config.storage().directory(), run.file_mark},
                                     identity_of(run.config))),
      workers_before_(control::living_workers(lock.left_behind())),
      looker_(memory_),
      cores_(metrics::usable_cores()),
      adopts_(found.has_value()),
      lives_(found && !found->is_copy),
      started_ms_(now_ms()),
      answers_{
          [this](control::ConnectionId to, const Reply& reply) { server_->send(to, reply); },
          [this](const Asker& asker, const std::exception& error) { refuse_for(asker, error); }},
      stage_calls_(loop_, run.config, run.plan, memory_.layout(), workers_, answers_,
                   [this](const StageControlReply& answer) {
                     for (const StageControlAnswer& one : answer.answers()) {
                       texts_.take_answer(run_.plan, one);
                     }
                   }),
      restarts_(loop_, run.config, run.plan, memory_.layout(), workers_, answers_),
      snapshots_(loop_, memory_, run.config.feed(), answers_,
                 {[this](std::uint64_t ticket) { park(ticket); },
                  [this](SnapshotManifest& manifest, const auto& copied) {
                    describe_snapshot(manifest, copied);
                  },
                  [this] { record_workers(); },
                  [this](metrics::Level level, std::string_view name, const std::string& values) {
                    event(level, name, values);
                  }}),
      auto_snapshots_(run.config, layout::memory_sum(memory_.layout()),
                      {[this](const std::string& directory, AutoSnapshots::Done done) {
                         return !lanes_park() && snapshots_.take_own(directory, std::move(done));
                       },
                       [this](const std::string& text) { note_problem("snapshot", text); }}),
      scaling_(loop_, memory_, run.config, answers_,
               {[this](std::uint64_t ticket) { park(ticket); },
                [this](metrics::Level level, std::string_view name, const std::string& values) {
                  event(level, name, values);
                },
                [this](const std::exception& error) { survive(error); }}),
      standstill_(run.config.restart().stall_ms() == 0 ? kStandsMs
                                                       : run.config.restart().stall_ms()),
      service_(run.service) {
  const auto report = [this](std::string_view name, const std::string& values) {
    // Who has just left still has his numbers in his group's page.
    for_report([&] { note_trainers(); });
    event(metrics::Level::kInfo, name, values);
  };
  const auto waits = [this](bool trouble, std::string_view name, const std::string& values) {
    event(trouble ? metrics::Level::kWarn : metrics::Level::kInfo, name, values);
  };
  for (std::uint32_t i = 0; i < memory_.layout().outputs.size(); ++i) {
    const auto stage = static_cast<int>(memory_.layout().outputs[i].stage);
    outputs_.push_back(std::make_unique<Output>(loop_, memory_.output(i),
                                                run.plan.stages(stage).batch(), report, waits));
  }
  if (!run.report) return;
  std::vector<std::string> aliases;
  for (const layout::OutputLayout& output : memory_.layout().outputs)
    aliases.push_back(output.alias);
  account_ = std::make_unique<report::Account>(std::move(aliases), started_ms_, !adopts_);
}

Feed::~Feed() = default;

void Feed::event(metrics::Level level, std::string_view name, const std::string& values) const {
  talk_.event(level, name,
              fmt::format("feed={}{}{}", run_.config.feed(), values.empty() ? "" : " ", values));
  // There may be thousands of the others, and they would push these out.
  if (level == metrics::Level::kDebug) return;
  for_report([&] { account_->happened(now_ms(), level, name, values); });
}

// For want of memory or the like a callback was not carried out: it will be called again. Said the
// first time, then at each power of two.
void Feed::survive(const std::exception& error) noexcept {
  if (!std::has_single_bit(++failures_)) return;
  try {
    event(metrics::Level::kWarn, "callback_failed",
          fmt::format("count={} what={}", failures_, in_quotes(error.what())));
  } catch (const std::exception&) {
    // No memory to say so. It is counted.
  }
}

void Feed::watch_signals() {
  const sigset_t handled = take_signals();
  signals_ = shm::Fd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) {
    throw Error(ErrorCode::kIo, fmt::format("no descriptor for signals: {}", std::strerror(errno)));
  }
  loop_.watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      on_signal(static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid));
    }
  });
}

void Feed::watch_owner() {
  if (run_.owner < 0) return;
  loop_.watch(run_.owner, [this] {
    loop_.unwatch(run_.owner);
    stop("the process that owns the feed has ended");
  });
}

void Feed::on_signal(int signal, pid_t from) {
  if (signal == SIGTERM || signal == SIGINT || signal == SIGQUIT) {
    const std::string why = fmt::format("stopped by {}", signal_text(signal));
    return order_end(draining_ || signal == SIGQUIT, why);
  }
  if (signal == SIGHUP) service_.reloading();
  const bool reopened = signal == SIGHUP && talk_.reopen();
  event(metrics::Level::kInfo, reopened ? "log_reopened" : "signal_ignored",
        fmt::format("signal={} text={} pid={}", signal, in_quotes(signal_text(signal)), from));
}

void Feed::declare_groups(Output& output) {
  const bool keep_newest = output.memory.layout().keep_newest;
  const auto& groups = output_settings(run_.config, output.memory.layout().settings).groups();
  const bool any_yields =
      keep_newest || std::any_of(groups.begin(), groups.end(), [](const auto& group) {
        return group.policy() != ConsumerGroupConfig::BLOCK;
      });
  for (const ConsumerGroupConfig& group : groups) {
    control::GroupTerms terms;
    terms.name = group.name();
    terms.kind = group.kind() == ConsumerGroupConfig::RANKED ? shm::GroupKind::kRanked
                                                             : shm::GroupKind::kShared;
    terms.world = group.world();
    terms.policy =
        keep_newest ? shm::GroupPolicy::kSkip : static_cast<shm::GroupPolicy>(group.policy());
    terms.stall_ms = group.stall_ms();
    terms.redeliver = group.redeliver();
    terms.max_tries = group.max_tries();
    terms.max_hold = group.has_max_hold() ? group.max_hold()
                     : any_yields         ? control::kMaxHoldYielding
                                          : 0;
    terms.rejoin_ms = group.rejoin_ms();
    output.groups.declare(terms).or_throw();
  }
  // Batches wait for a first group; here one is there from the start, and gives way to each.
  if (!keep_newest || !groups.empty()) return;
  control::GroupTerms terms;
  terms.name = control::kDefaultGroup;
  terms.policy = shm::GroupPolicy::kSkip;
  terms.max_hold = control::kMaxHoldYielding;
  output.groups.declare(terms).or_throw();
}

void Feed::make_workers() {
  const RestartConfig& restart = run_.config.restart();
  WorkerRules rules;
  rules.restarts = {.max_restarts = restart.max_restarts(),
                    .within_ms = std::uint64_t{restart.within_s()} * 1000,
                    .backoff_ms_min = restart.backoff_ms_min(),
                    .backoff_ms_max = restart.backoff_ms_max()};
  rules.max_attempts = restart.max_attempts();
  rules.ready_ms = restart.ready_ms();
  if (restart.stall_ms() != 0) rules.stall_start_ms = std::max(restart.stall_ms(), kStartMsMax);
  rules.reserve = &reserve_;
  layout::SetupFacts facts;
  facts.config_bytes = run_.config.SerializeAsString();
  facts.seed = run_.seed;
  facts.ordered = ordered_dispatch(run_.config);
  facts.dead_letters = run_.dead_letters;
  facts.socket = run_.socket;
  facts.supervisor_pid = static_cast<std::uint32_t>(::getpid());
  for (std::uint32_t g = 0; g < memory_.layout().groups.size(); ++g) {
    GroupProcess::Hooks hooks;
    hooks.on_started = [this] { record_workers(); };
    hooks.on_ready = [this, g] {
      worker_ready();
      stage_calls_.ask_again(g);
    };
    hooks.on_over = [this, g] {
      stage_calls_.ask_again(g);
      worker_over();
    };
    hooks.on_lost = [this](const std::string& reason) { fail(reason); };
    hooks.on_line = [this, g](std::string_view line) {
      talk_.line(worker_source(workers_[g]->name(), workers_[g]->identity().pid), line);
      losses_.note(workers_[g]->name(), line);
      for_report([&] { account_->line(line); });
    };
    hooks.on_event = [this, g](std::string_view level, std::string_view name,
                               const std::string& values) {
      const bool died = name == "worker_died" || name == "idle_worker_died";
      if (died) ++deaths_;
      event(level_of(level), name, values);
      if (died && g < workers_.size()) {
        for_report([&] { account_->last_words(workers_[g]->last_words()); });
      }
    };
    hooks.on_refused = [this, g](const std::string& reason) {
      restarts_.refused(memory_.layout().groups[g].name, reason);
      event(metrics::Level::kWarn, "worker_refused", "reason=" + in_quotes(reason));
    };
    hooks.on_message = [this, g](const FromWorker& message) {
      if (!message.has_stage_control()) return;
      stage_calls_.on_answer(message.id(), g, message.stage_control());
    };
    rules.lock = lock_.worker_lock();
    const layout::GroupPlan& group = memory_.layout().groups[g];
    rules.fork_warm = {};
    rules.given = given_parent_of(group);
    // No program is started for processes of a parent that was given.
    rules.binary =
        rules.given != nullptr ? group.program : program_for(run_.worker_binary, group.program);
    if (WarmParent* const parent = warm_parent_of(group, rules, facts)) {
      rules.fork_warm = [parent](int lock) { return parent->spawn(lock); };
    }
    workers_.push_back(
        std::make_unique<GroupProcess>(loop_, memory_, g, facts, rules, std::move(hooks)));
  }
}

// Made when the first group of its stage is; nullptr: the stage has none.
WarmParent* Feed::warm_parent_of(const layout::GroupPlan& group, const WorkerRules& rules,
                                 const layout::SetupFacts& facts) {
  const std::string& stage = group.warm_stage;
  if (stage.empty() || !group.parent_socket.empty()) return nullptr;
  for (const std::unique_ptr<WarmParent>& parent : warm_parents_) {
    if (parent->stage() == stage) return parent.get();
  }
  WorkerSetup setup;
  setup.set_feed(run_.config.feed());
  setup.set_config(facts.config_bytes);
  setup.set_group(stage);
  setup.set_seed(facts.seed);
  setup.add_lanes()->set_stage(stage);
  WarmParent::Hooks hooks;
  hooks.on_line = [this, stage](std::string_view line) { talk_.line(worker_source(stage), line); };
  hooks.on_event = [this](std::string_view level, std::string_view name,
                          const std::string& values) { event(level_of(level), name, values); };
  warm_parents_.push_back(std::make_unique<WarmParent>(
      loop_, stage, rules.binary, setup.SerializeAsString(), std::move(hooks)));
  // What it forks becomes a child of this process.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return warm_parents_.back().get();
}

// One for each socket; nullptr: the group's processes are started from here.
GivenParent* Feed::given_parent_of(const layout::GroupPlan& group) {
  const std::string& path = group.parent_socket;
  if (path.empty()) return nullptr;
  for (const std::unique_ptr<GivenParent>& parent : given_parents_) {
    if (parent->path() == path) return parent.get();
  }
  GivenParent::Hooks hooks;
  hooks.on_ready = [this, path](bool all) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      if (memory_.layout().groups[worker->group()].parent_socket != path) continue;
      worker->parent_ready(all);
    }
  };
  hooks.on_work = [this, path](const std::string& name) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      const layout::GroupPlan& plan = memory_.layout().groups[worker->group()];
      if (plan.parent_socket == path && plan.name == name) worker->parent_ready(true);
    }
  };
  hooks.on_ended = [this](pid_t pid) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->heard_ending(pid);
  };
  hooks.on_over = [this, path] {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      if (memory_.layout().groups[worker->group()].parent_socket == path) worker->dismiss();
    }
  };
  hooks.on_event = [this](std::string_view level, std::string_view name,
                          const std::string& values) { event(level_of(level), name, values); };
  given_parents_.push_back(std::make_unique<GivenParent>(loop_, path, std::move(hooks)));
  given_parents_.back()->look_after();
  return given_parents_.back().get();
}

// Those that are started from here: once all of a stage's processes have loaded what they need, so
// that they need not share the processors with them.
void Feed::look_after_parents() {
  for (const std::unique_ptr<GivenParent>& parent : given_parents_) parent->look_after();
  if (phase_ != Phase::kRunning) return;
  for (const std::unique_ptr<WarmParent>& parent : warm_parents_) {
    const auto waits = [&](const std::unique_ptr<GroupProcess>& worker) {
      return memory_.layout().groups[worker->group()].warm_stage == parent->stage() &&
             worker->state() == ChildState::kStarting;
    };
    if (std::ranges::none_of(workers_, waits)) parent->look_after();
  }
}

// A feed that trainers share is nobody's. Its warm parent ends it; if that was killed, a trainer
// starts another one. If the trainers have gone as well, nobody is left who knows of it.
void Feed::look_for_desertion() {
  const bool there = run_.owner >= 0 || given_parents_.empty() || any_trainer() ||
                     std::ranges::any_of(given_parents_, &GivenParent::ready) ||
                     (phase_ != Phase::kStarting && phase_ != Phase::kRunning);
  if (there) {
    deserted_ms_ = 0;
  } else if (deserted_ms_ == 0) {
    deserted_ms_ = now_ms();
  } else if (now_ms() > deserted_ms_ + kDesertedMs) {
    stop(fmt::format("its warm parent and its trainers have been gone for {} s",
                     kDesertedMs / 1'000));
  }
}

// Processes that users' code started and left behind come to this process when their parents die.
// One that has ended is reaped when two looks have found it: those that are waited for are gone by
// then.
void Feed::reap_strays() {
  if (warm_parents_.empty()) return;
  siginfo_t info{};
  const int found = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
  const pid_t pid = found == 0 ? info.si_pid : 0;
  if (pid != 0 && pid == stray_) ::waitpid(pid, nullptr, WNOHANG);
  stray_ = pid;
}

// For whoever has to clean up after this process.
void Feed::record_workers() {
  record_due_ = true;  // until it is written: there may be no memory for it
  control::LockRecord record;
  record.supervisor = self_;
  record.files = memory_.files();
  record.boot = boot_;
  record.namespaces = namespaces_;
  struct stat locked {};
  if (::fstat(lock_.worker_lock(), &locked) == 0) {
    record.lock_device = locked.st_dev;
    record.lock_inode = locked.st_ino;
  }
  const shm::FeedId& id = memory_.identity().feed_id;
  record.feed_id.assign(reinterpret_cast<const char*>(id.data()), id.size());
  record.seed = run_.seed;
  record.config = run_.recorded_config;
  record.groups = run_.recorded_groups;
  record.snapshot = snapshots_.newest().empty() ? run_.resumed_from : snapshots_.newest();
  // First those of the supervisor before, for they hold the memory as long as they live: one that
  // had got it and did not run its lanes yet is none of this one's workers.
  // A few descriptors, for that is a look at files of the system, and for the record itself.
  const DescriptorReserve::Loan loan(reserve_, kReserveForClients);
  record.workers = workers_before_;
  std::erase_if(record.workers, [](const auto& worker) { return !is_alive(worker.second); });
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    if (worker->identity().pid == 0) continue;
    std::erase_if(record.workers,
                  [&](const auto& left) { return left.second.pid == worker->identity().pid; });
    record.workers.emplace_back(worker->name(), worker->identity());
  }
  const Status written = lock_.write(record);
  record_due_ = !written.ok();
  note_problem(
      "record",
      written ? std::string()
              : fmt::format("the record of the feed for the next supervisor is out of date: {}",
                            written.error().message()));
  if (written && run_.on_recorded) std::exchange(run_.on_recorded, {})();
}

int Feed::run() {
  try {
    serve();
  } catch (...) {
    if (lives_) {
      memory_.remove_files(false);
      for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->leave();
    }
    lock_.keep(lock_.keeps() || lives_);
    throw;
  }
  control::LockRecord over;
  over.supervisor = self_;  // it runs for as long as the lock is held
  over.files = memory_.files();
  over.over = true;
  // Whoever looks at feeds from outside would see it vanish.
  if (phase_ == Phase::kFailing) over.failed = reason_.substr(0, kRecordedReasonBytes);
  lock_.keep(!over.failed.empty());
  static_cast<void>(
      lock_.write(over));  // Its place may be gone or full: the files go all the same.
  memory_.remove_files(true);
  return status_;
}

void Feed::serve() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  whole.l_len = 1;  // byte 0 is the supervisor's
  if (::fcntl(memory_.fd(memory_.layout().locks_segment), F_SETLK, &whole) != 0) {
    if (errno != EAGAIN && errno != EACCES) {
      throw Error(system_code(errno),
                  fmt::format("the memory of the feed cannot be locked: {}", std::strerror(errno)));
    }
    throw Error(ErrorCode::kBusy, "the memory of the feed has another supervisor");
  }
  watch_signals();
  watch_owner();
  // relaxed: published by the release of the phase.
  memory_.state().supervisor_pid.store(static_cast<std::uint32_t>(::getpid()),
                                       std::memory_order_relaxed);
  if (!adopts_) {
    RF_FAILPOINT("supervisor.feed.laid_out");
    memory_.set_phase(shm::FeedPhase::kStarting, "");
    for (const std::unique_ptr<Output>& output : outputs_) declare_groups(*output);
    make_workers();
    record_workers();
    RF_FAILPOINT("supervisor.feed.recorded");
    for (const std::unique_ptr<GroupProcess>& worker : workers_) {
      // One that is forked by somebody else may have to wait for that.
      const bool given = !memory_.layout().groups[worker->group()].parent_socket.empty();
      given ? worker->start_late() : worker->start();
    }
  }
  server_ = std::make_unique<control::ControlServer>(
      loop_, run_.socket,
      control::ControlServer::Handlers{
          [this](control::ConnectionId id, const Request& request) { answer(id, request); },
          [this](control::ConnectionId id) {
            for (const auto& output : outputs_) output->trainers.connection_closed(id);
          },
          [this](std::uint64_t times, const std::string& why) {
            note_problem(
                "connections",
                times == 0 ? std::string()
                           : fmt::format("connections cannot be accepted: {}: raise the open-file "
                                         "limit of the supervisor, or let trainers leave",
                                         why));
          }},
      &reserve_);
  if (run_.on_listening) run_.on_listening();
  if (adopts_) take_over();
  event(metrics::Level::kInfo,
        !adopts_                    ? "feed_started"
        : run_.resumed_from.empty() ? "feed_adopted"
                                    : "feed_resumed",
        fmt::format("pid={} socket={} seed={}{}", ::getpid(), log_value(run_.socket), run_.seed,
                    run_.resumed_from.empty()
                        ? std::string()
                        : fmt::format(" snapshot={} next_batch={}", log_value(run_.resumed_from),
                                      memory_.output().newest_batch() + 1)));
  lives_ = true;
  // A feed that was taken over may have got others since.
  if (!adopts_) texts_.take_configured(run_.plan);
  tick();
  if (!memory_.files().empty()) note_groups();
  keep_looking();
  keep_place();
  loop_.survive([this](const std::exception& error) { survive(error); });
  loop_.run();
  talk_.end_progress();
  RF_FAILPOINT("supervisor.feed.over");
  if (account_) make_report();
  server_.reset();
  workers_.clear();
  event(status_ == 0 ? metrics::Level::kInfo : metrics::Level::kError,
        status_ == 0 ? "feed_ended" : "feed_failed",
        fmt::format("batches={} reason={}", memory_.batches_published(), in_quotes(reason_)));
  talk_.say(totals_text());
  if (!snapshots_.ended_within(kSnapshotEndMs)) {
    event(metrics::Level::kWarn, "snapshot_hangs",
          "what=" + in_quotes("the feed has ended, but the disk of the abandoned snapshot does not "
                              "respond: this process exits as soon as it does"));
  }
}

// The feed of a supervisor that has died: lanes and trainers may have gone on without one, or not.
void Feed::take_over() {
  // acquire, pairs with the release of the dead supervisor's set_phase().
  const auto phase =
      static_cast<shm::FeedPhase>(memory_.state().phase.load(std::memory_order_acquire));
  first_batch_ = memory_.batches_published() > 0;
  scaling_.note_taken_over();
  make_workers();
  RF_FAILPOINT("supervisor.adoption.begun");
  for (const std::unique_ptr<Output>& output : outputs_) output->trainers.adopt();
  RF_FAILPOINT("supervisor.adoption.trainers");
  if (phase == shm::FeedPhase::kRunning) phase_ = Phase::kRunning;
  std::vector<GroupProcess*> dead;
  for (std::uint32_t g = 0; g < workers_.size(); ++g) {
    const std::vector<std::uint32_t>& lanes = memory_.layout().groups[g].lanes;
    // The kernel knows who holds the lanes, also of a process that was started just before the
    // death and is in no record.
    const pid_t holder = memory_.lock_holder(g);
    const std::optional<std::uint64_t> ticks =
        holder > 0 ? start_ticks(holder) : std::optional<std::uint64_t>();
    const bool adopted = ticks && workers_[g]->adopt({holder, *ticks});
    if (std::all_of(lanes.begin(), lanes.end(),
                    [this](std::uint32_t lane) { return memory_.lane_finished(lane); })) {
      workers_[g]->adopt_finished();
    }
    if (!adopted) dead.push_back(workers_[g].get());
    RF_FAILPOINT("supervisor.adoption.worker");
  }
  // Who lives is written down before anybody else is started.
  record_workers();
  RF_FAILPOINT("supervisor.adoption.living");
  for (GroupProcess* worker : dead) {
    if (!is_over(worker->state())) {
      worker->start_late();
    } else if (memory_.files().empty()) {
      worker->start_idle();
    }
  }
  RF_FAILPOINT("supervisor.adoption.recorded");
  // Whoever the dead one owed a bell.
  memory_.ring_all_lanes();
  for (const std::unique_ptr<Output>& output : outputs_) output->memory.ring_feed();
  if (phase == shm::FeedPhase::kDraining) drain("an earlier drain continues");
  if (phase == shm::FeedPhase::kStarting) worker_ready();
  worker_over();
}

void Feed::park(std::uint64_t ticket) {
  for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->park(ticket);
}

bool Feed::all_over() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return is_over(worker->state()); });
}

void Feed::worker_ready() {
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    if (worker->state() != ChildState::kRunning) continue;
    restarts_.ready(worker->name(), worker->identity().pid);
  }
  const bool all = std::all_of(workers_.begin(), workers_.end(),
                               [](const auto& worker) { return worker->ready(); });
  if (phase_ != Phase::kStarting || !all) return;
  phase_ = Phase::kRunning;
  memory_.set_phase(shm::FeedPhase::kRunning, "");
  event(metrics::Level::kInfo, "feed_running",
        fmt::format("workers={} after_ms={}", workers_.size(), now_ms() - started_ms_));
}

void Feed::worker_over() {
  if (!all_over()) return;
  switch (phase_) {
    case Phase::kStarting:
    case Phase::kRunning:
    case Phase::kDraining:
      return linger();
    case Phase::kStopping:
      // Not kEnded: what was under way is lost, and trainers are to know that this is no end.
      memory_.set_phase(shm::FeedPhase::kStopped, reason_);
      tell_trainers();
      return finish(0);
    case Phase::kFailing:
      if (!tells_reason_) finish(1);
      return;
    case Phase::kLingering:
      return;
  }
}

// Ordered once, and done although there may be no memory for it at this moment.
void Feed::order_end(bool now, const std::string& why) {
  try {
    now ? stop(why) : drain(why);
  } catch (const std::bad_alloc&) {
    end_due_ = now || end_due_.value_or(false);
    throw;
  }
}

void Feed::drain(const std::string& why) {
  if (phase_ == Phase::kFailing) return stop(why);
  if (draining_) return;
  const std::uint64_t timeout_ms = std::uint64_t{run_.config.shutdown().drain_timeout_s()} * 1000;
  reason_ = why;
  loop_.after(timeout_ms, [this, timeout_ms] {
    stop(fmt::format("{}; the drain took longer than {} s", reason_, timeout_ms / 1000));
  });
  draining_ = true;
  if (phase_ == Phase::kStarting || phase_ == Phase::kRunning) {
    phase_ = Phase::kDraining;
    memory_.set_phase(shm::FeedPhase::kDraining, why);
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->drain();
    tell_trainers();
  }
  event(metrics::Level::kInfo, "feed_draining",
        fmt::format("timeout_s={} reason={}", timeout_ms / 1000, in_quotes(why)));
}

void Feed::stop(const std::string& why) {
  if (phase_ == Phase::kFailing) return end_telling();
  if (phase_ == Phase::kStopping) return;
  reason_ = why;
  draining_ = true;
  if (phase_ == Phase::kLingering) return finish(0);
  phase_ = Phase::kStopping;
  snapshots_.give_up(why);
  scaling_.give_up(why);
  event(metrics::Level::kInfo, "feed_stopping", "reason=" + in_quotes(why));
  for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->stop();
  worker_over();
}

void Feed::fail(const std::string& reason) {
  if (phase_ == Phase::kFailing) return;
  // A trainer that is being started is to meet the reason and not a missing feed.
  tells_reason_ = !draining_ && !any_came();
  if (tells_reason_) loop_.after(kEmptyFeedMs, [this] { end_telling(); });
  reason_ = fmt::format("feed '{}' has failed: {}", run_.config.feed(), reason);
  phase_ = Phase::kFailing;
  // First in the log: a trainer that meets the phase reads there all that has no room beside it.
  talk_.end_progress();
  talk_.say(reason_);
  memory_.set_phase(shm::FeedPhase::kFailed, reason_);
  snapshots_.give_up(reason);
  scaling_.give_up(reason);
  tell_trainers();
  if (tells_reason_) {
    talk_.say(fmt::format("no trainer has come yet: one that comes within {} s is told so",
                          kEmptyFeedMs / 1000));
  }
  for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->stop();
  worker_over();
}

void Feed::end_telling() {
  tells_reason_ = false;
  worker_over();
}

// What the stages have counted: "provider: files_found=3; loader: skipped_extension=3".
std::string Feed::counts_text() const {
  StatusReply status;
  metrics::fill_stages(memory_, run_.plan, std::vector<metrics::GroupFacts>(workers_.size()),
                       status);
  std::string text;
  for (const StageStatus& stage : status.stages()) {
    std::vector<std::string> facts;
    if (!stage.progress().empty()) facts.push_back(stage.progress());
    for (const CounterStatus& counter : stage.counters()) {
      if (counter.value() == 0) continue;
      facts.push_back(fmt::format("{}={}", counter.name(), counter.value()));
    }
    if (facts.empty()) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", stage.name(), fmt::join(facts, ", "));
  }
  return text.empty() ? "nothing was counted" : text;
}

void Feed::count_losses() {
  StatusReply status;
  metrics::fill_stages(memory_, run_.plan,
                       std::vector<metrics::GroupFacts>(memory_.layout().groups.size()), status);
  // Behind the counters: of what these count the log has the first already.
  for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->read_log();
  losses_.count(status);
}

// Too many end the feed; a share that people should know of is a problem of it until the end.
void Feed::look_at_losses() {
  const bool runs = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  if (!runs || now_ms() < losses_looked_ms_ + kLossesMs) return;
  losses_looked_ms_ = now_ms();
  count_losses();
  if (const std::string over = losses_.over_limit(run_.config); !over.empty()) return fail(over);
  const Losses::Share* whole = losses_.largest(kMostAfter);
  most_is_left_out_ = whole != nullptr && whole->value() > kMostOfThem;
  if (!most_is_left_out_) whole = losses_.largest(kLossesAfter);
  if (whole == nullptr || whole->value() < kLossesShare) return;
  left_out_ = losses_.text_of(*whole);
  problems_["losses"].text = left_out_;
  if (losses_.left_out() < losses_told_at_) return;
  losses_told_at_ = 2 * losses_.left_out();
  event(metrics::Level::kWarn, "samples_left_out", "what=" + in_quotes(left_out_));
  tell_all(&Feed::tell_left_out);  // whoever trains on the rest: at his next batch
}

void Feed::tell_left_out(control::ConnectionId connection) {
  if (left_out_.empty() || !server_) return;
  Reply reply;
  reply.set_id(0);
  reply.mutable_event()->set_left_out(escaped(left_out_.substr(0, kNoticeBytes)));
  server_->send(connection, reply);
}

void Feed::tell_stands_still(control::ConnectionId connection) {
  if (stands_still_.empty() || !server_) return;
  Reply reply;
  reply.set_id(0);
  reply.mutable_event()->set_stands_still(escaped(stands_still_.substr(0, kNoticeBytes)));
  server_->send(connection, reply);
}

// Who has only just come hears what the others have heard.
void Feed::tell_notices(control::ConnectionId connection) {
  tell_left_out(connection);
  tell_stands_still(connection);
}

void Feed::tell_all(void (Feed::*what)(control::ConnectionId)) {
  for (const std::unique_ptr<Output>& output : outputs_) {
    for (const control::ConnectionId connection : output->trainers.connections()) {
      (this->*what)(connection);
    }
  }
}

// At the end of a run: how many rows came, and how many did not.
void Feed::tell_losses() {
  const std::uint64_t left_out = losses_.left_out();
  std::string values = fmt::format("rows={} left_out={}", losses_.rows(), left_out);
  if (losses_.rows_dropped() != 0) values += fmt::format(" dropped={}", losses_.rows_dropped());
  if (left_out != 0) values += " reasons=" + in_quotes(losses_.counts_text());
  event(left_out == 0 ? metrics::Level::kInfo : metrics::Level::kWarn, "run_over", values);
}

// What the feed came to, for the person who started it: a line for itself and one for each stage
// that has counted anything.
std::string Feed::totals_text() const {
  StatusReply status;
  metrics::fill_stages(memory_, run_.plan,
                       std::vector<metrics::GroupFacts>(memory_.layout().groups.size()), status);
  std::string text =
      fmt::format("feed {}: {} batches in {:.1f} s, {} {}", run_.config.feed(),
                  memory_.batches_published(), static_cast<double>(now_ms() - started_ms_) / 1e3,
                  deaths_, deaths_ == 1 ? "death of a stage" : "deaths of stages");
  for (const StageStatus& stage : status.stages()) {
    std::vector<std::string> facts;
    for (const CounterStatus& counter : stage.counters()) {
      if (counter.value() == 0) continue;
      facts.push_back(fmt::format("{}={}", counter.name(), counter.value()));
    }
    if (!facts.empty()) text += fmt::format("\n  {}: {}", stage.name(), fmt::join(facts, ", "));
  }
  return text;
}

// Everybody has had everything. A trainer that has just been told of the end asks for the totals,
// and gets them; one that does not is not waited for long.
bool Feed::totals_awaited() {
  if (!any_trainer()) return false;
  if (needless_ms_ == 0) needless_ms_ = now_ms();
  lingers_for_ = "trainers are being told that the feed is over";
  return now_ms() < needless_ms_ + kTotalsMs;
}

// Every lane is at its end: what is published stays, until everyone has had it.
void Feed::linger() {
  count_losses();
  if (const std::string over = losses_.over_limit(run_.config); !over.empty() && !draining_) {
    loop_.after(0, [this, over] { fail(over); });
    return;
  }
  if (run_.config.epochs() > 0 && !draining_ && memory_.batches_published() == 0) {
    // Not at once: a feed that has just been taken over has no loop yet that could be ended.
    loop_.after(0, [this] {
      fail(fmt::format("the run ended without a single batch: {}{}", counts_text(),
                       losses_.first_text()));
    });
    return;
  }
  phase_ = Phase::kLingering;
  ended_ms_ = now_ms();
  if (reason_.empty()) reason_ = "the run is over";
  tell_losses();
  RF_FAILPOINT("supervisor.feed.ending");
  memory_.set_phase(shm::FeedPhase::kEnded, reason_);
  event(metrics::Level::kInfo, "lanes_finished",
        fmt::format("batches={}", memory_.batches_published()));
  // Asked here already, so that no status says ENDED without what it waits for.
  static_cast<void>(still_needed());
  log_drain();
  tell_trainers();
  // The next look is now and not at the end of the pause that began before.
  const EventLoop::TimerId next = loop_.after(0, [this] { tick(); });
  loop_.cancel(std::exchange(tick_, next));
}

bool Feed::still_needed() {
  lingers_for_.clear();
  for (const std::unique_ptr<Output>& output : outputs_) {
    const std::optional<std::string> reason = reason_to_linger(
        output->groups, {draining_, now_ms(), ended_ms_, output->memory.batches_published(),
                         output->memory.layout().keep_newest, memory_.batches_published() == 0});
    if (!reason) continue;
    if (!lingers_for_.empty()) lingers_for_ += "; ";
    if (!output->memory.layout().alias.empty()) {
      lingers_for_ += fmt::format("output '{}': ", output->memory.layout().alias);
    }
    lingers_for_ += *reason;
  }
  return !lingers_for_.empty();
}

bool Feed::ever_joined() const {
  return std::all_of(outputs_.begin(), outputs_.end(),
                     [](const auto& output) { return output->groups.ever_joined(); });
}

bool Feed::any_came() const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [](const auto& output) { return output->groups.any_came(); });
}

bool Feed::nobody_takes() const {
  bool any_waits = false;
  for (const std::unique_ptr<Output>& output : outputs_) {
    if (output->memory.layout().keep_newest) continue;
    if (!drain_is_hopeless(output->groups, output->memory.all_closed())) return false;
    any_waits = true;
  }
  return any_waits;
}

bool Feed::any_trainer() const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [](const auto& output) { return output->groups.live_members() != 0; });
}

// At the end of a tick: whoever does not get there does not work.
void Feed::tell_service(bool over) {
  if (!service_.listens()) return;
  const std::string state = StatusReply::State_Name(static_cast<StatusReply::State>(shown_state()));
  const std::uint64_t batches = memory_.batches_published();
  std::string status = fmt::format("{}, {} {}", state, batches, batches == 1 ? "batch" : "batches");
  const std::string more = phase_ == Phase::kFailing ? reason_ : awaited().text;
  if (!more.empty()) status += "; " + more;
  service_.look({.ready = phase_ != Phase::kStarting,
                 .stopping = over || draining_ || phase_ == Phase::kFailing,
                 .state = state,
                 .status = status},
                now_ms());
  note_problem("service_manager", service_.problem());
}

void Feed::finish(int status) {
  snapshots_.give_up(reason_);
  scaling_.give_up(reason_);
  status_ = status;
  loop_.stop();
  // Last: it may lack memory, and the feed ends all the same.
  tell_service(true);
}

void Feed::advance_groups(Output& output) {
  const control::ConsumerGroups& groups = output.groups;
  const std::string& alias = output.memory.layout().alias;
  const std::string of = alias.empty() ? std::string() : fmt::format("output={} ", alias);
  for (const auto& change : output.groups.advance(now_ms())) {
    const std::string name = log_value(change.name);
    switch (change.state) {
      case shm::GroupState::kActive:
        event(metrics::Level::kInfo, "group_joined",
              fmt::format("{}group={} from_batch={}", of, name, groups.start(change.group)));
        break;
      case shm::GroupState::kDraining:
        event(metrics::Level::kWarn, "group_leaving",
              fmt::format("{}group={} members={}{}", of, name, groups.live_members(change.group),
                          change.damage.empty()
                              ? std::string()
                              : fmt::format(" damaged={}", log_value(change.damage))));
        break;
      case shm::GroupState::kUnused:
        event(metrics::Level::kInfo, "group_left", fmt::format("{}group={}", of, name));
        break;
      case shm::GroupState::kJoining:
        break;
    }
  }
}

void Feed::advance_groups() {
  bool in_motion = false;
  for (const std::unique_ptr<Output>& output : outputs_) {
    advance_groups(*output);
    in_motion = in_motion || output->groups.in_motion();
  }
  if (!in_motion || moving_) return;
  loop_.after(kMotionMs, [this] {
    moving_ = false;
    advance_groups();
  });
  moving_ = true;
}

// What files do not hold: if all processes die now, the groups go on from here.
void Feed::note_groups() {
  for (const std::unique_ptr<Output>& output : outputs_) output->groups.note_words();
  loop_.after(kNoteMs, [this] { note_groups(); });
}

void Feed::tick() {
  reserve_.refill();
  look_after_workers();
  for (const std::unique_ptr<Output>& output : outputs_) output->trainers.look_for_left();
  advance_groups();
  for (const std::unique_ptr<Output>& output : outputs_) output->waits.look(now_ms());
  end_unread();
  look_for_trials();
  look_for_late_starts();
  look_for_stalls();
  look_for_standstill();
  if (phase_ == Phase::kRunning && !lanes_park()) {
    scaling_.follow_configuration();
    auto_snapshots_.look(now_ms(), memory_.output().numbers_used());
  }
  if (phase_ == Phase::kLingering && !snapshots_.under_way() && !still_needed() &&
      !totals_awaited()) {
    return finish(0);
  }
  if (phase_ == Phase::kDraining && nobody_takes()) {
    stop(reason_ + "; there is no trainer to take the work in progress");
  }
  look_at_losses();
  log_drain();
  show_progress();
  tell_service(false);
  loop_.cancel(tick_);
  tick_ = loop_.after(phase_ == Phase::kLingering ? kLingerTickMs : kTickMs, [this] { tick(); });
}

// A stage may end before those that feed it: a mixer ends with one of its inputs. Once the last
// stages are at their end nobody will read what the others output, and these would wait for room
// for ever.
void Feed::end_unread() {
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) return;
  if (lanes_park()) return;  // they count on lanes that park
  const auto finished = [this](std::uint32_t lane) { return memory_.lane_finished(lane); };
  for (const layout::OutputLayout& output : memory_.layout().outputs) {
    if (!std::all_of(output.producing_lanes.begin(), output.producing_lanes.end(), finished))
      return;
  }
  for (std::size_t g = 0; g < workers_.size(); ++g) {
    const auto& lanes = memory_.layout().groups[g].lanes;
    if (is_over(workers_[g]->state()) || std::all_of(lanes.begin(), lanes.end(), finished))
      continue;
    if (!unread_.insert(g).second) continue;
    event(metrics::Level::kInfo, "worker_unread", fmt::format("group={}", workers_[g]->name()));
    workers_[g]->stop();
  }
}

// Does what an event asked for when there was no memory for it. Each of these acts on the state
// that it finds, so it may be repeated.
void Feed::look_after_workers() {
  look_after_parents();
  look_for_desertion();
  keep_web();
  reap_strays();
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    worker->look_after();
    if (worker->state() == ChildState::kLost) {
      fail(fmt::format("stage group '{}' cannot continue", worker->name()));
    }
    const bool ending = phase_ == Phase::kStopping || phase_ == Phase::kFailing;
    if (ending && !is_over(worker->state()) && worker->state() != ChildState::kStopping) {
      worker->stop();
    }
  }
  worker_ready();
  if (phase_ != Phase::kLingering) worker_over();
  if (!end_due_) return;
  const bool now = *end_due_;
  order_end(now, "stopped by a request that had to wait for memory");
  end_due_.reset();
}

// Whoever asked for a new program gets an answer, and the feed its old one back.
void Feed::look_for_trials() {
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    if (!worker->on_trial() || now_ms() < worker->started_ms() + kStartMsMax) continue;
    event(metrics::Level::kWarn, "worker_stalled",
          fmt::format("group={} starting_for_ms={}", worker->name(),
                      now_ms() - worker->started_ms()));
    worker->kill();
  }
}

// Nobody else looks at a process before it is ready.
void Feed::look_for_late_starts() {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) return;
  for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->look_at_start();
}

// A lane that works has committed a step within stall_ms; one that sleeps has looked around (it
// does every kSleepMsMax, whether or not it is woken). One that has done neither hangs, or its
// process is stopped: it is replaced. So is a process whose lanes are all at their end, and which
// does not end: nobody waits for another one of its kind.
void Feed::look_for_stalls() {
  const std::uint64_t stall_ms = run_.config.restart().stall_ms();
  if (stall_ms == 0 || phase_ == Phase::kLingering || phase_ == Phase::kStopping ||
      phase_ == Phase::kFailing) {
    return;
  }
  const std::uint64_t now = now_ms();
  // Who was held up together with this process has had no time of its own.
  if (now > std::exchange(ticked_ms_, now) + kTickMs + kLateMs) patient_until_ms_ = now + stall_ms;
  if (now < patient_until_ms_) return;
  for (std::size_t g = 0; g < workers_.size(); ++g) {
    GroupProcess& worker = *workers_[g];
    if (worker.state() == ChildState::kStarting) {
      if (worker.on_trial() || now < worker.started_ms() + std::max(stall_ms, kStartMsMax))
        continue;
      event(metrics::Level::kWarn, "worker_stalled",
            fmt::format("group={} starting_for_ms={}", worker.name(), now - worker.started_ms()));
      worker.kill();
      continue;
    }
    if (worker.state() != ChildState::kRunning) continue;
    bool all_finished = true;
    std::uint64_t newest_ms = 0;
    for (const std::uint32_t index : memory_.layout().groups[g].lanes) {
      const shm::LanePage& lane = memory_.lane(index);
      const bool finished = memory_.lane_finished(index);
      // relaxed, both: a lane that moves on meanwhile is looked at again in the next tick.
      const std::uint64_t moved_ms =
          std::max({worker.ready_ms(), lane.progress_ns.load(std::memory_order_relaxed) / 1'000'000,
                    lane.woke_ns.load(std::memory_order_relaxed) / 1'000'000});
      newest_ms = std::max(newest_ms, moved_ms);
      all_finished = all_finished && finished;
      if (finished || now < moved_ms + stall_ms) continue;
      if (!worker.stalled()) {
        event(metrics::Level::kWarn, "worker_stalled",
              fmt::format("group={} lane={} without_step_ms={}", worker.name(),
                          memory_.layout().lanes[index].name(), now - moved_ms));
      }
      worker.kill_stalled(index);
      break;
    }
    if (all_finished && now >= newest_ms + stall_ms) {
      event(metrics::Level::kWarn, "worker_stalled",
            fmt::format("group={} ending_for_ms={}", worker.name(), now - newest_ms));
      worker.kill();
    }
  }
}

// Nobody works and trainers wait: they and whoever looks at the feed are told, until it goes on.
void Feed::look_for_standstill() {
  const auto goes_on = [this] {
    stands_still_.clear();
    problems_.erase("standstill");
    event(metrics::Level::kInfo, "feed_goes_on", {});
  };
  if (phase_ != Phase::kRunning && phase_ != Phase::kDraining) {
    if (!stands_still_.empty()) goes_on();
    return;
  }
  if (lanes_park()) return;
  std::vector<Standstill::Output> outputs;
  for (const std::unique_ptr<Output>& output : outputs_)
    outputs.push_back({&output->memory, &output->groups});
  const std::uint64_t stood_ms = standstill_.look(memory_, outputs, now_ms());
  if ((stood_ms != 0) == !stands_still_.empty()) return;
  if (stood_ms == 0) return goes_on();
  stands_still_ = fmt::format(
      "nobody has worked for {} s, and trainers wait: {}. A stage that sleeps before its records "
      "is at fault (`ringfeed restart {} GROUP` begins it again, and loses nothing); where "
      "branches "
      "meet, a larger queue_capacity may help",
      stood_ms / 1000, lanes_text(memory_), run_.config.feed());
  problems_["standstill"].text = stands_still_;
  event(metrics::Level::kWarn, "feed_stands_still",
        fmt::format("for_ms={} what={}", stood_ms, in_quotes(stands_still_)));
  tell_all(&Feed::tell_stands_still);
}

std::string Feed::waiting_text() const {
  if (phase_ == Phase::kLingering) return lingers_for_;
  if (phase_ == Phase::kFailing || phase_ == Phase::kStopping) return {};
  std::vector<std::string> waits;
  for (const std::unique_ptr<Output>& output : outputs_) {
    const std::uint64_t batches = output->memory.batches_published();
    if (batches != 0 && !output->groups.ever_joined()) {
      waits.push_back(fmt::format("{} batches{} are ready and wait for the first trainer", batches,
                                  output->memory.layout().shown()));
    } else if (output->memory.layout().keep_newest) {
      continue;  // waits for nobody
    } else if (const std::optional<std::string> held = output->waits.text(now_ms())) {
      waits.push_back(*held + output->memory.layout().shown());
    }
  }
  if (!waits.empty()) return fmt::format("{}", fmt::join(waits, "; "));
  if (phase_ == Phase::kRunning && most_is_left_out_) return left_out_;
  if (phase_ != Phase::kDraining) return {};
  std::vector<std::string> busy;
  for (const std::unique_ptr<GroupProcess>& worker : workers_) {
    if (!is_over(worker->state())) busy.push_back(worker->name());
  }
  return fmt::format("the feed waits for stage group {}, which is finishing the work in progress",
                     fmt::join(busy, ", "));
}

// For whom an end that was ordered has to wait, once for each of them.
void Feed::log_drain() {
  if (!draining_ || (phase_ != Phase::kDraining && phase_ != Phase::kLingering)) return;
  std::vector<std::string> waits;
  for (const std::unique_ptr<Output>& output : outputs_) {
    const control::ConsumerGroups& groups = output->groups;
    const auto add = [&](std::uint32_t g) {
      waits.push_back(fmt::format("{}.{}", output->memory.layout().alias, groups.terms(g).name));
    };
    if (phase_ == Phase::kLingering) {
      for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
        if (groups.state(g) != shm::GroupState::kUnused && groups.unfinished(g, true) != 0) add(g);
      }
    } else {
      if (output->memory.layout().keep_newest) continue;
      for (const std::uint32_t g : groups.holding_up()) add(g);
    }
  }
  const std::string text = waiting_text();
  bool news = false;
  for (const std::string& name : waits) news = drain_waits_.insert(name).second || news;
  if (!news || text.empty()) return;
  event(metrics::Level::kInfo, "drain_waits", "for=" + in_quotes(text));
}

}  // namespace ringfeed::process
