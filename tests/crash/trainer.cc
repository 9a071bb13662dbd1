#include "tests/crash/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ringfeed::crash {

using testing::RigBatch;
using testing::RigSegment;

Trainer::Trainer(testing::LaneRig& rig, std::uint64_t hold)
    : geometry_(rig.feed_geometry()), hold_(hold) {
  for (const RigSegment& segment : rig.segments()) {
    if (segment.kind == shm::SegmentKind::kFeedControl) control_ = segment.data;
    if (segment.kind == shm::SegmentKind::kPayload) payload_ = segment.data;
    if (segment.kind == shm::SegmentKind::kGroup && group_ == nullptr) {
      group_ = reinterpret_cast<shm::GroupPage*>(segment.data + shm::kPageBytes);
    }
  }
  RF_CHECK(control_ != nullptr && payload_ != nullptr && group_ != nullptr);
}

const shm::Descriptor& Trainer::descriptor(std::uint64_t s) const {
  return reinterpret_cast<const shm::Descriptor*>(
      control_ + shm::descriptors_offset(geometry_.lanes))[s % geometry_.descriptors];
}

bool Trainer::closed() const {
  const auto* lines =
      reinterpret_cast<const shm::ProducerLine*>(control_ + shm::kProducerLinesOffset);
  return std::all_of(lines, lines + geometry_.lanes, [&](const shm::ProducerLine& line) {
    return line.closed.load() != 0 && line.newest.load() <= position_.taken;
  });
}

bool Trainer::at_end() const { return closed() && position_.given_back == position_.taken; }

RigBatch Trainer::look(std::uint64_t s) const {
  const shm::Descriptor& batch = descriptor(s);
  RF_CHECK(batch.offset + batch.bytes <= shm::payload_bytes(geometry_), batch.offset, batch.bytes);
  const std::byte* const bytes = payload_ + batch.offset;
  return {.number = s,
          .rows = batch.rows,
          .slot = batch.slot,
          .token = {batch.token[0], batch.token[1]},
          .bytes = {bytes, bytes + batch.bytes}};
}

void Trainer::check(std::uint64_t s, const char* when) {
  if (!wrong_.empty()) return;
  if (expected_ == nullptr) {
    if (s > kept_.size()) kept_.push_back(look(s));
    if (!(kept_[s - 1] == look(s))) wrong_ = fmt::format("batch {} changed while it was held", s);
    return;
  }
  if (s > expected_->size()) {
    wrong_ = fmt::format("batch {} came, {} were expected", s, expected_->size());
    return;
  }
  const RigBatch& wanted = (*expected_)[s - 1];
  const shm::Descriptor& batch = descriptor(s);
  if (batch.rows != wanted.rows || batch.slot != wanted.slot ||
      batch.bytes != wanted.bytes.size() ||
      batch.offset != shm::kPageBytes + wanted.slot * geometry_.slot_bytes) {
    wrong_ = fmt::format("batch {} {}: {} rows, {} bytes in slot {} instead of {}, {} in {}", s,
                         when, batch.rows, batch.bytes, batch.slot, wanted.rows,
                         wanted.bytes.size(), wanted.slot);
  } else if (batch.token[0] != wanted.token[0] || batch.token[1] != wanted.token[1]) {
    wrong_ = fmt::format("batch {} {}: token {:#x} {} instead of {:#x} {}", s, when, batch.token[0],
                         batch.token[1], wanted.token[0], wanted.token[1]);
  } else if (std::memcmp(payload_ + batch.offset, wanted.bytes.data(), wanted.bytes.size()) != 0) {
    const auto at =
        std::mismatch(wanted.bytes.begin(), wanted.bytes.end(), payload_ + batch.offset);
    wrong_ = fmt::format("batch {} {}: other bytes from {} on", s, when,
                         at.first - wanted.bytes.begin());
  }
}

bool Trainer::act() {
  bool moved = false;
  const std::uint64_t next = position_.taken + 1;
  // acquire: the slot's bytes were there before.
  if (descriptor(next).seq.load(std::memory_order_acquire) == next) {
    std::atomic<std::uint64_t>& word = group_->words[next % geometry_.descriptors];
    if (!shm::claim_take(word, word.load(), next, 0) && wrong_.empty()) {
      wrong_ = fmt::format("batch {} cannot be taken", next);
    }
    ++position_.taken;
    check(next, "taken");
    moved = true;
  }
  while (position_.taken - position_.given_back > hold_ ||
         (closed() && position_.given_back < position_.taken)) {
    const std::uint64_t oldest = ++position_.given_back;
    check(oldest, "given back");
    if (!shm::claim_finish(group_->words[oldest % geometry_.descriptors], oldest, 0) &&
        wrong_.empty()) {
      wrong_ = fmt::format("batch {} was taken away", oldest);
    }
    moved = true;
  }
  return moved;
}

}  // namespace ringfeed::crash
