// This process's end of a ring, where it stands for a lane that does not run: replay.h,
// feed_part.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ringfeed/shm/journal.h"
#include "ringfeed/shm/ring.h"
#include "supervisor/layout/feed_layout.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed::process {

// A ring mapped for one of its ends, with the page and the journal of a lane that has no other.
class RingEnd {
 public:
  RingEnd(const layout::FeedMemory& memory, const layout::RingPlan& ring, bool producer);

  [[nodiscard]] shm::TailLine& tail() const;
  [[nodiscard]] shm::HeadLine& head() const;
  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] std::uint64_t head_offset() const { return head_offset_; }
  [[nodiscard]] shm::Journal& journal() { return journal_; }

 private:
  static constexpr std::uint32_t kEntries = 64;

  std::uint64_t head_offset_;
  shm::Mapping ring_;
  shm::Mapping heads_;
  std::array<shm::WritableSegment, shm::kFirstRingSegment + 1> segments_{};
  std::array<shm::JournalEntry, 2 * std::size_t{kEntries}> areas_{};
  std::unique_ptr<shm::LanePage> page_;
  shm::Journal journal_;
};

// Takes what a lane puts into one of its output rings.
class RingTaker {
 public:
  RingTaker(const layout::FeedMemory& memory, const layout::RingPlan& ring);
  RingTaker(const RingTaker&) = delete;
  RingTaker& operator=(const RingTaker&) = delete;

  // The next record, which stays readable until the commit; markers are passed over.
  [[nodiscard]] std::optional<shm::RecordView> peek();
  void consume() { consumer_.consume(); }
  // What was passed is taken. False: that was nothing. The lane is to be rung: it may wait for
  // room.
  bool commit();
  // Is it closed, and empty?
  [[nodiscard]] bool ended() { return consumer_.ended(); }
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  shm::RingGeometry geometry_;
  RingEnd end_;
  shm::RingConsumer consumer_;
};

// Puts records into one of a lane's input rings, each a unit.
class RingGiver {
 public:
  RingGiver(const layout::FeedMemory& memory, const layout::RingPlan& ring);
  RingGiver(const RingGiver&) = delete;
  RingGiver& operator=(const RingGiver&) = delete;

  // False: there is no room now. The lane is to be rung.
  [[nodiscard]] bool give(std::span<const std::byte> bytes, const shm::RecordInfo& info);
  void close();

 private:
  RingEnd end_;
  shm::RingProducer producer_;
};

}  // namespace ringfeed::process
