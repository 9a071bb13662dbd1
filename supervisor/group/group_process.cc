#include "supervisor/group/group_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "proto/config.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/group/backtrace.h"
#include "supervisor/group/given_parent.h"
#include "supervisor/os/packet.h"
#include "supervisor/os/text.h"

namespace ringfeed::process {
namespace {

// In the reason of a lost feed: enough to see why, short enough for one sentence.
constexpr std::size_t kLastWordsLines = 3;

// For a lane that hangs to write where it is (workers/runtime/fault.h).
constexpr std::uint64_t kBacktraceMs = 300;
// An idle process that has died too often waits so long for its successor.
constexpr std::uint64_t kIdlePauseMsMax = 60'000;
// A parent tells at once how its child has ended; the death itself is proved already. One that is
// slow to tell would be slow to fork the next one, too.
constexpr std::uint64_t kWordsMs = 50;
// Whoever waits for a process that is not ready after so long is told so.
constexpr std::uint64_t kSayLateMs = 5'000;
// So many in a row that are not ready in time: the next one would not be either.
constexpr std::uint32_t kLateStartsMax = 3;

// A signal that a thread gets for what it did itself (workers/runtime/fault.h).
bool is_fault(const Ending& ending) {
  return ending.known && !ending.exited &&
         (ending.signal == SIGSEGV || ending.signal == SIGBUS || ending.signal == SIGFPE ||
          ending.signal == SIGILL || ending.signal == SIGABRT);
}

// The parent that forks the processes can fork none now.
class ParentAway : public Error {
 public:
  using Error::Error;
  explicit ParentAway(const Error& error) : Error(error) {}
};

}  // namespace

// Descriptor 0 is the setup itself; the segments follow, as many a packet as it takes.
void send_setup(int socket, const WorkerSetup& setup, const layout::GroupSetup& group,
                const layout::FeedMemory& memory) {
  Result<shm::Fd> body = control::bytes_as_fd(setup.SerializeAsString(), "ringfeed-setup");
  if (!body) throw Error(body.error());
  std::vector<int> fds{body->get()};
  for (const std::uint32_t segment : group.segments) fds.push_back(memory.fd(segment));
  for (std::size_t first = 0; first < fds.size(); first += control::kDescriptorsPerPacket) {
    ToWorker packet;
    if (first == 0) {
      packet.mutable_setup()->set_descriptor_count(static_cast<std::uint32_t>(fds.size()));
    } else {
      packet.mutable_descriptors()->set_first_index(static_cast<std::uint32_t>(first));
    }
    const std::size_t count = std::min(control::kDescriptorsPerPacket, fds.size() - first);
    const Status sent = control::send_packet(socket, packet.SerializeAsString(),
                                             std::span(fds).subspan(first, count));
    // A process that is dead already will be reaped in a moment, with its own words as the reason.
    if (!sent && sent.error().code() != ErrorCode::kClosed) throw Error(sent.error());
  }
}

GroupProcess::GroupProcess(EventLoop& loop, const layout::FeedMemory& memory, std::uint32_t group,
                           const layout::SetupFacts& facts, const WorkerRules& rules, Hooks hooks)
    : loop_(loop),
      memory_(memory),
      group_(group),
      facts_(facts),
      rules_(rules),
      hooks_(std::move(hooks)),
      budget_(rules.restarts),
      suspects_(rules.max_attempts) {}

GroupProcess::~GroupProcess() {
  if (timer_) loop_.cancel(*timer_);
  if (process_.pidfd) {
    // Idle, or on the way out of a start that failed: everyone else has been stopped before.
    ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
    if (is_child_) ::kill(-process_.identity.pid, SIGKILL);
    static_cast<void>(reap(process_.pidfd));
    forget_process();
  }
}

const std::string& GroupProcess::name() const { return memory_.layout().groups[group_].name; }

bool GroupProcess::ready() const {
  return state_ == ChildState::kRunning || is_over(state_) || spared_;
}

bool GroupProcess::lanes_finished() const {
  const std::vector<std::uint32_t>& lanes = memory_.layout().groups[group_].lanes;
  return std::all_of(lanes.begin(), lanes.end(),
                     [this](std::uint32_t lane) { return memory_.lane_finished(lane); });
}

void GroupProcess::start() {
  // What an earlier supervisor has left there is not meant for this process.
  set_desires(desire_);
  spawn();
  state_ = ChildState::kStarting;
}

void GroupProcess::start_late() {
  set_desires(desire_);
  state_ = ChildState::kStarting;
  spawn_or_count();
}

void GroupProcess::spawn() {
  tail_.clear();
  stalled_.reset();
  failure_.clear();
  permanent_ = starving_ = false;
  has_run_ = has_run();
  started_ms_ = now_ms();
  ready_ms_ = 0;
  is_late_ = false;
  patient_until_ms_ = ~std::uint64_t{0};
  ++starts_;
  if (rules_.given != nullptr) {
    Result<Spawned> forked = rules_.given->spawn(name(), rules_.lock);
    if (!forked && forked.error().code() == ErrorCode::kBusy) throw ParentAway(forked.error());
    process_ = std::move(forked).value_or_throw();
    awaits_parent_ = spared_ = false;
    parent_ms_ = 0;
  } else {
    // A program on trial is started itself.
    std::optional<Spawned> forked =
        rules_.fork_warm && !binary_before_ ? rules_.fork_warm(rules_.lock) : std::nullopt;
    process_ = forked ? std::move(*forked) : spawn_worker(rules_.binary, rules_.lock);
  }
  is_child_ = rules_.given == nullptr;
  RF_FAILPOINT("supervisor.worker.spawned");
  loop_.watch(process_.pidfd.get(), [this] { process_ended(); });
  watch_links();
  // Written down before it gets the memory: if all others die, the next supervisor must know whom
  // to ask for it.
  hooks_.on_started();
  RF_FAILPOINT("supervisor.worker.recorded");
  send_setup();
  RF_FAILPOINT("supervisor.worker.set_up");
  const bool follows_death = starts_ > 1 && !dismissed_;
  if (follows_death) ++restarts_by_signal_[last_signal_];
  if (std::exchange(dismissed_, false)) ++dismissals_;
  hooks_.on_event(
      "info", follows_death ? "worker_restarted" : "worker_started",
      fmt::format("group={} pid={} incarnation={}", name(), process_.identity.pid, starts_));
}

void GroupProcess::watch_links() {
  loop_.watch(process_.socket.get(), [this] { read_messages(); });
  loop_.watch(process_.log.get(), [this] { read_log(); });
}

bool GroupProcess::adopt(const Identity& process) {
  shm::Fd pidfd = open_living(process).value_or_throw();
  if (!pidfd) return false;
  process_.identity = process;
  process_.pidfd = std::move(pidfd);
  is_child_ = false;
  ++starts_;
  started_ms_ = ready_ms_ = now_ms();
  state_ = ChildState::kRunning;
  loop_.watch(process_.pidfd.get(), [this] { process_ended(); });
  set_desires(desire_);
  hooks_.on_event("info", "worker_adopted", fmt::format("group={} pid={}", name(), process.pid));
  return true;
}

std::optional<WorkerLinks> GroupProcess::relink(pid_t peer) {
  if (!process_.pidfd || process_.identity.pid != peer) return std::nullopt;
  WorkerLinks links = make_worker_links();
  // A worker that lost the answer asks again.
  if (process_.socket) loop_.unwatch(process_.socket.get());
  if (process_.log) loop_.unwatch(process_.log.get());
  process_.socket = std::move(links.socket);
  process_.log = std::move(links.log);
  watch_links();
  // An earlier supervisor may have changed it.
  send_log_level();
  return links;
}

void GroupProcess::send_setup() {
  WorkerSetup setup;
  const layout::GroupSetup group = layout::fill_setup(memory_, group_, facts_, setup);
  setup.set_incarnation(starts_);
  if (log_level_) setup.set_log_level(static_cast<LogConfig::Level>(*log_level_));
  for (const auto& [lane, condemned] : condemned_) {
    CondemnedRecord& record = *setup.add_condemned();
    record.set_lane(lane);
    record.set_key(condemned.key);
    record.set_deaths(condemned.deaths);
    record.set_cause(condemned.cause);
  }
  process::send_setup(process_.socket.get(), setup, group, memory_);
}

void GroupProcess::read_messages() {
  if (!process_.socket) return;
  // A message leaves the queue when it has been heeded: what throws before is met again.
  while (process_.socket) {
    const int socket = process_.socket.get();
    Result<control::Packet> packet = control::peek_packet(socket);
    if (!packet || packet->end) return loop_.unwatch(socket);
    if (packet->empty) return;
    FromWorker message;
    if (message.ParseFromString(packet->bytes)) on_message(message);
    if (process_.socket.get() == socket) control::drop_packet(socket);
  }
}

void GroupProcess::on_message(const FromWorker& message) {
  if (message.has_ready()) {
    if (ready_ms_ == 0) ready_ms_ = now_ms();
    late_starts_ = 0;
    if (std::exchange(is_late_, false) && timer_)
      loop_.cancel(*std::exchange(timer_, std::nullopt));
    if (starved_ != 0) {
      hooks_.on_event("info", "worker_starved_no_more",
                      fmt::format("group={} times={}", name(), starved_));
    }
    starved_ = starved_ms_ = 0;
    if (state_ == ChildState::kStarting) {
      hooks_.on_event("info", "worker_ready",
                      fmt::format("group={} pid={} after_ms={}", name(), process_.identity.pid,
                                  ready_ms_ - started_ms_));
    }
    binary_before_.reset();
    apply(ChildEvent::kReady);
    hooks_.on_ready();
  } else if (message.has_finished()) {
    finished();
  } else if (message.has_failure()) {
    failure_ = message.failure().text();
    // What has run before fails to start for a reason that may pass: a file server that is away, a
    // program that is being replaced. Once it runs, it is a stage that ends the feed.
    permanent_ = message.failure().permanent() && (!has_run_ || ready_ms_ != 0);
    starving_ = message.failure().starved();
  } else {
    hooks_.on_message(message);
  }
}

void GroupProcess::read_log() {
  if (!process_.log) return;
  if (!tail_.read(process_.log.get(), hooks_.on_line)) loop_.unwatch(process_.log.get());
}

void GroupProcess::forget_process() {
  if (words_timer_) loop_.cancel(*words_timer_);
  words_timer_.reset();
  words_over_ = false;
  loop_.unwatch(process_.pidfd.get());
  if (process_.socket) loop_.unwatch(process_.socket.get());
  if (process_.log) loop_.unwatch(process_.log.get());
  process_ = {};
}

void GroupProcess::process_ended() {
  if (!has_ended(process_.pidfd.get()) || awaits_words()) return;
  read_log();
  tail_.finish(hooks_.on_line);
  read_messages();
  // What its code has started goes with it: its number is its group's until it is reaped.
  if (is_child_) ::kill(-process_.identity.pid, SIGKILL);
  const Ending ending = reaped();
  last_signal_ = ending.known || ending.told ? static_cast<std::size_t>(ending.signal)
                                             : std::size_t{kUnknownSignal};
  RF_FAILPOINT("supervisor.worker.reaped");
  // First of all: whoever slept on a ring to the dead may wait for a bell that nobody rings.
  memory_.ring_sleepers();
  forget_process();
  RF_FAILPOINT("supervisor.worker.forgotten");
  ending_ = ending;
  settle();
}

// Whoever has forked it is about to tell how it ended.
bool GroupProcess::awaits_words() {
  if (rules_.given == nullptr || words_over_ || !rules_.given->ready()) return false;
  if (rules_.given->ending_of(process_.identity.pid)) return false;
  if (words_timer_) return true;
  words_timer_ = loop_.after(kWordsMs, [this] {
    words_timer_.reset();
    words_over_ = true;
    process_ended();
  });
  loop_.unwatch(process_.pidfd.get());
  return true;
}

Ending GroupProcess::reaped() {
  Ending ending = reap(process_.pidfd);
  if (ending.known || rules_.given == nullptr) return ending;
  ending = rules_.given->ending_of(process_.identity.pid).value_or(ending);
  rules_.given->forget(process_.identity.pid);
  return ending;
}

void GroupProcess::heard_ending(pid_t pid) {
  if (words_timer_ && process_.identity.pid == pid) process_ended();
}

void GroupProcess::dismiss() noexcept {
  if (!process_.pidfd || (state_ != ChildState::kStarting && state_ != ChildState::kRunning)) {
    return;
  }
  dismissed_ = true;
  stalled_.reset();
  order_end();
}

void GroupProcess::parent_ready(bool has_work) {
  if (!awaits_parent_ || (spared_ && !has_work)) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  look_after();
}

// What follows the end of a process. Without memory for it nothing has followed: it is counted and
// decided once, when there is some.
void GroupProcess::settle() {
  const Ending ending = *ending_;
  RestartBudget budget = budget_;
  Suspects suspects = suspects_;
  auto condemned = condemned_;
  auto counted = counted_;
  const std::uint32_t barren = barren_;
  const ChildState state = state_;
  try {
    after_end(ending);
  } catch (...) {
    // A state that has changed is a decision that stands: what was to follow is in look_after().
    if (state_ == state && !is_over(state_) && !process_.pidfd) {
      budget_ = std::move(budget);
      suspects_ = std::move(suspects);
      condemned_.swap(condemned);
      counted_.swap(counted);
      barren_ = barren;
    } else {
      ending_.reset();
      holder_due_ = holder_due_ || (is_over(state_) && !ended_);
    }
    throw;
  }
  ending_.reset();
}

// Without memory for a timer look_after() comes instead.
void GroupProcess::when(std::uint64_t delay_ms, void (GroupProcess::*then)()) noexcept {
  if (timer_) loop_.cancel(*std::exchange(timer_, std::nullopt));
  try {
    timer_ = loop_.after(delay_ms, [this, then] {
      timer_.reset();
      (this->*then)();
    });
  } catch (const std::bad_alloc&) {
  }
}

void GroupProcess::next_try() {
  if (state_ == ChildState::kWaiting) apply(ChildEvent::kTime);
}

void GroupProcess::next_holder() {
  holder_due_ = false;
  if (!ended_ && state_ == ChildState::kDone && !process_.pidfd) spawn_or_count();
}

void GroupProcess::end_patience() {
  if (!process_.pidfd ||
      (state_ != ChildState::kStopping && state_ != ChildState::kReplacing && !dismissed_)) {
    return;
  }
  patient_until_ms_ = ~std::uint64_t{0};
  kill();
  hooks_.on_event(
      "warn", "worker_killed",
      fmt::format("group={} pid={} waited_ms={}", name(), process_.identity.pid, rules_.stop_ms));
}

void GroupProcess::look_after() {
  if (ending_) settle();
  if (timer_ || ending_) return;
  if (process_.pidfd) {
    if (now_ms() >= patient_until_ms_) end_patience();
    return;
  }
  if (state_ == ChildState::kWaiting) return next_try();
  if (state_ == ChildState::kStarting) return spawn_or_count();
  if (holder_due_) next_holder();
}

GroupProcess::DeathCount GroupProcess::count_death(const Ending& ending) {
  DeathCount count;
  struct Candidate {
    std::uint32_t lane;
    std::uint64_t key;
    std::uint64_t progress_ns;
    std::uint32_t deaths;
    Blame blame;
  };
  std::vector<Candidate> candidates;
  std::vector<std::uint32_t> lanes;
  for (const std::uint32_t index : memory_.layout().groups[group_].lanes) {
    shm::LanePage& lane = memory_.lane(index);
    // relaxed, all here and below: the lane is dead; its next incarnation reads them after exec.
    lane.crash_count.store(lane.crash_count.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
    // A process that died before it attached the lane has left what the one before it wrote.
    const std::uint32_t incarnation = lane.incarnation.load(std::memory_order_relaxed);
    if (std::exchange(counted_[index], incarnation) != incarnation) lanes.push_back(index);
  }
  const bool any_faulted = std::any_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) {
    return memory_.lane(lane).faulted.load(std::memory_order_relaxed) != 0;
  });
  for (const std::uint32_t index : lanes) {
    const shm::LanePage& lane = memory_.lane(index);
    const std::uint64_t key = lane.attempt_key.load(std::memory_order_relaxed);
    const Blame blame = blame_for(lane.faulted.load(std::memory_order_relaxed) != 0, any_faulted,
                                  stalled_ == index, stalled_.has_value(), is_fault(ending));
    const Suspects::Verdict verdict = suspects_.on_death(index, key, blame);
    count.certain = count.certain || (key != 0 && blame == Blame::kCertain);
    if (!verdict.condemned) continue;
    candidates.push_back(
        {index, key, lane.progress_ns.load(std::memory_order_relaxed), verdict.deaths, blame});
  }
  if (candidates.empty()) return count;
  const Candidate guilty = *std::min_element(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.progress_ns < b.progress_ns; });
  for (const Candidate& other : candidates) {
    if (other.lane != guilty.lane) suspects_.acquit(other.lane);
  }
  memory_.lane(guilty.lane).quarantine_key.store(guilty.key, std::memory_order_relaxed);
  const std::string lines = fmt::format("{}", fmt::join(tail_.lines(), "\n"));
  condemned_[guilty.lane] = {guilty.key, guilty.deaths,
                             fmt::format("{}{}{}", stalled_ ? "stalled" : ending.text(),
                                         lines.empty() ? "" : "\n", lines)};
  count.explained = guilty.deaths;
  // A stage that dies on every record is broken, and not its data.
  const std::uint64_t steps = group_steps();
  barren_ = steps - std::min(steps, steps_at_verdict_) <= lanes.size() ? barren_ + 1 : 0;
  steps_at_verdict_ = steps;
  hooks_.on_event(
      "warn", "record_quarantined",
      fmt::format("lane={} key={:#x} deaths={}", memory_.layout().lanes[guilty.lane].name(),
                  guilty.key, guilty.deaths));
  return count;
}

