#include "supervisor/feed/feed_part.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/worker.pb.h"
#include "ringfeed/shm/feed.h"
#include "supervisor/group/group_process.h"
#include "supervisor/os/packet.h"

namespace ringfeed::process {
namespace {

constexpr std::size_t kLastWords = 3;

}  // namespace

FeedPart::FeedPart(layout::FeedLayout layout, const layout::SetupFacts& facts,
                   const std::string& worker, LogTail::Sink on_line)
    : memory_(std::move(layout), {}, {.feed_id = shm::random_feed_id()}),
      on_line_(std::move(on_line)) {
  open_rings();
  admit_groups();
  memory_.set_phase(shm::FeedPhase::kRunning, "");
  try {
    start(facts, worker);
  } catch (...) {
    end();
    throw;
  }
}

FeedPart::~FeedPart() { end(); }

void FeedPart::open_rings() {
  const layout::FeedLayout& layout = memory_.layout();
  std::vector<bool> runs(layout.lanes.size(), false);
  for (const layout::GroupPlan& group : layout.groups) {
    for (const std::uint32_t lane : group.lanes) runs[lane] = true;
  }
  for (std::uint32_t i = 0; i < layout.rings.size(); ++i) {
    const layout::RingPlan& ring = layout.rings[i];
    if (runs[ring.from_lane] == runs[ring.to_lane]) continue;
    if (runs[ring.from_lane]) {
      leaving_.push_back({i, std::make_unique<RingTaker>(memory_, ring)});
    } else {
      entering_.push_back({i, std::make_unique<RingGiver>(memory_, ring)});
    }
  }
  for (const layout::LanePlan& lane : layout.lanes) {
    if (!runs[lane.index]) continue;
    for (const layout::OutputPlan& output : lane.outputs) {
      if (output.feed) outputs_.push_back({*output.feed, lane.number});
    }
  }
}

// Every batch is before the group's first, so no slot waits for it.
void FeedPart::admit_groups() {
  for (const Output& output : outputs_) {
    shm::GroupHead& head = memory_.output(output.output).group(0).head;
    // relaxed, both: published by the release of the state; no worker runs yet anyway.
    head.epoch.store(1, std::memory_order_relaxed);
    head.start.store(~std::uint64_t{0}, std::memory_order_relaxed);
    head.state.store(static_cast<std::uint32_t>(shm::GroupState::kActive),
                     std::memory_order_release);
  }
}

void FeedPart::start(const layout::SetupFacts& facts, const std::string& binary) {
  const layout::FeedLayout& layout = memory_.layout();
  for (std::uint32_t i = 0; i < layout.groups.size(); ++i) {
    auto worker = std::make_unique<Worker>();
    worker->group = i;
    worker->process = spawn_worker(program_for(binary, layout.groups[i].program));
    WorkerSetup setup;
    const layout::GroupSetup group = layout::fill_setup(memory_, i, facts, setup);
    setup.set_incarnation(1);
    setup.set_ends_with_supervisor(true);
    workers_.push_back(std::move(worker));
    send_setup(workers_.back()->process.socket.get(), setup, group, memory_);
  }
}

std::optional<FeedPart::Record> FeedPart::take() {
  for (std::size_t tried = 0; tried < leaving_.size(); ++tried) {
    Leaving& leaving = leaving_[next_];
    next_ = (next_ + 1) % leaving_.size();
    const std::optional<shm::RecordView> view = leaving.taker->peek();
    if (!view) {
      // Markers may have been passed.
      leaving.taker->commit();
      continue;
    }
    Record record{
        .ring = leaving.ring,
        .bytes = {view->bytes.begin(), view->bytes.end()},
        .info = {.tag = {view->header->tag[0], view->header->tag[1]}, .user = view->header->user}};
    leaving.taker->consume();
    leaving.taker->commit();
    memory_.ring_lane(memory_.layout().rings[leaving.ring].from_lane);  // it may wait for room
    return record;
  }
  return std::nullopt;
}

bool FeedPart::give(std::uint32_t ring, std::span<const std::byte> bytes,
                    const shm::RecordInfo& info) {
  const layout::RingPlan& plan = memory_.layout().rings[ring];
  if (bytes.size() > shm::record_bytes_max(plan.geometry)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a record of {} bytes does not fit the input of {}, which takes {}",
                            bytes.size(), memory_.layout().lanes[plan.to_lane].name(),
                            shm::record_bytes_max(plan.geometry)));
  }
  const auto entering =
      std::ranges::find_if(entering_, [ring](const Entering& one) { return one.ring == ring; });
  RF_CHECK(entering != entering_.end(), ring);
  const bool given = entering->giver->give(bytes, info);
  memory_.ring_lane(plan.to_lane);
  return given;
}

