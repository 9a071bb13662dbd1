#include "ringfeed/shm/journal.h"

#include <bit>
#include <utility>

#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/shm/ring_layout.h"

namespace ringfeed::shm {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
constexpr std::uint32_t kNoEntry = 0xffffffffU;

}  // namespace

Journal::Journal(LanePage& page, JournalEntry* area0, JournalEntry* area1, std::uint32_t capacity,
                 std::span<const WritableSegment> segments, Stamps* stamps)
    : page_(page), areas_{area0, area1}, capacity_(capacity), segments_(segments), stamps_(stamps) {
  const std::uint32_t places = std::bit_ceil(capacity * 2);
  places_.assign(places, Place{0, 0});
  shift_ = 64U - static_cast<std::uint32_t>(std::countr_zero(places));
  undo_.reserve(capacity);
  // acquire: the last incarnation's commit was a release; its list is complete.
  commit_ = page_.commit.load(std::memory_order_acquire);
  next_ = areas_[(commit_ + 1) & 1];
}

inline std::atomic<std::uint64_t>& Journal::word(WordRef ref) const noexcept {
  const std::uint8_t segment = segment_of(ref);
  const std::uint64_t offset = offset_of(ref);
  RF_CHECK(segment < segments_.size() && segments_[segment].data != nullptr, segment, offset);
  RF_CHECK(offset % 8 == 0 && offset + 8 <= segments_[segment].bytes, segment, offset,
           segments_[segment].bytes);
  // The mapped bytes hold atomics of exactly this type wherever a journal may point.
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(segments_[segment].data + offset);
}

// Modelled in tests/model/journal.pml, as are recover(), store() and commit() below.
void Journal::carry_out(const JournalEntry* entries, std::uint32_t count) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    RF_FAILPOINT("shm.journal.carry_out");
    const WordRef ref{entries[i].where};
    std::atomic<std::uint64_t>& target = word(ref);
    const std::uint8_t segment = segment_of(ref);
    if (segment == kArenaSegment) {
      if (stamps_ != nullptr) stamps_->mark(offset_of(ref), 8);
      // relaxed: only this lane reads its arena.
      target.store(entries[i].value, std::memory_order_relaxed);
    } else {
      // release: publishes the records before a tail and the slot before desc.seq; a head says that
      // the reads are over. The lane stores a ring's cursor once more, seq_cst, before it looks
      // whether the neighbour sleeps (RingProducer::wake(), RingConsumer::wake()); the feed's bell
      // is rung without such a look.
      target.store(entries[i].value, std::memory_order_release);
    }
  }
}

void Journal::recover() noexcept {
  // acquire: as in the constructor.
  commit_ = page_.commit.load(std::memory_order_acquire);
  // relaxed: written by the last incarnation before its commit, which was acquired above.
  const std::uint32_t count = page_.entry_counts[commit_ & 1].load(std::memory_order_relaxed);
  RF_CHECK(count <= capacity_, count, capacity_);
  carry_out(areas_[commit_ & 1], count);
  abandon();
}

std::uint32_t* Journal::find(WordRef ref) const noexcept {
  const std::size_t mask = places_.size() - 1;
  for (std::size_t at = (ref.where * kGolden) >> shift_;; at = (at + 1) & mask) {
    Place& place = places_[at];
    if (place.generation != generation_) {
      place = {generation_, kNoEntry};
      return &place.entry;
    }
    if (next_[place.entry].where == ref.where) return &place.entry;
  }
}

std::uint64_t Journal::load(WordRef ref) const noexcept {
  if (count_ != 0) {
    const std::size_t mask = places_.size() - 1;
    for (std::size_t at = (ref.where * kGolden) >> shift_;; at = (at + 1) & mask) {
      const Place& place = places_[at];
      if (place.generation != generation_) break;
      if (next_[place.entry].where == ref.where) return next_[place.entry].value;
    }
  }
  // relaxed: this lane is the word's only writer and reads back its own store.
  return word(ref).load(std::memory_order_relaxed);
}

void Journal::store(WordRef ref, std::uint64_t value) noexcept {
  std::uint32_t* entry = find(ref);
  if (*entry != kNoEntry) {
    if (*entry < fresh_) undo_.push_back({*entry, next_[*entry].value});
    next_[*entry].value = value;
    return;
  }
  RF_CHECK(count_ < capacity_, count_, capacity_);
  // Checked here and not only when it is carried out: after the commit, a word that does not exist
  // would abort every later incarnation as well.
  static_cast<void>(word(ref));
  next_[count_] = {ref.where, value};
  *entry = count_++;
}

void Journal::append(WordRef ref, std::uint64_t value) noexcept {
  RF_CHECK(count_ < capacity_, count_, capacity_);
  static_cast<void>(word(ref));  // as in store()
  next_[count_++] = {ref.where, value};
}

Journal::Savepoint Journal::savepoint() noexcept {
  fresh_ = count_;
  undo_.clear();
  return {count_, 0};
}

void Journal::rollback(Savepoint to) noexcept {
  // An older savepoint's values went with the undo list that the newer one has cleared.
  RF_CHECK(to.entries == fresh_, to.entries, fresh_);
  // Newest first, so that an entry changed twice gets its oldest value last.
  for (std::size_t i = undo_.size(); i-- > 0;) next_[undo_[i].entry].value = undo_[i].value;
  undo_.clear();
  if (count_ == to.entries) return;
  count_ = to.entries;
  // The places are filled anew: marks for forgotten entries would fill the table, and then a search
  // would never end, in a step that rolls back often.
  forget_places();
  for (std::uint32_t i = 0; i < count_; ++i) *find({next_[i].where}) = i;
}

void Journal::commit() noexcept {
  const std::uint64_t next = commit_ + 1;
  // relaxed: published by the release of commit below; nobody reads the count before.
  page_.entry_counts[next & 1].store(count_, std::memory_order_relaxed);
  RF_FAILPOINT("shm.journal.before_commit");
  // release: entries, count, records beyond the tails and bulk data are in memory before the step
  // has happened. A death is seen by the next incarnation through this word alone.
  page_.commit.store(next, std::memory_order_release);
  RF_FAILPOINT("shm.journal.after_commit");
  commit_ = next;
  carry_out(areas_[next & 1], count_);
  RF_FAILPOINT("shm.journal.carried_out");
  abandon();
}

void Journal::abandon() noexcept {
  count_ = 0;
  fresh_ = 0;
  undo_.clear();
  next_ = areas_[(commit_ + 1) & 1];
  forget_places();
}

void Journal::forget_places() noexcept {
  if (++generation_ == 0) {
    for (Place& place : places_) place = {0, 0};
    generation_ = 1;
  }
}

}  // namespace ringfeed::shm
