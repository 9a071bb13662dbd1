#include "supervisor/feed/ring_ends.h"

#include <cstring>

namespace ringfeed::process {

RingEnd::RingEnd(const layout::FeedMemory& memory, const layout::RingPlan& ring, bool producer)
    : head_offset_(shm::kHeadLinesOffset + ring.head_index * sizeof(shm::HeadLine)),
      ring_(shm::map_segment(memory.fd(ring.segment), producer).value_or_throw()),
      heads_(shm::map_segment(memory.fd(ring.heads_segment), !producer).value_or_throw()),
      page_(std::make_unique<shm::LanePage>()),
      journal_(*page_, areas_.data(), areas_.data() + kEntries, kEntries, segments_) {
  segments_[shm::kHeadsSegment] = {heads_.data(), heads_.bytes()};
  segments_[shm::kFirstRingSegment] = {ring_.data(), ring_.bytes()};
  journal_.recover();
}

shm::TailLine& RingEnd::tail() const {
  return *reinterpret_cast<shm::TailLine*>(ring_.data() + shm::kTailLineOffset);
}
shm::HeadLine& RingEnd::head() const {
  return *reinterpret_cast<shm::HeadLine*>(heads_.data() + head_offset_);
}
std::byte* RingEnd::data() const { return ring_.data() + shm::kRingDataOffset; }

RingTaker::RingTaker(const layout::FeedMemory& memory, const layout::RingPlan& ring)
    : geometry_(ring.geometry),
      end_(memory, ring, false),
      consumer_(end_.tail(), end_.data(), end_.head(), geometry_, end_.head_offset()) {
  consumer_.attach();
}

std::optional<shm::RecordView> RingTaker::peek() {
  for (;;) {
    std::optional<shm::RecordView> record = consumer_.peek();
    if (!record || record->header->type == static_cast<std::uint32_t>(shm::RecordType::kData)) {
      return record;
    }
    consumer_.consume();
  }
}

bool RingTaker::commit() {
  if (!consumer_.touched()) {
    consumer_.abandon();
    return false;
  }
  consumer_.stage(end_.journal());
  end_.journal().commit();
  consumer_.settle();
  return true;
}

std::uint64_t RingTaker::dropped() const {
  return shm::view_queue(end_.tail(), end_.head(), geometry_).drop_total;
}

RingGiver::RingGiver(const layout::FeedMemory& memory, const layout::RingPlan& ring)
    : end_(memory, ring, true),
      producer_(end_.tail(), end_.data(), end_.head(), ring.geometry, shm::kFirstRingSegment) {
  producer_.attach();
}

bool RingGiver::give(std::span<const std::byte> bytes, const shm::RecordInfo& info) {
  std::byte* const room = producer_.reserve(bytes.size());
  if (room == nullptr) return false;
  if (!bytes.empty()) std::memcpy(room, bytes.data(), bytes.size());
  producer_.put(bytes.size(), info);
  producer_.mark_last(shm::kFlagUnitEnd);
  producer_.stage(end_.journal());
  end_.journal().commit();
  producer_.settle();
  return true;
}

void RingGiver::close() {
  producer_.stage(end_.journal());
  producer_.close(end_.journal());
  end_.journal().commit();
}

}  // namespace ringfeed::process
