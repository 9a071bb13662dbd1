#include "supervisor/feed/replay.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "proto/worker.pb.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/journal.h"
#include "supervisor/feed/ring_ends.h"
#include "supervisor/group/backtrace.h"
#include "supervisor/group/group_process.h"
#include "supervisor/group/log_tail.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

// A worker maps its memory and makes its stage.
constexpr std::uint64_t kReadyMsMax = 30'000;
// After the record was taken, whatever the time limit is: a lane that still has something to give
// out then has no end of its own.
constexpr std::uint64_t kSettleMs = 10'000;
// After it was told to stop: a lane that sleeps looks around every 50 ms.
constexpr std::uint64_t kStopMs = 2'000;
// For the backtrace of a lane that hangs.
constexpr std::uint64_t kBacktraceMs = 5'000;
// Outputs are looked at this often: nobody rings here.
constexpr int kAttendMs = 1;
// Of one ring in a row; a stage may output records for ever.
constexpr int kRecordsPerTurn = 4096;

// True: there was something.
bool take_all(RingTaker& taker, ReplayPort& port) {
  int count = 0;
  for (; count < kRecordsPerTurn; ++count) {
    const std::optional<shm::RecordView> record = taker.peek();
    if (!record) break;
    ++port.records;
    port.bytes += record->bytes.size();
    taker.consume();
  }
  return taker.commit();
}