std::string GroupProcess::last_words() const {
  return failure_.empty() ? tail_.last_words(kLastWordsLines) : failure_;
}

std::uint64_t GroupProcess::group_steps() const {
  std::uint64_t steps = 0;
  for (const std::uint32_t lane : memory_.layout().groups[group_].lanes) {
    // relaxed: a number.
    steps += memory_.lane(lane).counters.steps.load(std::memory_order_relaxed);
  }
  return steps;
}

// Has a lane of the process that has just ended committed a step?
bool GroupProcess::has_worked() const {
  const std::vector<std::uint32_t>& lanes = memory_.layout().groups[group_].lanes;
  return ready_ms_ != 0 && std::any_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) {
           // relaxed: it is dead.
           return memory_.lane(lane).progress_ns.load(std::memory_order_relaxed) / 1'000'000 >
                  started_ms_;
         });
}

// Has any process of it, also of an earlier supervisor's, had its lanes?
bool GroupProcess::has_run() const {
  const std::vector<std::uint32_t>& lanes = memory_.layout().groups[group_].lanes;
  return std::any_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) {
    return memory_.lane(lane).incarnation.load(std::memory_order_relaxed) != 0;  // relaxed: a hint
  });
}

// Its lanes have nothing more to do; the process stays.
void GroupProcess::finished() {
  if (is_over(state_) || !lanes_finished()) return;
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  hooks_.on_event("info", "worker_finished", fmt::format("group={}", name()));
  apply(ChildEvent::kFinished);
}

