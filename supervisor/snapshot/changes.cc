#include "supervisor/snapshot/changes.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "ringfeed/shm/arena.h"

namespace ringfeed::snapshot {
namespace {

using shm::kPageBytes;

// Lanes answer between two steps, most of them at once.
constexpr int kAnswerMsMax = 100;
// Later than any stamp.
constexpr std::uint32_t kNothingSince = std::numeric_limits<std::uint32_t>::max();

// Adds the pages of bytes [from, to).
void add(std::vector<PageRange>& ranges, std::uint64_t from, std::uint64_t to) {
  const std::uint64_t first = from / kPageBytes;
  const std::uint64_t last = (to + kPageBytes - 1) / kPageBytes;
  if (!ranges.empty() && ranges.back().last == first) {
    ranges.back().last = last;
  } else {
    ranges.push_back({first, last});
  }
}

}  // namespace

Changes::Changes(const layout::FeedMemory& memory)
    : memory_(memory),
      since_(memory.layout().lanes.size(), 0),
      tails_(memory.layout().rings.size(), 0) {}

void Changes::order(const std::atomic<bool>& cancelled) const {
  const std::uint32_t generation = memory_.order_generation();
  const auto answered = [&](const layout::LanePlan& plan) {
    // relaxed: look() reads it again.
    return memory_.lane(plan.index).generation_seen.load(std::memory_order_relaxed) >= generation ||
           memory_.lane_finished(plan.index);
  };
  const std::vector<layout::LanePlan>& lanes = memory_.layout().lanes;
  // relaxed: to give up a moment later is no harm.
  for (int ms = 0; ms < kAnswerMsMax && !cancelled.load(std::memory_order_relaxed); ++ms) {
    if (std::all_of(lanes.begin(), lanes.end(), answered)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Look Changes::look() {
  const layout::FeedLayout& layout = memory_.layout();
  Look out(layout.segments.size());
  for (const layout::OutputLayout& output : layout.outputs) {
    if (!first_) add(out[output.payload_segment].emplace(), 0, kPageBytes);
  }
  for (const layout::LanePlan& plan : layout.lanes) look_at_lane(plan, out);
  look_at_rings(out);
  for (std::optional<std::vector<PageRange>>& ranges : out) {
    if (!ranges) continue;
    // A ring's parts, and what the lanes say about the payload, come in any order and may overlap.
    const auto before = [](const PageRange& a, const PageRange& b) { return a.first < b.first; };
    if (!std::is_sorted(ranges->begin(), ranges->end(), before)) {
      std::sort(ranges->begin(), ranges->end(), before);
    }
    std::size_t kept = 0;
    for (const PageRange& range : *ranges) {
      if (kept != 0 && range.first <= (*ranges)[kept - 1].last) {
        (*ranges)[kept - 1].last = std::max((*ranges)[kept - 1].last, range.last);
      } else {
        (*ranges)[kept++] = range;
      }
    }
    ranges->resize(kept);
  }
  first_ = false;
  return out;
}

void Changes::look_at_lane(const layout::LanePlan& plan, Look& out) {
  const shm::LanePage& page = memory_.lane(plan.index);
  // acquire, both: the stamps read below are no older than that. Read before them: what is stamped
  // later has this generation or a later one, and the next copy finds it.
  std::uint32_t reached = page.generation_seen.load(std::memory_order_acquire);
  // A lane at its end writes nothing more: this copy finds the last of it.
  if (memory_.lane_finished(plan.index)) reached = kNothingSince;
  const std::uint32_t since = std::exchange(since_[plan.index], reached);
  const layout::FeedLayout& layout = memory_.layout();
  const std::span<const shm::Stamp> stamps = memory_.page_stamps(plan.index);
  add(out[plan.heads_segment].emplace(), 0,
      shm::stamps_offset(layout.segments[plan.heads_segment].spec.geometry[0]));
  if (first_) return;

  // relaxed, all stamps: ordered by the load of generation_seen.
  std::vector<PageRange>& arena = out[plan.arena_segment].emplace();
  add(arena, 0, shm::kStateOffset);
  const layout::SegmentPlan& segment = layout.segments[plan.arena_segment];
  const std::uint64_t pages = std::max(segment.spec.bytes, segment.bytes_max) / kPageBytes;
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    if (stamps[i].load(std::memory_order_relaxed) < since) continue;
    // Every page that has this stamp; beyond the segment's end there are none (Store).
    for (std::uint64_t at = i; at < pages; at += stamps.size()) {
      if (at >= shm::kStateOffset / kPageBytes) add(arena, at * kPageBytes, (at + 1) * kPageBytes);
    }
  }
  const layout::OutputLayout* output = layout.output_of(plan);
  if (output == nullptr) return;
  const std::span<const shm::Stamp> slots = memory_.slot_stamps(plan.index);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].load(std::memory_order_relaxed) < since) continue;
    const std::vector<std::uint32_t>& lanes = output->producing_lanes;
    const auto number = static_cast<std::uint64_t>(
        std::find(lanes.begin(), lanes.end(), plan.index) - lanes.begin());
    const std::uint64_t slot = i * output->geometry.lanes + number;
    const std::uint64_t at = kPageBytes + slot * output->geometry.slot_bytes;
    add(*out[output->payload_segment], at, at + output->geometry.slot_bytes);
  }
}

void Changes::look_at_rings(Look& out) {
  const layout::FeedLayout& layout = memory_.layout();
  for (std::size_t i = 0; i < layout.rings.size(); ++i) {
    const layout::RingPlan& ring = layout.rings[i];
    // relaxed: an older head only means more to copy.
    const std::uint64_t head = memory_.head(ring).head.load(std::memory_order_relaxed);
    // acquire: the records before it are there.
    const std::uint64_t tail = memory_.tail(ring).tail.load(std::memory_order_acquire);
    const std::uint64_t from = std::max(head, std::exchange(tails_[i], tail));
    std::vector<PageRange>& pages = out[ring.segment].emplace();
    add(pages, 0, shm::kRingDataOffset);
    if (from >= tail) continue;
    const std::uint64_t capacity = ring.geometry.capacity_bytes;
    const std::uint64_t begin = shm::kRingDataOffset + from % capacity;
    const std::uint64_t end = shm::kRingDataOffset + (tail - 1) % capacity + 1;
    if (tail - from >= capacity) {
      add(pages, shm::kRingDataOffset, shm::kRingDataOffset + capacity);
    } else if (begin < end) {
      add(pages, begin, end);
    } else {
      add(pages, shm::kRingDataOffset, end);
      add(pages, begin, shm::kRingDataOffset + capacity);
    }
  }
}

}  // namespace ringfeed::snapshot
