// A ring carries records from one producing lane to one consuming lane: in order, each exactly
// once.
//
// Records vary in length. They are written and read in place, contiguous and 64-byte aligned. Only
// what is between head and tail is valid; the rest is free. So a reservation that does not become a
// step costs nothing and needs no release. Layout: ring_layout.h.
//
// Both ends work on private copies of their cursors and let the journal of their step store them,
// so a step that is never committed has never happened. There are no locks and no compare-and-swap.
//
// Overflow: BLOCK (reserve refuses), DROP_NEW (the record is counted and forgotten), KEEP_NEWEST
// (the oldest records are given up, but never those that the consumer's step is reading; if these
// fill the ring, the new record is dropped).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/journal.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::shm {

enum class Overflow : std::uint8_t { kBlock = 0, kDropNew = 1, kKeepNewest = 2 };

struct RingGeometry {
  std::uint64_t capacity_bytes = 0;  // a multiple of the page
  std::uint64_t records_max = 0;
  Overflow overflow = Overflow::kBlock;
};

// The largest payload that fits.
constexpr std::uint64_t record_bytes_max(const RingGeometry& geometry) noexcept {
  return geometry.capacity_bytes / 2 - sizeof(RecordHeader);
}
constexpr std::uint64_t record_footprint(std::uint64_t payload_bytes) noexcept {
  return sizeof(RecordHeader) + align_up(payload_bytes, kRecordAlign);
}

struct RecordInfo {
  std::uint64_t tag[2] = {0, 0};
  std::uint64_t user = 0;
};

// Maps a stream position to a place in the ring. It divides only when the stream wraps around, not
// for each record (bench/ring_bench: a tenth of the rate at 64 B).
class RingPlaces {
 public:
  RingPlaces() = default;
  explicit RingPlaces(std::uint64_t capacity_bytes) noexcept : capacity_bytes_(capacity_bytes) {}
  std::uint64_t offset(std::uint64_t at) noexcept {
    // Unsigned, so a position before this round is also far away.
    if (at - round_ >= capacity_bytes_) round_ = at - at % capacity_bytes_;
    return at - round_;
  }

 private:
  std::uint64_t capacity_bytes_ = 1;
  std::uint64_t round_ = 0;  // the position at which this round of the ring began
};

// The producing end; one lane, one thread.
class RingProducer {
 public:
  RingProducer() = default;
  // `where` is the ring's number in the lane's segment table.
  RingProducer(TailLine& line, std::byte* data, const HeadLine& head, RingGeometry geometry,
               std::uint8_t where) noexcept;

  // Takes over the cursors that the last incarnation left; call it after Journal::recover().
  void attach() noexcept;

  // Room for a record of up to `bytes`, or nullptr: the ring is full (kBlock), or the record is
  // dropped and counted (last_dropped() is then true). The bytes may be written until put(); nobody
  // reads them before the commit. RF_CHECK: bytes <= record_bytes_max().
  std::byte* reserve(std::uint64_t bytes) noexcept;
  [[nodiscard]] bool last_dropped() const noexcept { return last_dropped_; }
  // Turns the last reservation into a record of `bytes` (at most what was reserved).
  void put(std::uint64_t bytes, const RecordInfo& info,
           RecordType type = RecordType::kData) noexcept;
  // Marks the last record put since the last commit; false if there is none.
  bool mark_last(std::uint32_t flags) noexcept;

  // Lists the cursors' new values in the journal if they have changed.
  void stage(Journal& journal) noexcept;
  // Lists the end of the ring. Call it after stage(): words are stored in the order of the list,
  // and a consumer that sees the end must not then find an older tail.
  void close(Journal& journal) noexcept;

  struct Savepoint {
    std::uint64_t tail, seq, dropped, last;
  };
  [[nodiscard]] Savepoint savepoint() const noexcept { return {tail_, seq_, dropped_, last_}; }
  void rollback(const Savepoint& to) noexcept;
  // The step has been committed: earlier records cannot be changed any more.
  void settle() noexcept;

