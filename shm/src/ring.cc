#include "ringfeed/shm/ring.h"

#include <algorithm>
#include <cstring>

#include "ringfeed/shm/failpoint.h"

namespace ringfeed::shm {

// ---- producer

RingProducer::RingProducer(TailLine& line, std::byte* data, const HeadLine& head,
                           RingGeometry geometry, std::uint8_t where) noexcept
    : line_(&line),
      data_(data),
      peer_(&head),
      geometry_(geometry),
      places_(geometry.capacity_bytes),
      where_(where) {
  RF_CHECK(geometry.capacity_bytes % kPageBytes == 0 && geometry.capacity_bytes >= kPageBytes,
           geometry.capacity_bytes);
  RF_CHECK(geometry.records_max > 0, geometry.records_max);
}

void RingProducer::attach() noexcept {
  // relaxed: this lane is their only writer, and Journal::recover() has just stored them.
  tail_ = committed_tail_ = line_->tail.load(std::memory_order_relaxed);
  seq_ = committed_seq_ = line_->tail_seq.load(std::memory_order_relaxed);
  dropped_ = committed_dropped_ = line_->dropped.load(std::memory_order_relaxed);
  head_seen_ = 0;
  head_seq_seen_ = 0;
  reserved_at_ = kNone;
  last_ = kNone;
}

// Would a record that ends at `end`, the ring's record number `seq`, fit? Looks at the consumer's
// line only if what was last seen there does not suffice. Modelled in tests/model/journal.pml, as
// is all here but what KEEP_NEWEST adds; head_moved() and tail_moved() in tests/model/wakeup.pml.
bool RingProducer::has_room(std::uint64_t end, std::uint64_t seq) noexcept {
  if (end <= head_seen_ + geometry_.capacity_bytes && seq - head_seq_seen_ < geometry_.records_max)
    return true;
  // acquire, pairs with the release of head in Journal::carry_out(): once head has passed a record,
  // the consumer's last read of it is over and its bytes may be written again. head_seq is stored
  // before head and so is never behind it.
  const std::uint64_t head = peer_->head.load(std::memory_order_acquire);
  const std::uint64_t head_seq = peer_->head_seq.load(std::memory_order_acquire);
  // With KEEP_NEWEST the head stays behind what was given up until the consumer comes by.
  RF_CHECK(head <= tail_ && (tail_ - head <= geometry_.capacity_bytes ||
                             geometry_.overflow == Overflow::kKeepNewest),
           head, tail_, geometry_.capacity_bytes);
  RF_CHECK(head_seq <= seq_, head_seq, seq_);
  head_seen_ = head;
  head_seq_seen_ = head_seq;
  if (geometry_.overflow == Overflow::kKeepNewest) discard_oldest(end);
  return end <= head_seen_ + geometry_.capacity_bytes &&
         seq - head_seq_seen_ < geometry_.records_max;
}

// KEEP_NEWEST: gives up committed records from the oldest on until `end` fits, or the consumer's
// step is in the way.
void RingProducer::discard_oldest(std::uint64_t end) noexcept {
  const auto header_at = [&](std::uint64_t offset) {
    return reinterpret_cast<const RecordHeader*>(data_ + places_.offset(offset));
  };
  // Number of the record at a cursor. At the committed tail there is no header yet, or one of the
  // step under way.
  const auto seq_at = [&](std::uint64_t offset) {
    return offset == committed_tail_ ? committed_seq_ : header_at(offset)->seq;
  };
  // relaxed: written by this lane only. Everything may have been given up before, to no avail
  // because the consumer was holding it: the look at what it holds now must come all the same.
  std::uint64_t at = std::max(line_->discard.load(std::memory_order_relaxed), head_seen_);
  std::uint64_t at_seq = seq_at(at);
  while (at < committed_tail_ &&
         (end > at + geometry_.capacity_bytes || seq_ - at_seq >= geometry_.records_max)) {
    const RecordHeader* header = header_at(at);
    at += record_footprint(header->bytes);
    if (header->type != static_cast<std::uint32_t>(RecordType::kPad)) ++at_seq;
  }
  // relaxed: a number for views, which order nothing by it.
  line_->discard_seq.store(at_seq, std::memory_order_relaxed);
  // seq_cst, pairs with the consumer's store of hold and load of discard in take_hold(): either it
  // sees this discard and starts behind it, or the load below sees what it holds.
  line_->discard.store(at, std::memory_order_seq_cst);
  const std::uint64_t hold = peer_->hold.load(std::memory_order_seq_cst);
  // acquire: hold moves on after the head of the step before; a head read earlier may be older than
  // that.
  const std::uint64_t head = peer_->head.load(std::memory_order_acquire);
  const std::uint64_t free_from = std::max(head, std::min(at, hold));
  if (free_from > head_seen_) {
    head_seen_ = free_from;
    head_seq_seen_ = seq_at(free_from);
  }
}

// The record stands behind a pad, or the consumer's line must be looked at, or there is no room.
std::byte* RingProducer::reserve_slowly(std::uint64_t bytes) noexcept {
  last_dropped_ = false;
  reserved_at_ = kNone;
  const std::uint64_t need = record_footprint(bytes);
  const std::uint64_t offset = places_.offset(tail_);
  const std::uint64_t pad =
      offset + need > geometry_.capacity_bytes ? geometry_.capacity_bytes - offset : 0;
  if (!has_room(tail_ + pad + need, seq_)) {
    if (geometry_.overflow == Overflow::kBlock) return nullptr;
    last_dropped_ = true;
    ++dropped_;
    return nullptr;
  }
  if (pad != 0) {
    // Beyond the tail, so scratch until the commit, whether or not the reservation becomes a
    // record.
    auto* header = reinterpret_cast<RecordHeader*>(data_ + offset);
    *header = RecordHeader{};
    header->type = static_cast<std::uint32_t>(RecordType::kPad);
    header->bytes = pad - sizeof(RecordHeader);
    header->seq = seq_;
  }
  reserved_at_ = tail_ + pad;
  reserved_bytes_ = bytes;
  reserved_ = reinterpret_cast<RecordHeader*>(data_ + places_.offset(reserved_at_));
  return reinterpret_cast<std::byte*>(reserved_ + 1);
}

bool RingProducer::mark_last(std::uint32_t flags) noexcept {
  if (last_ == kNone) return false;
  reinterpret_cast<RecordHeader*>(data_ + places_.offset(last_))->flags |= flags;
  return true;
}

void RingProducer::stage(Journal& journal) noexcept {
  if (dropped_ != committed_dropped_) {
    journal.append(word_ref(where_, kTailLineOffset + offsetof(TailLine, dropped)), dropped_);
  }
  if (tail_ == committed_tail_) return;
  journal.append(word_ref(where_, kTailLineOffset + offsetof(TailLine, tail_seq)), seq_);
  journal.append(word_ref(where_, kTailLineOffset + offsetof(TailLine, tail)), tail_);
}

void RingProducer::close(Journal& journal) noexcept {
  journal.append(word_ref(where_, kTailLineOffset + offsetof(TailLine, closed)), 1);
}

void RingProducer::rollback(const Savepoint& to) noexcept {
  tail_ = to.tail;
  seq_ = to.seq;
  dropped_ = to.dropped;
  last_ = to.last;
  reserved_at_ = kNone;
}

void RingProducer::settle() noexcept {
  committed_tail_ = tail_;
  committed_seq_ = seq_;
  committed_dropped_ = dropped_;
  last_ = kNone;
}

bool RingProducer::closed() const noexcept {
  // relaxed: written by this lane only.
  return line_->closed.load(std::memory_order_relaxed) != 0;
}

// Modelled in tests/model/wakeup.pml.
bool RingProducer::wake(const Neighbour& consumer) noexcept {
  // relaxed: this lane is their only writer and reads back its own stores. seq_cst, pairs with the
  // consumer's seq_cst loads in tail_moved(). `closed` behind the tail, as in close().
  line_->tail.store(line_->tail.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  if (closed()) line_->closed.store(1, std::memory_order_seq_cst);
  return consumer.wake();
}

bool RingProducer::head_moved() const noexcept {
  // seq_cst: the sleeper's last look, after its store of `waiting` (bell.h).
  return peer_->head.load(std::memory_order_seq_cst) > head_seen_;
}

std::uint64_t RingProducer::pending_records() const noexcept {
  // acquire: not needed for the number; keeps the reader honest about what it may assume.
  return seq_ - std::min(seq_, peer_->head_seq.load(std::memory_order_acquire));
}

std::uint64_t RingProducer::pending_bytes() const noexcept {
  return tail_ - std::min(tail_, peer_->head.load(std::memory_order_acquire));  // acquire: as above
}

bool RingProducer::worth_taking() const noexcept {
  return pending_records() * 2 >= geometry_.records_max ||
         pending_bytes() * 4 >= geometry_.capacity_bytes;
}

// ---- consumer

RingConsumer::RingConsumer(const TailLine& peer, const std::byte* data, HeadLine& line,
                           RingGeometry geometry, std::uint64_t line_offset) noexcept
    : peer_(&peer),
      data_(data),
      line_(&line),
      geometry_(geometry),
      places_(geometry.capacity_bytes),
      line_offset_(line_offset) {}

void RingConsumer::attach() noexcept {
  // relaxed: this lane is their only writer, and Journal::recover() has just stored them.
  head_ = committed_head_ = line_->head.load(std::memory_order_relaxed);
  seq_ = committed_seq_ = line_->head_seq.load(std::memory_order_relaxed);
  skipped_ = committed_skipped_ = line_->skipped.load(std::memory_order_relaxed);
  tail_seen_ = head_;
  closed_seen_ = 0;
  holding_ = false;
  // seq_cst, pairs with discard_oldest(): the dead incarnation's step is over, nothing is being
  // read.
  line_->hold.store(kHoldNothing, std::memory_order_seq_cst);
}

// KEEP_NEWEST: before the first read of a step, says from where on it reads, and starts behind what
// was given up. False: everything published was given up for a record that is not published yet.
bool RingConsumer::take_hold() noexcept {
  std::uint64_t from = head_;
  for (;;) {
    // seq_cst, both: pairs with the producer's store of discard and load of hold in
    // discard_oldest().
    line_->hold.store(from, std::memory_order_seq_cst);
    const std::uint64_t discard = peer_->discard.load(std::memory_order_seq_cst);
    if (discard <= from) break;
    // acquire: a record at `discard`, if there is one, was published before it became the oldest.
    const std::uint64_t tail = peer_->tail.load(std::memory_order_acquire);
    if (discard == tail) {
      tail_seen_ = tail;
      line_->hold.store(kHoldNothing, std::memory_order_seq_cst);  // seq_cst: as above
      return false;
    }
    from = discard;
  }
  if (from != head_) {
    // Read only now that the hold stands: before, the producer could have been writing here.
    const auto* header = reinterpret_cast<const RecordHeader*>(data_ + places_.offset(from));
    RF_CHECK(header->seq >= seq_, header->seq, seq_, from);
    skipped_ += header->seq - seq_;
    seq_ = header->seq;
    head_ = from;
  }
  tail_seen_ = std::max(tail_seen_, head_);
  held_ = head_;
  held_seq_ = seq_;
  holding_ = true;
  return true;
}

// Prefetches the next published lines that have not been. Only the header before a record says
// where it is, so without this, small records cost one cache miss after another (bench/ring_bench).
// Lines beyond the tail are left alone: the producer is writing them.
void RingConsumer::prefetch() noexcept {
  // A large record has left the mark behind: its first lines are being read already.
  const std::uint64_t from = prefetched_ < head_ ? head_ + kPrefetchBytes : prefetched_;
  prefetched_ = std::max(from, std::min(from + kPrefetchBytes, tail_seen_));
  std::uint64_t offset = places_.offset(head_) + (from - head_);
  for (std::uint64_t at = from; at < prefetched_; at += kRecordAlign, offset += kRecordAlign) {
    __builtin_prefetch(
        data_ + (offset < geometry_.capacity_bytes ? offset : offset - geometry_.capacity_bytes));
  }
}

void RingConsumer::release_hold() noexcept {
  if (!holding_) return;
  holding_ = false;
  // seq_cst, pairs with discard_oldest(): comes after the head of the step that read.
  line_->hold.store(kHoldNothing, std::memory_order_seq_cst);
}

std::optional<RecordView> RingConsumer::peek_slowly() noexcept {
  if (geometry_.overflow == Overflow::kKeepNewest && !holding_ && !take_hold()) return std::nullopt;
  for (;;) {
    if (head_ == tail_seen_) {
      // acquire, pairs with the store of tail in Journal::carry_out(): the records before it are in
      // memory. closed is read first: if it is set, the tail read after it is the last one.
      closed_seen_ = peer_->closed.load(std::memory_order_acquire);
      tail_seen_ = peer_->tail.load(std::memory_order_acquire);
      // What the producer must leave alone begins at the committed head, or where the step holds.
      const std::uint64_t kept_from = holding_ ? held_ : committed_head_;
      RF_CHECK(head_ <= tail_seen_ && tail_seen_ - kept_from <= geometry_.capacity_bytes, head_,
               tail_seen_, kept_from);
      if (head_ == tail_seen_) return std::nullopt;
      prefetched_ = std::max(prefetched_, head_);
      prefetch();
    }
    const std::uint64_t offset = places_.offset(head_);
    const auto* header = reinterpret_cast<const RecordHeader*>(data_ + offset);
    if (header->type != static_cast<std::uint32_t>(RecordType::kPad)) {
      return checked_record(offset, header);
    }
    head_ += record_footprint(checked_record(offset, header).bytes.size());
  }
}

bool RingConsumer::ended() noexcept {
  if (closed_seen_ == 0 || head_ != tail_seen_) {
    // acquire: as in peek(), closed before tail.
    closed_seen_ = peer_->closed.load(std::memory_order_acquire);
    if (closed_seen_ == 0) return false;
    tail_seen_ = peer_->tail.load(std::memory_order_acquire);
  }
  return !peek().has_value();
}

void RingConsumer::stage(Journal& journal) noexcept {
  if (head_ == committed_head_) return;
  if (skipped_ != committed_skipped_) {
    journal.append(word_ref(kHeadsSegment, line_offset_ + offsetof(HeadLine, skipped)), skipped_);
  }
  journal.append(word_ref(kHeadsSegment, line_offset_ + offsetof(HeadLine, head_seq)), seq_);
  journal.append(word_ref(kHeadsSegment, line_offset_ + offsetof(HeadLine, head)), head_);
}

void RingConsumer::rollback(const Savepoint& to) noexcept {
  next_ = 0;  // consume() wants a new peek()
  head_ = to.head;
  seq_ = to.seq;
  if (holding_ && head_ < held_) {  // what lies before was given up since
    head_ = held_;
    seq_ = held_seq_;
  }
}

void RingConsumer::settle() noexcept {
  committed_head_ = head_;
  committed_seq_ = seq_;
  committed_skipped_ = skipped_;
  release_hold();
}

void RingConsumer::abandon() noexcept {
  next_ = 0;  // as in rollback()
  head_ = committed_head_;
  seq_ = committed_seq_;
  skipped_ = committed_skipped_;
  release_hold();
}

// Modelled in tests/model/wakeup.pml.
bool RingConsumer::wake(const Neighbour& producer) noexcept {
  // relaxed: this lane is its only writer and reads back its own store. seq_cst, pairs with the
  // producer's seq_cst load in head_moved().
  line_->head.store(line_->head.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  return producer.wake();
}

bool RingConsumer::tail_moved() const noexcept {
  // seq_cst: the sleeper's last look, after its store of `waiting` (bell.h).
  return peer_->tail.load(std::memory_order_seq_cst) > tail_seen_ ||
         peer_->closed.load(std::memory_order_seq_cst) != closed_seen_;
}

std::uint64_t RingConsumer::free_bytes() const noexcept {
  // acquire: an estimate for the decision whether to wake the producer.
  return geometry_.capacity_bytes - (peer_->tail.load(std::memory_order_acquire) - head_);
}

std::uint64_t RingConsumer::pending_records() const noexcept {
  return peer_->tail_seq.load(std::memory_order_acquire) - seq_;  // acquire: as above
}

bool RingConsumer::worth_refilling() const noexcept {
  return pending_records() * 2 <= geometry_.records_max &&
         free_bytes() * 2 >= geometry_.capacity_bytes;
}

// ---- views

QueueView view_queue(const TailLine& tail, const HeadLine& head,
                     const RingGeometry& geometry) noexcept {
  QueueView view;
  // acquire, heads first, then what was given up: a tail read later is never behind them.
  const std::uint64_t head_seq = head.head_seq.load(std::memory_order_acquire);
  const std::uint64_t skipped =
      std::min(head_seq, head.skipped.load(std::memory_order_acquire));  // acquire: as above
  const std::uint64_t consumed_bytes = head.head.load(std::memory_order_acquire);
  // KEEP_NEWEST: records that were given up count as dropped at once, not only when the consumer
  // comes by; one that its step is reading just now is counted as consumed when the step commits.
  const std::uint64_t gone_seq =
      std::max(head_seq, tail.discard_seq.load(std::memory_order_acquire));  // acquire: as above
  const std::uint64_t gone_bytes =
      std::max(consumed_bytes, tail.discard.load(std::memory_order_acquire));  // acquire: as above
  view.closed = tail.closed.load(std::memory_order_acquire) != 0;
  const std::uint64_t published =
      std::max(gone_seq, tail.tail_seq.load(std::memory_order_acquire));  // acquire: as above
  const std::uint64_t dropped = tail.dropped.load(std::memory_order_acquire);
  const std::uint64_t tail_bytes = tail.tail.load(std::memory_order_acquire);
  view.size_bytes = tail_bytes - std::min(tail_bytes, gone_bytes);
  view.size_records = published - gone_seq;
  view.capacity_records = geometry.records_max;
  view.capacity_bytes = geometry.capacity_bytes;
  view.put_total = published + dropped;
  view.get_total = head_seq - skipped;
  view.drop_total = dropped + skipped + (gone_seq - head_seq);
  return view;
}

}  // namespace ringfeed::shm