// A process that was idle has died, or its successor: nothing has to be done again, but the memory
// has lost a holder.
void GroupProcess::keep_memory(const Ending& ending) {
  if (state_ != ChildState::kDone || ended_) return;
  if (starving_) return wait_out(failure_);
  if (permanent_) return hooks_.on_lost(failure_);
  const RestartBudget::Verdict verdict = budget_.on_death(now_ms(), now_ms() - started_ms_, false);
  // Its death ends no feed, but others may need it (who fetches files serves until the end): after
  // too many deaths the next one comes late.
  const std::uint64_t delay_ms =
      verdict.give_up ? std::min(rules_.restarts.within_ms, kIdlePauseMsMax) : verdict.delay_ms;
  hooks_.on_event(
      "warn", "idle_worker_died",
      fmt::format("group={} {}={} deaths={} restart_in_ms={}", name(),
                  ending.exited ? "status" : "signal",
                  ending.exited ? ending.status : ending.signal, verdict.deaths, delay_ms));
  holder_due_ = true;
  when(delay_ms, &GroupProcess::next_holder);
}

void GroupProcess::after_end(const Ending& ending) {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (is_over(state_)) return keep_memory(ending);
  if (lanes_finished()) {
    if (!ending.known || (ending.exited && ending.status == 0)) {
      hooks_.on_event("info", "worker_finished", fmt::format("group={}", name()));
      return apply(ChildEvent::kFinished);
    }
    // Nothing is left that another one would have to do again.
    apply(ChildEvent::kFinished);
    return keep_memory(ending);
  }
  if (state_ == ChildState::kStopping) {
    hooks_.on_event("info", "worker_stopped",
                    fmt::format("group={} after_ms={}", name(), now_ms() - ordered_ms_));
    return apply(ChildEvent::kFinished);
  }
  if (dismissed_) {
    hooks_.on_event("info", "worker_dismissed",
                    fmt::format("group={} after_ms={}", name(), now_ms() - ordered_ms_));
    return apply(ChildEvent::kDiedAgain);
  }
  if (state_ == ChildState::kReplacing) return apply(ChildEvent::kDiedAgain);
  if (state_ == ChildState::kStarting && binary_before_) {
    const std::string said = last_words();
    const std::string reason = fmt::format(
        "{} ended with {} before it was ready{}{}; {} runs stage group '{}' again", rules_.binary,
        ending.text(), said.empty() ? "" : ": ", said, *binary_before_, name());
    hooks_.on_refused(reason);  // first: if that throws, all of this is done again
    rules_.binary = *std::exchange(binary_before_, {});
    return apply(ChildEvent::kDiedAgain);
  }
  if (starving_) return wait_out(failure_);
  const DeathCount count = count_death(ending);
  const bool stalled = stalled_.has_value();
  stalled_.reset();
  RestartBudget::Verdict verdict = budget_.on_death(now_ms(), now_ms() - started_ms_, has_worked());
  // A record's doing, so it will be set aside: that ends by itself.
  if (count.certain) verdict.give_up = false;
  if (count.explained != 0) {
    budget_.forgive(count.explained);
    verdict.delay_ms = 0;
    verdict.give_up = barren_ > rules_.restarts.max_restarts;
  }
  delay_ms_ = verdict.delay_ms;
  const std::string words = last_words();
  if (is_late_ && late_starts_ >= kLateStartsMax) verdict.give_up = true;
  obituary_ = fmt::format("the process of stage group '{}' ended with {}{}{}", name(),
                          ending.text(), words.empty() ? "" : ": ", words);
  if (verdict.give_up) {
    const std::string often = verdict.deaths == 1 ? "" : fmt::format(" {} times", verdict.deaths);
    obituary_ = fmt::format("stage group '{}' died{} within {} s, {}with {}{}{}", name(), often,
                            rules_.restarts.within_ms / 1000, often.empty() ? "" : "the last time ",
                            ending.text(), words.empty() ? "" : ": ", words);
  }
  if (is_late_ && late_starts_ >= kLateStartsMax) {
    obituary_ = fmt::format(
        "stage group '{}' was not ready within {} (restart.ready_ms), {} times in a row{}{}",
        name(), shown_time(rules_.ready_ms), late_starts_, words.empty() ? "" : ": ", words);
  }
  if (verdict.give_up && count.explained != 0) {
    obituary_ = fmt::format(
        "stage group '{}' has set aside {} records in a row and processed none in between, so its "
        "stage is broken, not its data; the last process ended with {}{}{}",
        name(), barren_, ending.text(), words.empty() ? "" : ": ", words);
  }
  hooks_.on_event("warn", "worker_died",
                  fmt::format("group={} {}={} cause={} deaths={} life_ms={} restart_in_ms={}",
                              name(), ending.exited ? "status" : "signal",
                              ending.exited ? ending.status : ending.signal,
                              stalled    ? "stall"
                              : is_late_ ? "late"
                                         : "death",
                              verdict.deaths, now_ms() - started_ms_, verdict.delay_ms));
  apply(verdict.give_up || permanent_ ? ChildEvent::kDiedForGood
        : verdict.delay_ms == 0       ? ChildEvent::kDiedAgain
                                      : ChildEvent::kDiedLater);
}

