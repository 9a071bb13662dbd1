// What a stage sees of its lane: records, batches, words of its arena, draws and counters.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/quote.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/lane_words.h"

namespace ringfeed {

std::optional<Record> Step::peek(InPort port) noexcept {
  InputPort& input = lane_.parts_.inputs[port.index];
  std::optional<shm::RecordView> record = input.peek();
  if (record && lane_.aside_in_step_ &&
      shm::record_key(port.index, input.current, record->header->seq) == lane_.quarantine_) {
    if (!lane_.pass_by(input, *record)) return std::nullopt;
    record = input.peek();
  }
  // An empty unit behind consumed records is left to the next call.
  if (!record || record->header->type != static_cast<std::uint32_t>(shm::RecordType::kData))
    return std::nullopt;
  const std::uint64_t key = shm::record_key(port.index, input.current, record->header->seq);
  if (key == lane_.quarantine_) {
    lane_.condemned_met_ = true;
    return std::nullopt;
  }
  lane_.begin_record(key);
  return record_of(*record, port.index);
}

StepStatus Step::consume(const Record& record) noexcept {
  InputPort& input = lane_.parts_.inputs[record.port.index];
  lane_.touch(input.rings[input.current]);
  const std::optional<shm::RecordView> view = input.rings[input.current].end.peek();
  RF_CHECK(view.has_value() && view->bytes.data() == record.bytes.data(), record.port.index);
  if (input.consume(*view->header) && !lane_.end_followers()) return StepStatus::kNoRoom;
  return StepStatus::kDone;
}

std::uint64_t Step::key(const Record& record) noexcept {
  InputPort& input = lane_.parts_.inputs[record.port.index];
  const std::optional<shm::RecordView> view = input.rings[input.current].end.peek();
  RF_CHECK(view.has_value() && view->bytes.data() == record.bytes.data(), record.port.index);
  return shm::record_key(record.port.index, input.current, view->header->seq);
}

void Step::works_on(std::uint64_t key) noexcept {
  lane_.begin_record(key);
  // A sign of life: what takes long is the record, not the step.
  // relaxed: as after a commit.
  lane_.parts_.page->progress_ns.store(now_ns(), std::memory_order_relaxed);
}

std::uint64_t Step::condemned() const noexcept { return lane_.quarantine_; }

void Step::set_aside(const Record& record, std::uint64_t key) noexcept {
  shm::RecordHeader header{};
  header.type = static_cast<std::uint32_t>(shm::RecordType::kData);
  header.bytes = record.bytes.size();
  header.seq = shm::seq_of(key);
  header.tag[0] = record.tag[0];
  header.tag[1] = record.tag[1];
  header.user = record.user;
  lane_.keep_dead_letter(record.port.index, key, {.bytes = record.bytes, .header = &header});
}

bool Step::ended(InPort port) noexcept { return lane_.parts_.inputs[port.index].ended(); }

bool Step::put(OutPort port, std::span<const std::byte> bytes, const RecordInfo& info) noexcept {
  OutputPort& output = lane_.parts_.outputs[port.index];
  std::byte* room =
      output.reserve(bytes.size(), [&](OutputPort::Ring& ring) { lane_.touch(ring); });
  if (room == nullptr) return output.mode == EdgeMode::kLoose && output.dropped();
  // An empty span may have no address at all, which memcpy() does not take.
  if (!bytes.empty()) std::memcpy(room, bytes.data(), bytes.size());
  output.put(bytes.size(), info);
  return true;
}

std::span<std::byte> Step::reserve(OutPort port, std::uint64_t bytes_max) noexcept {
  OutputPort& output = lane_.parts_.outputs[port.index];
  shm::RingProducer::Savepoint before{};
  std::byte* room = output.reserve(bytes_max, [&](OutputPort::Ring& ring) {
    lane_.touch(ring);
    before = ring.end.savepoint();
  });
  output.discards = room == nullptr && output.mode == EdgeMode::kLoose && output.dropped();
  if (output.discards) {
    // The stage writes all the same, elsewhere; put_reserved() decides, and counts, with the bytes
    // that the record then has.
    output.rings[output.current].end.rollback(before);
    if (lane_.discarded_.size() < bytes_max) lane_.discarded_.resize(bytes_max);
    room = lane_.discarded_.data();
  }
  return room == nullptr ? std::span<std::byte>{} : std::span<std::byte>{room, bytes_max};
}

void Step::put_reserved(OutPort port, std::uint64_t bytes, const RecordInfo& info) noexcept {
  OutputPort& output = lane_.parts_.outputs[port.index];
  if (output.discards) {
    output.discards = false;
    (void)put(port, std::span(lane_.discarded_).first(bytes), info);
    return;
  }
  output.put(bytes, info);
}

bool Step::end_unit(OutPort port) noexcept {
  return lane_.parts_.outputs[port.index].end_unit(
      [&](OutputPort::Ring& ring) { lane_.touch(ring); });
}

std::uint64_t Step::record_bytes_max(OutPort port) const noexcept {
  const OutputPort& output = lane_.parts_.outputs[port.index];
  return shm::record_bytes_max(output.rings.front().end.geometry());
}

std::span<std::byte> Step::open_batch() noexcept {
  RF_CHECK(!lane_.published_, batch_number());
  std::optional<std::span<std::byte>> slot = lane_.parts_.feed->open(lane_.journal_);
  if (slot) {
    // As the lane numbers its slots. Whatever is written to the slot is written in steps that ask
    // here.
    lane_.parts_.stamps.mark_slot((lane_.journal_.load(runtime_word(kOpenSlotWord)) - 1) /
                                  lane_.parts_.feed->geometry().lanes);
    return *slot;
  }
  lane_.feed_full_ = true;
  return {};
}

void Step::publish_batch(std::uint32_t rows, std::uint64_t bytes, const std::uint64_t (&token)[2],
                         std::span<const std::uint32_t> ragged) noexcept {
  shm::BatchInfo info;
  RF_CHECK(ragged.size() <= std::size(info.ragged), ragged.size());
  std::ranges::copy(ragged, info.ragged);
  info.rows = rows;
  info.bytes = bytes;
  info.token[0] = token[0];
  info.token[1] = token[1];
  lane_.parts_.feed->publish(lane_.journal_, info);
  lane_.published_ = true;
}

std::uint64_t Step::batch_number() const noexcept {
  return lane_.parts_.feed->next_batch(lane_.journal_);
}

std::uint32_t Step::batch_slot() const noexcept {
  return static_cast<std::uint32_t>(lane_.journal_.load(runtime_word(kOpenSlotWord)) - 1);
}

std::uint64_t Step::load(Word word) const noexcept { return lane_.journal_.load(state_word(word)); }
void Step::store(Word word, std::uint64_t value) noexcept {
  lane_.journal_.store(state_word(word), value);
}
const std::byte* Step::bytes(std::uint64_t state_offset) const noexcept {
  return lane_.parts_.arena->state() + state_offset;
}
std::byte* Step::bytes_to_write(std::uint64_t state_offset, std::uint64_t bytes) noexcept {
  RF_CHECK(state_offset + bytes <= lane_.parts_.arena->state_bytes(), state_offset, bytes);
  lane_.parts_.stamps.mark(shm::kStateOffset + state_offset, bytes);
  return lane_.parts_.arena->state() + state_offset;
}

void Step::fill(Place place, std::span<const std::byte> from) noexcept {
  RF_CHECK(
      from.size() <= place.bytes && place.offset + place.bytes <= lane_.parts_.arena->state_bytes(),
      from.size(), place.bytes, place.offset);
  if (from.empty()) return;
  std::memcpy(bytes_to_write(place.offset, from.size()), from.data(), from.size());
}

// The step that is refused is done again when the lane next wakes, at the latest after kSleepMsMax:
// nobody rings when somebody else gives memory back.
Status LaneRuntime::grow(std::uint64_t state_bytes) noexcept {
  Status status = parts_.arena->grow(state_bytes);
  if (status) {
    parts_.segments[shm::kArenaSegment] = parts_.arena->segment();
    if (growths_refused_ != 0) {
      if (parts_.warn) {
        parts_.warn(fmt::format("memory_found lane={} refused={}", name(), growths_refused_));
      }
      note("");
      growths_refused_ = 0;
    }
    return status;
  }
  // Not by the journal: such a step leaves nothing there.
  add(parts_.page->counters.named[late_counter("growths_refused").index].value, 1);
  if (++growths_refused_ == 1) {
    if (parts_.warn) {
      parts_.warn(
          fmt::format("no_memory lane={} error={}", name(), in_quotes(status.error().message())));
    }
    note("waits for memory: " + status.error().message());
  }
  return status;
}

bool Step::grow(std::uint64_t state_bytes, std::uint64_t rather) noexcept {
  if (state_bytes <= this->state_bytes()) return true;
  // What would be pleasant is not asked for aloud.
  if (rather > state_bytes && lane_.parts_.arena->grow(rather)) return lane_.grow(rather).ok();
  return lane_.grow(state_bytes).ok();
}

std::uint64_t Step::state_bytes() const noexcept { return lane_.parts_.arena->state_bytes(); }

std::uint64_t Step::draw(std::uint64_t bound) noexcept { return lane_.random_.below(bound); }
std::uint64_t Step::foresee(std::uint64_t bound, std::uint64_t ahead) const noexcept {
  lane_.foresight_.seek(lane_.random_.counter() + ahead);
  return lane_.foresight_.below(bound);
}

void Step::count(Counter counter, std::uint64_t by) noexcept {
  const shm::WordRef ref = shm::word_ref(
      shm::kLanePageSegment,
      offsetof(shm::LanePage, counters) + offsetof(shm::LaneCounters, named) +
          counter.index * sizeof(shm::NamedCounter) + offsetof(shm::NamedCounter, value));
  lane_.journal_.store(ref, lane_.journal_.load(ref) + by);
}

void Step::gauge(Counter counter, std::uint64_t value) noexcept {
  const shm::WordRef ref = shm::word_ref(
      shm::kLanePageSegment,
      offsetof(shm::LanePage, counters) + offsetof(shm::LaneCounters, named) +
          counter.index * sizeof(shm::NamedCounter) + offsetof(shm::NamedCounter, value));
  lane_.journal_.store(ref, value);
}

bool Step::draining() const noexcept {
  // relaxed: a wish of the supervisor; the step that sees it commits what follows from it.
  return lane_.parts_.page->desired.load(std::memory_order_relaxed) ==
         static_cast<std::uint32_t>(shm::LaneDesire::kDrain);
}

}  // namespace ringfeed