  [[nodiscard]] bool touched() const noexcept {
    return tail_ != committed_tail_ || dropped_ != committed_dropped_;
  }
  [[nodiscard]] bool closed() const noexcept;
  // Wakes the consumer if it sleeps; true if it did. Covers everything committed so far: stores the
  // cursors again (seq_cst), then looks at `waiting` (bell.h).
  bool wake(const Neighbour& consumer) noexcept;
  // Has the consumer moved since reserve() last said no? (the sleeper's look, seq_cst)
  [[nodiscard]] bool head_moved() const noexcept;
  // Records and bytes published that the consumer has not consumed, as of now.
  [[nodiscard]] std::uint64_t pending_records() const noexcept;
  [[nodiscard]] std::uint64_t pending_bytes() const noexcept;
  // Is there enough to be worth waking the consumer? With less, a sleeper stays asleep until the
  // producer is about to sleep itself, or time has passed (bench/ring_bench: half as many records
  // again at 64 B as with two ends that look all the time).
  [[nodiscard]] bool worth_taking() const noexcept;
  [[nodiscard]] const RingGeometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] std::uint64_t bytes_put() const noexcept { return tail_ - committed_tail_; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::byte* reserve_slowly(std::uint64_t bytes) noexcept;
  bool has_room(std::uint64_t end, std::uint64_t seq) noexcept;
  void discard_oldest(std::uint64_t end) noexcept;

  TailLine* line_ = nullptr;
  std::byte* data_ = nullptr;
  const HeadLine* peer_ = nullptr;
  RingGeometry geometry_;
  RingPlaces places_;
  std::uint8_t where_ = 0;
  bool last_dropped_ = false;
  std::uint64_t tail_ = 0;  // of the step under way
  std::uint64_t seq_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t committed_tail_ = 0;
  std::uint64_t committed_seq_ = 0;
  std::uint64_t committed_dropped_ = 0;
  std::uint64_t reserved_at_ = kNone;  // stream offset of the reserved record's header
  RecordHeader* reserved_ = nullptr;   // and the header itself
  std::uint64_t reserved_bytes_ = 0;   // payload bytes reserved
  std::uint64_t last_ = kNone;         // stream offset of the last record put since the commit
  std::uint64_t head_seen_ = 0;        // the consumer's cursors when last read
  std::uint64_t head_seq_seen_ = 0;
};

// Inline, as are put() and peek(): the part that runs for every record, apart from the rare part
// (bench/ring_bench).
inline std::byte* RingProducer::reserve(std::uint64_t bytes) noexcept {
  RF_CHECK(bytes <= record_bytes_max(geometry_), bytes, geometry_.capacity_bytes);
  const std::uint64_t need = record_footprint(bytes);
  const std::uint64_t offset = places_.offset(tail_);
  if (offset + need > geometry_.capacity_bytes ||
      tail_ + need > head_seen_ + geometry_.capacity_bytes ||
      seq_ - head_seq_seen_ >= geometry_.records_max) {
    return reserve_slowly(bytes);
  }
  last_dropped_ = false;
  reserved_at_ = tail_;
  reserved_ = reinterpret_cast<RecordHeader*>(data_ + offset);
  reserved_bytes_ = bytes;
  return reinterpret_cast<std::byte*>(reserved_ + 1);
}

inline void RingProducer::put(std::uint64_t bytes, const RecordInfo& info,
                              RecordType type) noexcept {
  RF_CHECK(reserved_at_ != kNone && bytes <= reserved_bytes_, bytes, reserved_bytes_);
  *reserved_ = RecordHeader{.type = static_cast<std::uint32_t>(type),
                            .flags = 0,
                            .bytes = bytes,
                            .seq = seq_,
                            .tag = {info.tag[0], info.tag[1]},
                            .t_ns = 0,
                            .crc32c = 0,
                            .reserved = 0,
                            .user = info.user};
  last_ = reserved_at_;
  tail_ = reserved_at_ + record_footprint(bytes);
  ++seq_;
  reserved_at_ = kNone;
}

struct RecordView {
  std::span<const std::byte> bytes;
  const RecordHeader* header = nullptr;
};

// The consuming end; one lane, one thread.
class RingConsumer {
 public:
  RingConsumer() = default;
  // `line_offset` is the head line's place in the lane's heads segment.
  RingConsumer(const TailLine& peer, const std::byte* data, HeadLine& line, RingGeometry geometry,
               std::uint64_t line_offset) noexcept;

  void attach() noexcept;

  // The next record that the step has not consumed; nullopt: there is none now. It stays readable
  // until the commit. RF_CHECK: type, sequence number and bounds of the record.
  std::optional<RecordView> peek() noexcept;
  // Moves past the record that peek() returned.
  void consume() noexcept;
  // Is the ring closed, with nothing left to consume?
  [[nodiscard]] bool ended() noexcept;

  void stage(Journal& journal) noexcept;
  struct Savepoint {
    std::uint64_t head, seq;
  };
  [[nodiscard]] Savepoint savepoint() const noexcept { return {head_, seq_}; }
  void rollback(const Savepoint& to) noexcept;
  // The step has been committed.
  void settle() noexcept;
  // The step will not be committed: goes back to where it began.
  void abandon() noexcept;