void GroupProcess::abandon_start() {
  kill();
  if (process_.pidfd) static_cast<void>(reap(process_.pidfd));
  forget_process();
}

void GroupProcess::spawn_with_reserve() {
  try {
    return spawn();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNoMemory || rules_.reserve == nullptr) throw;
    const DescriptorReserve::Loan loan(*rules_.reserve, kReserveForRestart);
    if (loan.given() == 0) throw;
    abandon_start();
    --starts_;
    spawn();
  }
}

void GroupProcess::wait_out(std::string why) noexcept {
  --starts_;
  ++starved_;
  starved_why_ = std::move(why);
  starved_ms_ = starved_ms_ == 0 ? kStarvedMsMin : std::min(2 * starved_ms_, kStarvedMsMax);
  if (std::has_single_bit(starved_)) {
    try {
      hooks_.on_event("warn", "worker_starved",
                      fmt::format("group={} times={} again_in_ms={} reason={}", name(), starved_,
                                  starved_ms_, in_quotes(starved_why_)));
    } catch (const std::exception&) {
      // No memory to say so; status does.
    }
  }
  delay_ms_ = starved_ms_;
  if (state_ != ChildState::kDone) return apply(ChildEvent::kDiedLater);
  holder_due_ = true;
  when(delay_ms_, &GroupProcess::next_holder);
}