void FeedPart::close_inputs() {
  for (const Entering& entering : entering_) {
    entering.giver->close();
    memory_.ring_lane(memory_.layout().rings[entering.ring].to_lane);
  }
}

void FeedPart::add_watched(std::vector<pollfd>& to) const {
  for (const auto& worker : workers_) {
    if (worker->ended) continue;
    for (const shm::Fd* const fd :
         {&worker->process.pidfd, &worker->process.socket, &worker->process.log}) {
      if (*fd) to.push_back({fd->get(), POLLIN, 0});
    }
  }
}

void FeedPart::attend() {
  for (const auto& worker : workers_) {
    if (!worker->ended) hear(*worker);
  }
}

void FeedPart::hear(Worker& worker) {
  pollfd over{worker.process.pidfd.get(), POLLIN, 0};
  const bool ended = ::poll(&over, 1, 0) == 1;
  // What it said before its end.
  read_messages(worker);
  read_log(worker);
  if (ended) after_end(worker);
}

void FeedPart::read_messages(Worker& worker) {
  while (worker.process.socket) {
    const Result<control::Packet> packet = control::receive_packet(worker.process.socket.get());
    if (!packet || packet->end) return worker.process.socket.reset();
    if (packet->empty) return;
    FromWorker message;
    if (!message.ParseFromString(packet->bytes)) continue;
    if (message.has_finished()) worker.finished = true;
    if (message.has_failure()) worker.failure = message.failure().text();
  }
}

void FeedPart::read_log(Worker& worker) {
  if (!worker.process.log) return;
  if (!worker.tail.read(worker.process.log.get(), on_line_)) worker.process.log.reset();
}

void FeedPart::after_end(Worker& worker) {
  const Ending ending = reap(worker.process.pidfd);
  worker.ended = true;
  worker.tail.finish(on_line_);
  if (worker.finished || (ending.exited && ending.status == 0) || !failure_.empty()) return;
  const std::string said =
      worker.failure.empty() ? worker.tail.last_words(kLastWords) : worker.failure;
  failure_ =
      fmt::format("stage group '{}' ended with {}{}{}", memory_.layout().groups[worker.group].name,
                  ending.text(), said.empty() ? "" : ": ", said);
}

bool FeedPart::finished() {
  for (const layout::GroupPlan& group : memory_.layout().groups) {
    for (const std::uint32_t lane : group.lanes) {
      if (!memory_.lane_finished(lane)) return false;
    }
  }
  return std::ranges::all_of(leaving_, [](const Leaving& one) { return one.taker->ended(); });
}

FeedPart::Batches FeedPart::batches() {
  for (Output& output : outputs_) {
    const layout::OutputMemory feed = memory_.output(output.output);
    const std::uint32_t lanes = feed.layout().geometry.lanes;
    // acquire: the descriptors up to it are stored.
    const std::uint64_t newest =
        feed.producer(output.number).newest.load(std::memory_order_acquire);
    for (std::uint64_t s = output.newest == 0 ? output.number + 1 : output.newest + lanes;
         s <= newest; s += lanes) {
      ++batches_.count;
      // One that is gone again was followed by hundreds: rows are then those that could be seen.
      if (feed.published(s)) batches_.rows += feed.descriptor(s).rows;
      output.newest = s;
    }
  }
  return batches_;
}

FeedPart::Counters FeedPart::counters(const std::string& stage) const {
  Counters found;
  for (const layout::GroupPlan& group : memory_.layout().groups) {
    for (const std::uint32_t index : group.lanes) {
      const layout::LanePlan& lane = memory_.layout().lanes[index];
      if (lane.stage_name != stage) continue;
      for (const shm::NamedCounter& counter : memory_.lane(index).counters.named) {
        // relaxed: a look.
        const std::uint64_t value = counter.value.load(std::memory_order_relaxed);
        if (value == 0) continue;
        const std::string name(counter.name, ::strnlen(counter.name, sizeof counter.name));
        const auto known = std::ranges::find(found, name, &Counters::value_type::first);
        if (known == found.end()) {
          found.emplace_back(name, value);
        } else {
          known->second += value;
        }
      }
    }
  }
  return found;
}

std::vector<std::string> FeedPart::stages() const {
  std::vector<std::string> names;
  for (const layout::GroupPlan& group : memory_.layout().groups) {
    for (const std::uint32_t lane : group.lanes) {
      const std::string& name = memory_.layout().lanes[lane].stage_name;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void FeedPart::end() {
  for (const auto& worker : workers_) {
    if (worker->ended || !worker->process.pidfd) continue;
    read_messages(*worker);
    ::syscall(SYS_pidfd_send_signal, worker->process.pidfd.get(), SIGKILL, nullptr, 0);
    static_cast<void>(reap(worker->process.pidfd));
    worker->ended = true;
    read_log(*worker);
    worker->tail.finish(on_line_);
  }
}

}  // namespace ringfeed::process