class Replay {
 public:
  Replay(layout::FeedLayout layout, const layout::SetupFacts& facts, const ReplayRecord& record,
         const ReplayRules& rules)
      : record_(record),
        rules_(rules),
        memory_(std::move(layout), {}, {.feed_id = shm::random_feed_id()}),
        plan_(memory_.layout().lanes[record.lane]) {
    for (const layout::OutputPlan& output : plan_.outputs) {
      if (output.feed) {
        output_ = output.feed;
        report_.batches_port = true;
        continue;
      }
      report_.ports.push_back({.port = output.port});
      for (const std::uint32_t ring : output.rings) {
        takers_.emplace_back(report_.ports.size() - 1,
                             std::make_unique<RingTaker>(memory_, memory_.layout().rings[ring]));
      }
    }
    if (report_.batches_port) admit_group();
    // The record may be from a lane that its stage was scaled to.
    const std::vector<layout::NodeLayout>& nodes = memory_.layout().nodes;
    for (std::uint32_t node = 0; node < nodes.size(); ++node) {
      memory_.set_node_lanes(node, {.before = nodes[node].lanes_max, .now = nodes[node].lanes_max});
    }
    start(facts);
  }
  ~Replay() { end_process(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  ReplayReport run();

 private:
  void admit_group();
  void start(const layout::SetupFacts& facts);
  void wait_until_ready();
  void give_record();
  bool take_outputs();
  void take_batches();
  void attend(int timeout_ms);
  void read_messages();
  void read_log();
  void ask_for_backtrace();
  void end_process();
  void describe();
  [[nodiscard]] bool consumed() const;

  const ReplayRecord& record_;
  const ReplayRules& rules_;
  layout::FeedMemory memory_;
  const layout::LanePlan& plan_;
  ReplayReport report_;
  std::vector<std::pair<std::size_t, std::unique_ptr<RingTaker>>> takers_;  // port, ring
  std::optional<std::uint32_t> output_;  // to which the lane writes batches
  std::uint64_t newest_ = 0;             // of the batches that were looked at
  Spawned process_;
  bool ended_ = false;
  bool ready_ = false;
  bool finished_ = false;  // and the process stays, idle
  std::string failure_;    // what the worker said about its end
  LogTail tail_;
};

// Batches come to nobody: every one of them is before the group's first, so no slot waits for it.
void Replay::admit_group() {
  shm::GroupHead& head = memory_.output(*output_).group(0).head;
  // relaxed, both: published by the release of the state; the worker does not run yet anyway.
  head.epoch.store(1, std::memory_order_relaxed);
  head.start.store(~std::uint64_t{0}, std::memory_order_relaxed);
  head.state.store(static_cast<std::uint32_t>(shm::GroupState::kActive), std::memory_order_release);
}

void Replay::start(const layout::SetupFacts& facts) {
  memory_.set_phase(shm::FeedPhase::kRunning, "");
  process_ = spawn_worker(rules_.binary);
  WorkerSetup setup;
  const layout::GroupSetup group = layout::fill_setup(memory_, 0, facts, setup);
  setup.set_incarnation(1);
  setup.set_ends_with_supervisor(true);
  try {
    send_setup(process_.socket.get(), setup, group, memory_);
  } catch (...) {
    end_process();
    throw;
  }
}

void Replay::end_process() {
  if (!process_.pidfd || ended_) return;
  ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  report_.ending = reap(process_.pidfd);
  ended_ = true;
  read_log();
  tail_.finish([](std::string_view) {});
}

void Replay::read_messages() {
  for (;;) {
    const Result<control::Packet> packet = control::receive_packet(process_.socket.get());
    if (!packet || packet->end) return process_.socket.reset();
    if (packet->empty) return;
    FromWorker message;
    if (!message.ParseFromString(packet->bytes)) continue;
    if (message.has_ready()) ready_ = true;
    if (message.has_finished()) finished_ = true;
    if (message.has_failure()) failure_ = message.failure().text();
  }
}

void Replay::read_log() {
  if (!process_.log) return;
  if (!tail_.read(process_.log.get(), [](std::string_view) {})) process_.log.reset();
}

// Waits for the worker to say something, or to end.
void Replay::attend(int timeout_ms) {
  if (ended_) return;
  // A descriptor of -1 is left alone.
  std::array<pollfd, 3> fds{{{process_.pidfd.get(), POLLIN, 0},
                             {process_.socket.get(), POLLIN, 0},
                             {process_.log.get(), POLLIN, 0}}};
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  if (fds[1].revents != 0 && process_.socket) read_messages();
  if (fds[2].revents != 0) read_log();
  if (fds[0].revents == 0) return;
  // What it said before its end.
  if (process_.socket) read_messages();
  read_log();
  tail_.finish([](std::string_view) {});
  report_.ending = reap(process_.pidfd);
  ended_ = true;
}

void Replay::wait_until_ready() {
  const std::uint64_t until_ms = now_ms() + kReadyMsMax;
  while (!ready_ && !ended_ && now_ms() < until_ms) attend(50);
  if (ready_) return;
  if (!ended_) {
    throw Error(ErrorCode::kIncompatible,
                fmt::format("{} was not ready within {} s", rules_.binary, kReadyMsMax / 1000));
  }
  const std::string said = failure_.empty() ? tail_.last_words(3) : failure_;
  throw Error(ErrorCode::kIncompatible,
              fmt::format("{} ended with {} before it was ready for the record{}{}", rules_.binary,
                          report_.ending.text(), said.empty() ? "" : ": ", said));
}

// The record and the end of all inputs.
void Replay::give_record() {
  for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
    const std::vector<std::uint32_t>& rings = plan_.inputs[i].rings;
    for (std::size_t r = 0; r < rings.size(); ++r) {
      const layout::RingPlan& ring = memory_.layout().rings[rings[r]];
      RingGiver giver(memory_, ring);
      if (i == record_.input && r == record_.ring) {
        RF_CHECK(giver.give(record_.bytes, record_.info), record_.bytes.size());
      }
      giver.close();
    }
  }
  memory_.ring_lane(plan_.index);
}

bool Replay::consumed() const {
  const layout::RingPlan& ring =
      memory_.layout().rings[plan_.inputs[record_.input].rings[record_.ring]];
  // acquire: stored after all else that the step did (Journal::carry_out()).
  return memory_.head(ring).head.load(std::memory_order_acquire) != 0;
}

bool Replay::take_outputs() {
  bool any = false;
  for (const auto& [port, taker] : takers_) any = take_all(*taker, report_.ports[port]) || any;
  if (any) memory_.ring_lane(plan_.index);  // it may wait for room
  if (report_.batches_port) take_batches();
  return any;
}

void Replay::take_batches() {
  const layout::OutputMemory feed = memory_.output(*output_);
  const std::uint32_t lanes = feed.layout().geometry.lanes;
  // acquire: the descriptors up to it are stored.
  const std::uint64_t newest = feed.producer(plan_.number).newest.load(std::memory_order_acquire);
  for (std::uint64_t s = newest_ == 0 ? plan_.number + 1 : newest_ + lanes; s <= newest;
       s += lanes) {
    ++report_.batches;
    // One that is gone again was followed by hundreds: rows are then those that could be seen.
    if (feed.published(s)) report_.rows += feed.descriptor(s).rows;
    newest_ = s;
  }
}

void Replay::ask_for_backtrace() {
  if (!process::ask_for_backtrace(process_.identity.pid, plan_.name())) return;
  const auto complete = [this] {
    return !tail_.lines().empty() && tail_.lines().back() == LogTail::kBacktraceEnd;
  };
  const std::uint64_t until_ms = now_ms() + kBacktraceMs;
  while (!ended_ && !complete() && now_ms() < until_ms) attend(20);
}

ReplayReport Replay::run() {
  wait_until_ready();
  if (rules_.before_record) rules_.before_record(process_.identity.pid);
  give_record();
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  const std::uint64_t began_ms = now_ms();
  const std::uint64_t deadline_ms = rules_.timeout_ms == 0 ? kNever : began_ms + rules_.timeout_ms;
  std::optional<std::uint64_t> consumed_ms;
  std::optional<std::uint64_t> stopped_ms;
  bool hung = false;
  for (;;) {
    const bool moved = take_outputs();
    attend(moved ? 0 : kAttendMs);
    const std::uint64_t now = now_ms();
    if (!consumed_ms && consumed()) consumed_ms = now;
    if (ended_) break;
    if (finished_) {
      end_process();
      break;
    }
    if (!stopped_ms && (now >= deadline_ms || (consumed_ms && now >= *consumed_ms + kSettleMs))) {
      memory_.set_desire(plan_.index, shm::LaneDesire::kStop);
      stopped_ms = now;
    }
    if (stopped_ms && now >= *stopped_ms + kStopMs && now >= deadline_ms) {
      hung = true;
      ask_for_backtrace();
      end_process();
      break;
    }
  }
  while (take_outputs()) {
  }
  report_.consumed = consumed();
  report_.after_ms = consumed_ms.value_or(now_ms()) - began_ms;
  report_.finished = memory_.lane_finished(plan_.index);
  const bool clean = finished_ || (report_.ending.exited && report_.ending.status == 0);
  report_.outcome = hung               ? ReplayOutcome::kHung
                    : !clean           ? ReplayOutcome::kDied
                    : report_.consumed ? ReplayOutcome::kTaken
                                       : ReplayOutcome::kLeft;
  report_.limit_ms = rules_.timeout_ms;
  describe();
  return report_;
}

void Replay::describe() {
  for (const auto& [port, taker] : takers_) report_.ports[port].dropped += taker->dropped();
  const shm::LaneCounters& counters = memory_.lane(plan_.index).counters;
  for (const shm::NamedCounter& counter : counters.named) {
    // relaxed: the worker has ended.
    const std::uint64_t value = counter.value.load(std::memory_order_relaxed);
    if (value == 0) continue;
    report_.counters.emplace_back(
        std::string(counter.name, ::strnlen(counter.name, sizeof counter.name)), value);
  }
  report_.note.assign(counters.note.text,
                      std::min<std::size_t>(counters.note.bytes, sizeof counters.note.text));
  for (const std::string& line : tail_.lines()) {
    if (line != LogTail::kBacktraceEnd) report_.lines.push_back(line);
  }
}

}  // namespace

ReplayReport replay(layout::FeedLayout layout, const layout::SetupFacts& facts,
                    const ReplayRecord& record, const ReplayRules& rules) {
  const layout::LanePlan& lane = layout.lanes[record.lane];
  const layout::InputPlan& input = lane.inputs[record.input];
  const layout::RingPlan& ring = layout.rings[input.rings[record.ring]];
  const std::uint64_t bytes_max = shm::record_bytes_max(ring.geometry);
  if (record.bytes.size() > bytes_max) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the record has {} bytes, but port '{}' of {} takes at most {}: either its "
                    "file is not the one that the feed set aside, or the configuration differs",
                    record.bytes.size(), input.port, lane.name(), bytes_max));
  }
  layout::raise_file_limit();
  return Replay(std::move(layout), facts, record, rules).run();
}

}  // namespace ringfeed::process