// It says itself why it cannot (GivenParent::why()).
void GroupProcess::wait_for_parent() noexcept {
  --starts_;
  awaits_parent_ = true;
  spared_ = rules_.given->spares();
  parent_ms_ = spared_           ? kStarvedMsMax
               : parent_ms_ == 0 ? kStarvedMsMin
                                 : std::min(2 * parent_ms_, kStarvedMsMax);
  delay_ms_ = parent_ms_;
  if (state_ != ChildState::kDone) return apply(ChildEvent::kDiedLater);
  holder_due_ = true;
  when(delay_ms_, &GroupProcess::next_holder);
}

std::string GroupProcess::starvation() const {
  if (starved_ == 0) return {};
  return fmt::format(
      "stage group '{}' has no process, {} starts have failed for lack of resources: {}: raise the "
      "limit, or stop other programs that use them; the start is retried at least every {} ms",
      name(), starved_, starved_why_, kStarvedMsMax);
}

void GroupProcess::spawn_or_count() {
  try {
    spawn_with_reserve();
  } catch (const ParentAway&) {
    wait_for_parent();
  } catch (const Error& error) {
    abandon_start();
    if (error.code() == ErrorCode::kNoMemory) return wait_out(error.message());
    // As if it had died at once.
    failure_ = error.message();
    Ending ending;
    ending.exited = true;
    ending.status = 127;
    ending_ = ending;
    settle();
  } catch (const std::bad_alloc&) {
    abandon_start();
    wait_out("no memory");
  }
}