  [[nodiscard]] bool touched() const noexcept { return head_ != committed_head_; }
  // Wakes the producer if it sleeps; true if it did. As RingProducer::wake().
  bool wake(const Neighbour& producer) noexcept;
  // Has the producer published or closed since peek() last found nothing? (the sleeper's look,
  // seq_cst)
  [[nodiscard]] bool tail_moved() const noexcept;
  [[nodiscard]] std::uint64_t free_bytes() const noexcept;
  [[nodiscard]] std::uint64_t pending_records() const noexcept;
  // Is there enough room to be worth waking the producer?
  [[nodiscard]] bool worth_refilling() const noexcept;
  [[nodiscard]] const RingGeometry& geometry() const noexcept { return geometry_; }

 private:
  static constexpr std::uint64_t kPrefetchBytes = 1024;

  std::optional<RecordView> peek_slowly() noexcept;
  RecordView checked_record(std::uint64_t offset, const RecordHeader* header) noexcept;
  bool take_hold() noexcept;
  void release_hold() noexcept;
  void prefetch() noexcept;

  const TailLine* peer_ = nullptr;
  const std::byte* data_ = nullptr;
  HeadLine* line_ = nullptr;
  RingGeometry geometry_;
  RingPlaces places_;
  std::uint64_t line_offset_ = 0;
  std::uint64_t head_ = 0;  // of the step under way
  std::uint64_t seq_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t committed_head_ = 0;
  std::uint64_t committed_seq_ = 0;
  std::uint64_t committed_skipped_ = 0;
  std::uint64_t held_ = 0;  // where the step began to read, if it holds
  std::uint64_t held_seq_ = 0;
  std::uint64_t tail_seen_ = 0;
  std::uint64_t closed_seen_ = 0;
  std::uint64_t next_ = 0;  // where the peeked record ends
  std::uint64_t prefetched_ = 0;
  bool holding_ = false;
};

// Always inline, like peek(). Otherwise the span is returned through memory: its two halves are
// stored separately and loaded as one before the stores have retired, and that stall was a third of
// the time at 64 B (bench/ring_bench, perf annotate).
[[gnu::always_inline]] inline RecordView RingConsumer::checked_record(
    std::uint64_t offset, const RecordHeader* header) noexcept {
  RF_CHECK(header->bytes <= geometry_.capacity_bytes, header->bytes, head_, tail_seen_);
  const std::uint64_t end = head_ + record_footprint(header->bytes);
  RF_CHECK(end <= tail_seen_, end, tail_seen_, header->type);
  RF_CHECK(offset + (end - head_) <= geometry_.capacity_bytes, offset, header->bytes);
  RF_CHECK(header->seq == seq_, header->seq, seq_, head_);
  RF_CHECK(header->type != 0 && header->type <= static_cast<std::uint32_t>(RecordType::kUnitEnd),
           header->type, head_);
  next_ = end;
  if (prefetched_ < head_ + kPrefetchBytes && prefetched_ < tail_seen_) prefetch();
  return {{reinterpret_cast<const std::byte*>(header + 1), header->bytes}, header};
}

[[gnu::always_inline]] inline std::optional<RecordView> RingConsumer::peek() noexcept {
  if (head_ == tail_seen_ || (geometry_.overflow == Overflow::kKeepNewest && !holding_)) {
    return peek_slowly();
  }
  const std::uint64_t offset = places_.offset(head_);
  const auto* header = reinterpret_cast<const RecordHeader*>(data_ + offset);
  if (header->type == static_cast<std::uint32_t>(RecordType::kPad)) return peek_slowly();
  return checked_record(offset, header);
}

inline void RingConsumer::consume() noexcept {
  RF_CHECK(next_ > head_, next_, head_);
  head_ = next_;
  ++seq_;
}

// The numbers of a queue, read from the two lines. Any process that maps them may read them.
struct QueueView {
  std::uint64_t size_records = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t capacity_records = 0;
  std::uint64_t capacity_bytes = 0;
  bool closed = false;
  std::uint64_t put_total = 0;   // offered: published, dropped and given up
  std::uint64_t get_total = 0;   // consumed
  std::uint64_t drop_total = 0;  // found no room, or gave way to newer ones
  // put_total = get_total + size_records + drop_total
};
QueueView view_queue(const TailLine& tail, const HeadLine& head,
                     const RingGeometry& geometry) noexcept;

}  // namespace ringfeed::shm
