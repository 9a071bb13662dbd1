#include "workers/runtime/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "workers/runtime/lane_words.h"

namespace ringfeed {
namespace {

// A neighbour that sleeps is woken for what was committed at the latest after this time, however
// little it is.
constexpr std::uint64_t kOwedNsMax = 1'000'000;

}  // namespace

LaneRuntime::LaneRuntime(LaneParts parts)
    : parts_(std::move(parts)),
      journal_(*parts_.page, parts_.arena->journal_area(0), parts_.arena->journal_area(1),
               shm::kJournalEntries, parts_.segments, &parts_.stamps),
      random_(parts_.random_key),
      foresight_(parts_.random_key) {
  RF_CHECK(parts_.inputs.size() <= kPortsMax && parts_.outputs.size() <= kPortsMax,
           parts_.inputs.size(), parts_.outputs.size());
  // A step that may store more than a journal holds would never be called.
  RF_CHECK(parts_.entries_per_step + std::uint64_t{512} < shm::kJournalEntries,
           parts_.entries_per_step);
}

// Modelled in tests/model: journal.pml, wakeup.pml, wakeup_feed.pml and claims.pml.
void LaneRuntime::attach() {
  RF_FAILPOINT("runtime.lane.attach");
  parts_.stamps.follow();
  journal_.recover();
  RF_FAILPOINT("runtime.lane.recovered");
  for (std::size_t i = 0; i < parts_.inputs.size(); ++i) {
    InputPort& port = parts_.inputs[i];
    port.word = runtime_word(kInputWords + 8 * i);
    port.start(journal_.load(port.word));
    for (InputPort::Ring& ring : port.rings) ring.end.attach();
  }
  for (std::size_t i = 0; i < parts_.outputs.size(); ++i) {
    OutputPort& port = parts_.outputs[i];
    port.word = runtime_word(kOutputWords + 8 * i);
    port.start(journal_.load(port.word));
    for (OutputPort::Ring& ring : port.rings) ring.end.attach();
  }
  committed_draws_ = saved_draws_ = journal_.load(runtime_word(kDrawsWord));
  random_.seek(committed_draws_);
  shm::LanePage& page = *parts_.page;
  // relaxed, all: this lane's own words; readers of the identity check it against the kernel.
  page.waiting.store(0, std::memory_order_relaxed);
  page.pid.store(parts_.pid, std::memory_order_relaxed);
  page.start_ticks.store(parts_.start_ticks, std::memory_order_relaxed);
  page.attempt_key.store(0, std::memory_order_relaxed);
  page.faulted.store(0, std::memory_order_relaxed);
  page.parked.store(0, std::memory_order_relaxed);
  // relaxed: the supervisor stored it before it started this process.
  quarantine_ = page.quarantine_key.load(std::memory_order_relaxed);
  condemned_met_ = false;
  page.incarnation.store(page.incarnation.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  const bool over = journal_.load(runtime_word(kFinishedWord)) != 0;
  // release: whoever reads the state sees the cursors that recover() has stored.
  page.state.store(
      static_cast<std::uint32_t>(over ? shm::LaneState::kFinished : shm::LaneState::kRunning),
      std::memory_order_release);
  // The dead incarnation may have died between a cursor's store and the wake-up.
  for (InputPort& port : parts_.inputs) {
    for (InputPort::Ring& ring : port.rings) ring.end.wake(ring.neighbour);
  }
  for (OutputPort& port : parts_.outputs) {
    for (OutputPort::Ring& ring : port.rings) ring.end.wake(ring.neighbour);
  }
  if (parts_.feed) {
    parts_.feed->attend_groups();
    shm::ring(reinterpret_cast<shm::Bell*>(parts_.segments[shm::kFeedControlSegment].data +
                                           shm::kFeedBellOffset)
                  ->rings);
  }
}

void LaneRuntime::describe(StageContext& context) {
  context.state = parts_.arena->state();
  context.state_bytes = parts_.arena->state_bytes();
  context.key = parts_.random_key;
  const auto find = [](const std::vector<std::string>& names, std::string_view name) {
    const auto at = std::find(names.begin(), names.end(), name);
    RF_CHECK(at != names.end(), names.size());
    return static_cast<std::uint32_t>(at - names.begin());
  };
  context.input = [this, find](std::string_view name) {
    return InPort{find(parts_.input_names, name)};
  };
  context.output = [this, find](std::string_view name) {
    return OutPort{find(parts_.output_names, name)};
  };
  context.counter = [this](std::string_view name) { return counter(name); };
  context.note = [this](std::string_view text) { note(text); };
  context.progress = [this](std::string_view text, std::uint64_t done, std::uint64_t total) {
    note(text, done, total);
  };
}

const std::vector<CounterSpec>& LaneRuntime::own_counters() {
  static const std::vector<CounterSpec> counters{
      {.name = "dead_letters",
       .help = "Records that were set aside because workers died on them.",
       .listed = true},
      {.name = "growths_refused",
       .help = "Times that the lane's memory could not grow.",
       .listed = true}};
  return counters;
}

Counter LaneRuntime::counter(std::string_view name) noexcept {
  // What is not declared would have no help, no kind and no place in metrics.
  if (std::ranges::find(parts_.counters, name) == parts_.counters.end()) {
    detail::check_failed("the counter is declared in StageType::counters", __FILE__, __LINE__,
                         std::string(name));
  }
  RF_CHECK(counters_ < shm::kNamedCounters && name.size() < sizeof(shm::NamedCounter::name),
           counters_, name.size());
  shm::NamedCounter& place = parts_.page->counters.named[counters_];
  std::memset(place.name, 0, sizeof place.name);
  std::memcpy(place.name, name.data(), name.size());
  return {counters_++};
}

// A counter that not every life of the lane has: it comes after those of the stage, and is found
// again by its name.
Counter LaneRuntime::late_counter(std::string_view name) noexcept {
  std::uint32_t index = counters_;
  const auto free_or_this = [&](const shm::NamedCounter& place) {
    return place.name[0] == '\0' || name == place.name;
  };
  while (index < shm::kNamedCounters && !free_or_this(parts_.page->counters.named[index])) ++index;
  RF_CHECK(index < shm::kNamedCounters && name.size() < sizeof(shm::NamedCounter::name), index,
           name.size());
  shm::NamedCounter& place = parts_.page->counters.named[index];
  std::memcpy(place.name, name.data(), name.size());
  return {index};
}

void LaneRuntime::note(std::string_view text, std::uint64_t done, std::uint64_t total) noexcept {
  shm::LaneNote& note = parts_.page->counters.note;
  // An odd version while the text changes, an even one after: the reader takes it only if it saw
  // the same even one before and after. relaxed for the first: the release of the second orders the
  // text.
  const std::uint32_t version = note.version.load(std::memory_order_relaxed);
  note.version.store(version | 1,
                     std::memory_order_seq_cst);  // seq_cst: before the text, for the reader's sake
  note.bytes = static_cast<std::uint32_t>(std::min(text.size(), sizeof note.text));
  std::memcpy(note.text, text.data(), note.bytes);
  note.done = done;
  note.total = total;
  note.version.store((version | 1) + 1, std::memory_order_release);  // release: after the text
}

bool LaneRuntime::finished() const noexcept {
  // relaxed: this lane's own word.
  return parts_.page->state.load(std::memory_order_relaxed) ==
         static_cast<std::uint32_t>(shm::LaneState::kFinished);
}

// ---- attempts and commits

void LaneRuntime::begin_attempt() noexcept {
  ++attempt_;
  saved_ = journal_.savepoint();
  saved_draws_ = random_.counter();
  feed_full_ = false;
  for (InputPort& port : parts_.inputs) {
    port.saved_position = port.position;
    port.empty = false;
  }
  for (OutputPort& port : parts_.outputs) {
    port.saved_position = port.position;
    // A unit's end is marked only on a record of the same attempt: a mark on an earlier one could
    // not be taken back.
    port.unit_open = false;
    port.discards = false;
    port.full = false;
  }
}

void LaneRuntime::roll_back() noexcept {
  published_ = false;
  journal_.rollback(saved_);
  random_.seek(saved_draws_);
  for (InputPort& port : parts_.inputs) port.position = port.saved_position;
  for (OutputPort& port : parts_.outputs) {
    port.position = port.saved_position;
    port.unit_open = false;
  }
  for (InputPort::Ring* ring : touched_inputs_) {
    if (ring->attempt == attempt_) ring->end.rollback(ring->saved);
  }
  for (OutputPort::Ring* ring : touched_outputs_) {
    if (ring->attempt == attempt_) ring->end.rollback(ring->saved);
  }
}

// Lists the cursors and positions, and the end of the outputs if they close, and commits. False:
// there was nothing to commit. Modelled in tests/model/journal.pml, as is finish() below.
bool LaneRuntime::commit(std::uint64_t now, bool closing) noexcept {
  bool anything = journal_.entries() != 0 || random_.counter() != committed_draws_;
  for (InputPort::Ring* ring : touched_inputs_) anything = anything || ring->end.touched();
  for (OutputPort::Ring* ring : touched_outputs_) anything = anything || ring->end.touched();
  if (!anything) {
    abandon();
    return false;
  }
  if (random_.counter() != committed_draws_) {
    journal_.store(runtime_word(kDrawsWord), random_.counter());
    committed_draws_ = random_.counter();
  }
  for (InputPort& port : parts_.inputs) {
    if (port.position != port.committed_position) journal_.store(port.word, port.stored());
    port.committed_position = port.position;
  }
  for (OutputPort& port : parts_.outputs) {
    if (port.position != port.committed_position) journal_.store(port.word, port.stored());
    port.committed_position = port.position;
    port.unit_open = false;
  }
  // Outputs before inputs: a neighbour downstream sees the record before the one upstream sees the
  // room.
  for (OutputPort::Ring* ring : touched_outputs_) ring->end.stage(journal_);
  if (closing) {
    // Behind the tails: whoever sees `closed` takes the tail that it reads then for the last one.
    for (OutputPort::Ring* ring : touched_outputs_) ring->end.close(journal_);
    if (parts_.feed) parts_.feed->close(journal_);
  }
  for (InputPort::Ring* ring : touched_inputs_) ring->end.stage(journal_);
  journal_.commit();
  for (OutputPort::Ring* ring : touched_outputs_) {
    ring->owed = ring->owed || ring->end.touched();
    ring->end.settle();
    ring->touched = false;
  }
  for (InputPort::Ring* ring : touched_inputs_) {
    ring->owed = ring->owed || ring->end.touched();
    ring->end.settle();
    ring->touched = false;
  }
  touched_inputs_.clear();
  touched_outputs_.clear();
  if (!owes_) owes_since_ns_ = now;
  owes_ = true;
  add(parts_.page->counters.steps, 1);
  if (parts_.feed) parts_.feed->announce();
  return true;
}

void LaneRuntime::abandon() noexcept {
  journal_.abandon();
  random_.seek(committed_draws_);
  for (InputPort& port : parts_.inputs) port.position = port.committed_position;
  for (OutputPort& port : parts_.outputs) {
    port.position = port.committed_position;
    port.unit_open = false;
  }
  for (InputPort::Ring* ring : touched_inputs_) {
    ring->end.abandon();
    ring->touched = false;
  }
  for (OutputPort::Ring* ring : touched_outputs_) ring->touched = false;
  touched_inputs_.clear();
  touched_outputs_.clear();
}

// ---- waking and sleeping

// Late: a switch costs microseconds, so a sleeper is woken when enough has gathered, or time has
// passed, or this lane is about to sleep itself (settle_debts). Modelled in tests/model/wakeup.pml.
void LaneRuntime::wake_neighbours(std::uint64_t now) noexcept {
  if (!owes_) return;
  const bool late = now - owes_since_ns_ > kOwedNsMax;
  bool still = false;
  const auto attend = [&](auto& ring, auto enough) {
    if (!ring.owed) return;
    // One that seems awake stays owed: only wake() can tell for certain, and its barrier is
    // expensive.
    if (!late && !(ring.neighbour.seems_asleep() && enough(ring.end))) {
      still = true;
      return;
    }
    ring.owed = false;
    if (ring.end.wake(ring.neighbour)) add(parts_.page->counters.wakes, 1);
  };
  for (OutputPort& port : parts_.outputs) {
    for (OutputPort::Ring& ring : port.rings) {
      attend(ring, [](const shm::RingProducer& end) { return end.worth_taking(); });
    }
  }
  for (InputPort& port : parts_.inputs) {
    for (InputPort::Ring& ring : port.rings) {
      attend(ring, [](const shm::RingConsumer& end) { return end.worth_refilling(); });
    }
  }
  owes_ = still;
}

// Modelled in tests/model/wakeup.pml.
void LaneRuntime::settle_debts() noexcept {
  owes_since_ns_ = 0;
  wake_neighbours(~std::uint64_t{0});
}

// Modelled in tests/model/wakeup.pml; with a feed, in wakeup_feed.pml.
void LaneRuntime::sleep(int timeout_ms, bool idle, std::uint32_t desired) noexcept {
  shm::BellWord words[2 + shm::kGroupsMax];
  std::size_t count = 1;
  // Not woken by what only another lane waits for: a switch costs as much as many a batch.
  const std::atomic<std::uint32_t>* const asked = idle ? stage_->asked_word() : nullptr;
  if (asked != nullptr) words[count++].word = asked;
  if (feed_full_ || (idle && asked == nullptr && parts_.feed)) {
    count += parts_.feed->group_bells(std::span(words).subspan(count));
  }
  const auto ready = [&] {
    if (idle && stage_->is_asked()) return true;
    for (InputPort& port : parts_.inputs) {
      if (port.empty && port.moved()) return true;
    }
    for (const OutputPort& port : parts_.outputs) {
      if (port.full && port.moved()) return true;
    }
    // Looked at even if a batch is not what is missing: a group that joins waits for an answer.
    if (parts_.feed && parts_.feed->has_room(journal_) && feed_full_) return true;
    if (parts_.stamps.behind()) return true;
    // relaxed: post() rings the bell after it has stored it.
    if (posted_.load(std::memory_order_relaxed)) return true;
    // relaxed: the supervisor rings the bell, whose value is older than this look, after it has
    // changed it.
    return parts_.page->desired.load(std::memory_order_relaxed) != desired;
  };
  shm::LaneCounters& counters = parts_.page->counters;
  bool blocked = feed_full_;
  for (const OutputPort& port : parts_.outputs) blocked = blocked || port.full;
  const std::uint64_t before = now_ns();
  shm::sleep(*parts_.page, *parts_.bell, std::span(words).first(count), timeout_ms, ready,
             [&] { settle_debts(); });
  last_ns_ = now_ns();
  add(blocked ? counters.blocked_ns : counters.starved_ns, last_ns_ - before);
  // Others of the feed do nothing for one that waits for a file, a server or memory.
  if (!idle && growths_refused_ == 0) add(counters.sleeps, 1);
}

// ---- the loop

// Ends the unit under way on every output that follows the input; false: no room.
bool LaneRuntime::end_followers() noexcept {
  for (OutputPort& port : parts_.outputs) {
    if (port.follows && !port.end_unit([&](OutputPort::Ring& ring) { touch(ring); })) return false;
  }
  return true;
}

// Units that came to nothing upstream are marks without a record; the stage never sees them. Each
// is an attempt of its own: a row of them may be longer than the queue that they are passed on to.
// False: one could not be passed on for want of room; those before it were.
bool LaneRuntime::skip_empty_units() noexcept {
  for (InputPort& port : parts_.inputs) {
    for (;;) {
      const std::optional<shm::RecordView> record = port.peek();
      if (!record || record->header->type != static_cast<std::uint32_t>(shm::RecordType::kUnitEnd))
        break;
      begin_attempt();
      touch(port.rings[port.current]);
      port.consume(*record->header);
      if (!end_followers()) {
        roll_back();
        return false;
      }
      skipped_ = true;
    }
  }
  return true;
}

LaneRuntime::Round LaneRuntime::round() noexcept {
  if (last_ns_ == 0) last_ns_ = now_ns();
  parts_.stamps.follow();
  if (posted_.load(std::memory_order_relaxed)) answer_messages();  // relaxed: as in post()
  if (condemned_met_) {
    const bool done = set_aside();
    commit(now_ns());
    return done ? Round::kWorked : Round::kWaits;
  }
  const std::uint32_t reserve =
      64 + static_cast<std::uint32_t>(2 * (parts_.inputs.size() + parts_.outputs.size()));
  StepStatus status = StepStatus::kDone;
  for (std::uint32_t calls = 0; calls < parts_.steps_per_commit; ++calls) {
    const std::size_t rings = 3 * (touched_inputs_.size() + touched_outputs_.size());
    if (journal_.entries_free() < parts_.entries_per_step + reserve + rings) break;
    begin_attempt();
    skipped_ = false;
    if (!skip_empty_units()) {
      status = StepStatus::kNoRoom;
      break;
    }
    if (skipped_) begin_attempt();  // what was skipped stays so, whatever the stage says
    Step step(*this);
    status = stage_->step(step);
    parts_.page->attempt_key.store(0, std::memory_order_relaxed);  // relaxed: as in begin_record()
    if (status == StepStatus::kEnd) break;
    if (status != StepStatus::kDone) {
      roll_back();
      if (status == StepStatus::kAgain) continue;
      break;
    }
    if (condemned_met_) break;
    // The feed chooses a slot by the descriptors, which tell of a batch once it is committed.
    if (published_) break;
  }
  published_ = false;
  if (status == StepStatus::kEnd) {
    finish();
    return Round::kFinished;
  }
  const std::uint64_t now = now_ns();
  add(parts_.page->counters.busy_ns, now - last_ns_);
  last_ns_ = now;
  const bool committed = commit(now);
  for (InputPort& port : parts_.inputs) {
    if (port.mode != EdgeMode::kLoose) continue;
    // What was only looked at is no longer held against a producer that keeps the newest.
    for (InputPort::Ring& ring : port.rings) ring.end.abandon();
  }
  if (committed) {
    // relaxed: a heartbeat for people and for the supervisor's stall timer.
    parts_.page->progress_ns.store(now, std::memory_order_relaxed);
    wake_neighbours(now);
    return Round::kWorked;
  }
  // Condemned: the next round sets it aside.
  if (condemned_met_ || status == StepStatus::kAgain) return Round::kWorked;
  return status == StepStatus::kIdle ? Round::kIdle : Round::kWaits;
}

// The last step: closes the outputs together with whatever the stage still did.
void LaneRuntime::finish() noexcept {
  for (OutputPort& port : parts_.outputs) {
    for (OutputPort::Ring& ring : port.rings) touch(ring);
  }
  RF_FAILPOINT("runtime.lane.finishing");
  journal_.store(runtime_word(kFinishedWord), 1);
  commit(now_ns(), true);
  RF_FAILPOINT("runtime.lane.finished");
  // release: the supervisor that reads it sees the closed outputs.
  parts_.page->state.store(static_cast<std::uint32_t>(shm::LaneState::kFinished),
                           std::memory_order_release);
  for (OutputPort& port : parts_.outputs) {
    for (OutputPort::Ring& ring : port.rings) ring.owed = true;
  }
  owes_ = true;
  settle_debts();
}

// Stands still between two steps, see lane_page.h.
void LaneRuntime::park(const LaneOrders& orders) noexcept {
  shm::LanePage& page = *parts_.page;
  settle_debts();
  // relaxed: ordered by the load of desired, which has said PARK.
  const std::uint64_t ticket = page.park_ticket.load(std::memory_order_relaxed);
  RF_FAILPOINT("runtime.lane.parking");
  // release: whoever reads it sees all that this lane has stored.
  page.parked.store(ticket, std::memory_order_release);
  const auto goes_on = [&] {
    // acquire: another ticket is seen with the desire that came with it. relaxed: looked at often.
    return page.desired.load(std::memory_order_acquire) !=
               static_cast<std::uint32_t>(shm::LaneDesire::kPark) ||
           page.park_ticket.load(std::memory_order_relaxed) != ticket ||
           orders.alone.load(std::memory_order_relaxed) ||
           orders.leave.load(std::memory_order_relaxed);
  };
  shm::BellWord own[1];
  while (!goes_on()) shm::sleep(page, *parts_.bell, own, shm::kSleepMsMax, goes_on, [] {});
  // seq_cst: whoever still finds the ticket after this knows that nothing below has happened.
  page.parked.store(0, std::memory_order_seq_cst);
  last_ns_ = now_ns();
}

void LaneRuntime::follow_lanes() noexcept {
  for (InputPort& port : parts_.inputs) port.follow_lanes();
  for (OutputPort& port : parts_.outputs) port.follow_lanes();
}

// Modelled in tests/model: wakeup.pml and wakeup_feed.pml.
bool LaneRuntime::run(const LaneOrders& orders) {
  // Whatever ends the loop, nobody waits for an answer.
  const std::unique_ptr<LaneRuntime, void (*)(LaneRuntime*)> last(
      this, [](LaneRuntime* lane) { lane->refuse_messages(); });
  // True since attach() too: this may be a new incarnation of a lane that stood still.
  bool stood_still = true;
  while (!finished()) {
    // acquire: an order to park is seen with its ticket. relaxed: a wish that is followed at the
    // next step boundary. Read before the round: one that comes later may have been rung for before
    // sleep() reads the bell, and is news there.
    const std::uint32_t desired = parts_.page->desired.load(std::memory_order_acquire);
    if (orders.leave.load(std::memory_order_relaxed) ||
        desired == static_cast<std::uint32_t>(shm::LaneDesire::kStop)) {
      settle_debts();
      return false;
    }
    if (desired == static_cast<std::uint32_t>(shm::LaneDesire::kPark) &&
        !orders.alone.load(std::memory_order_relaxed)) {
      park(orders);
      stood_still = true;
      continue;
    }
    if (stood_still) follow_lanes();
    stood_still = false;
    if (parts_.feed) parts_.feed->attend_groups();
    switch (round()) {
      case Round::kWorked:
      case Round::kFinished:
        break;
      case Round::kWaits:
        sleep(shm::kSleepMsMax, false, desired);
        break;
      case Round::kIdle:
        sleep(stage_->poll_ms(), true, desired);
        break;
    }
  }
  return true;
}

}  // namespace ringfeed