void GroupProcess::apply(ChildEvent event) {
  const ChildStep step = next_step(state_, event);
  state_ = step.state;
  switch (step.action) {
    case ChildAction::kNothing:
      return;
    case ChildAction::kStart:
      set_desires(desire_);
      return spawn_or_count();
    case ChildAction::kStartLater:
      return when(delay_ms_, &GroupProcess::next_try);
    case ChildAction::kOrderEnd:
      return order_end();
    case ChildAction::kReportEnd:
      return hooks_.on_over();
    case ChildAction::kFailFeed:
      return hooks_.on_lost(obituary_);
  }
}

void GroupProcess::order_end() {
  ordered_ms_ = now_ms();
  patient_until_ms_ = ordered_ms_ + rules_.stop_ms;
  set_desires(shm::LaneDesire::kStop);
  when(rules_.stop_ms, &GroupProcess::end_patience);
}

void GroupProcess::set_desires(shm::LaneDesire desire) {
  for (const std::uint32_t lane : memory_.layout().groups[group_].lanes) {
    if (park_ticket_ != 0 && desire != shm::LaneDesire::kStop) {
      memory_.order_park(lane, park_ticket_);
    } else {
      memory_.set_desire(lane, desire);
    }
  }
}

void GroupProcess::park(std::uint64_t ticket) {
  park_ticket_ = ticket;
  if (state_ != ChildState::kStopping && state_ != ChildState::kReplacing) set_desires(desire_);
}

