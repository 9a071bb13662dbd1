// Holds a lane to what stamps.h promises: from any moment on, every page and slot that it changes
// has a stamp of the generation that it had reached then, or of a later one.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/rig/lane_rig.h"

namespace ringfeed::testing {

class StampWatch {
 public:
  StampWatch(LaneRig& rig, std::size_t lane) : rig_(rig), lane_(lane) { remember(); }

  // What has changed since the last call without saying so, "" if nothing has. This is the next
  // moment.
  std::string mark() {
    std::string wrong;
    const RigSegment arena = rig_.arena(lane_);
    const std::span<const shm::Stamp> pages = rig_.page_stamps(lane_);
    arena_.resize(arena.bytes);  // room that was added was zeros
    for (std::size_t page = shm::kStateOffset / shm::kPageBytes;
         page < arena.bytes / shm::kPageBytes; ++page) {
      const std::size_t at = page * shm::kPageBytes;
      if (std::memcmp(arena_.data() + at, arena.data + at, shm::kPageBytes) == 0) continue;
      ++changed_;
      const std::uint32_t stamp = pages[page & (pages.size() - 1)].load();
      if (stamp < since_) {
        wrong += fmt::format("page {} of {} changed and is stamped {}, not {}; ", page, arena.name,
                             stamp, since_);
      }
    }
    const std::span<const shm::Stamp> slots = rig_.slot_stamps(lane_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::span<const std::byte> slot = slot_bytes(i);
      if (std::memcmp(slots_[i].data(), slot.data(), slot.size()) == 0) continue;
      ++changed_;
      if (slots[i].load() < since_) {
        wrong +=
            fmt::format("slot {} changed and is stamped {}, not {}; ", i, slots[i].load(), since_);
      }
    }
    remember();
    return wrong;
  }
  // Pages and slots that were found changed.
  [[nodiscard]] std::uint64_t changed() const { return changed_; }

 private:
  void remember() {
    since_ = rig_.page(lane_).generation_seen.load();
    const RigSegment arena = rig_.arena(lane_);
    arena_.assign(arena.data, arena.data + arena.bytes);
    slots_.clear();
    for (std::size_t i = 0; i < rig_.slot_stamps(lane_).size(); ++i) {
      const std::span<const std::byte> slot = slot_bytes(i);
      slots_.emplace_back(slot.begin(), slot.end());
    }
  }
  [[nodiscard]] std::span<const std::byte> slot_bytes(std::size_t i) const {
    const std::vector<std::size_t> lanes = rig_.lanes_of(rig_.node_of(lane_));
    const shm::FeedGeometry& feed = rig_.feed_geometry();
    const std::uint64_t slot = i * feed.lanes + (lane_ - lanes.front());
    for (const RigSegment& segment : rig_.segments()) {
      if (segment.kind != shm::SegmentKind::kPayload) continue;
      return {segment.data + shm::kPageBytes + slot * feed.slot_bytes, feed.slot_bytes};
    }
    return {};
  }

  LaneRig& rig_;
  std::size_t lane_;
  std::uint32_t since_ = 0;
  std::vector<std::byte> arena_;
  std::vector<std::vector<std::byte>> slots_;
  std::uint64_t changed_ = 0;
};

}  // namespace ringfeed::testing