void GroupProcess::drain() {
  desire_ = shm::LaneDesire::kDrain;
  if (state_ == ChildState::kStarting || state_ == ChildState::kRunning ||
      state_ == ChildState::kWaiting) {
    set_desires(desire_);
  }
}

void GroupProcess::stop() {
  ended_ = true;
  holder_due_ = awaits_parent_ = spared_ = false;
  if (timer_ && state_ != ChildState::kStopping) {
    loop_.cancel(*timer_);
    timer_.reset();
  }
  apply(ChildEvent::kStop);
}

void GroupProcess::kill() {
  if (process_.pidfd) {
    ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  }
}

void GroupProcess::kill_stalled(std::uint32_t lane) {
  if (stalled_) {
    // Called again at every tick: what keeps the timer from coming does not keep the lane alive.
    if (!timer_) kill();
    return;
  }
  stalled_ = lane;
  ask_for_backtrace(process_.identity.pid, memory_.layout().lanes[lane].name());
  when(kBacktraceMs, &GroupProcess::kill);
}

void GroupProcess::look_at_start() {
  if (state_ != ChildState::kStarting || !process_.pidfd || rules_.ready_ms == 0 || on_trial() ||
      now_ms() < started_ms_ + rules_.ready_ms) {
    return;
  }
  if (std::exchange(is_late_, true)) {
    // Called again at every tick: what keeps the timer from coming does not keep it alive.
    if (!timer_) kill();
    return;
  }
  ++late_starts_;
  hooks_.on_event("warn", "worker_not_ready",
                  fmt::format("group={} pid={} starting_for_ms={}", name(), process_.identity.pid,
                              now_ms() - started_ms_));
  when(kBacktraceMs, &GroupProcess::kill);
}

std::string GroupProcess::late_start() const {
  if (state_ != ChildState::kStarting || !process_.pidfd || ready_ms_ != 0) return {};
  const std::uint64_t for_ms = now_ms() - started_ms_;
  if (for_ms < kSayLateMs) return {};
  const std::string words = tail_.last_words(1);
  const bool by_stall = rules_.stall_start_ms != 0 &&
                        (rules_.ready_ms == 0 || rules_.stall_start_ms < rules_.ready_ms);
  const std::uint64_t limit_ms = by_stall ? rules_.stall_start_ms : rules_.ready_ms;
  const std::string most =
      limit_ms == 0 ? std::string("it is waited for without a limit")
                    : fmt::format("it has {} for that (restart.{})", shown_time(limit_ms),
                                  by_stall ? "stall_ms" : "ready_ms");
  return fmt::format(
      "stage group '{}' is awaited: its process {} has not been ready for {}; {}{}{}", name(),
      process_.identity.pid, shown_time(for_ms), most, words.empty() ? "" : "; it says: ", words);
}

bool GroupProcess::replace(const std::string& binary) {
  if (state_ != ChildState::kRunning) return false;
  if (!binary.empty()) {
    std::string next = binary;  // what may throw comes before anything is changed
    std::swap(rules_.binary, next);
    rules_.fork_warm = {};
    if (!binary_before_) binary_before_ = std::move(next);
  }
  apply(ChildEvent::kReplace);
  return true;
}

void GroupProcess::leave() {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (process_.pidfd) forget_process();
}

void GroupProcess::set_log_level(int level) {
  log_level_ = level;
  send_log_level();
}

void GroupProcess::send_log_level() {
  DataLoaderConfig config;
  if (!log_level_ && !config.ParseFromString(facts_.config_bytes)) return;
  ToWorker order;
  order.mutable_log()->set_level(log_level_ ? static_cast<LogConfig::Level>(*log_level_)
                                            : config.log().level());
  static_cast<void>(send(order));  // without a process, the next one is told at its start
}

bool GroupProcess::send(const ToWorker& message) {
  return process_.socket &&
         control::send_packet(process_.socket.get(), message.SerializeAsString()).ok();
}

}  // namespace ringfeed::process
