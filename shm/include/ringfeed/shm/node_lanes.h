// How many lanes of a node share its units, and since which unit. Scaling a running stage changes
// this.
//
// Control segment, page 0, from 0x800 on: two words per node. The supervisor writes them at the
// feed's start and while all lanes stand still (lane_page.h, Parking):
//   offset  size  field   meaning
//      0x0     8  shares  from the lowest bit: `before` (8 bits), `now` (8), `from` (48)
//      0x8     8  floor   the `from` of the change before: every unit below it is done
//
// A unit belongs to one lane, which follows from its number and these words alone: `before` lanes
// share the units below `from`, `now` lanes share the others. So a change needs no lane to be
// drained. `from` is a number that no lane has reached; units that were given out under the old
// sharing are taken and passed on under the old sharing. The next change begins when all units
// below `from` are done. A lane's own position may still be below `from`: it is just after the
// lane's last unit, and the units from there to `from` belonged to other lanes. With the next
// change's `before`, some of those would belong to the lane; `floor`, which is stored first, says
// that they do not. A death of the supervisor leaves either the old `shares`, for which the floor
// changes nothing, or the new ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ringfeed/shm/abi.h"

namespace ringfeed::shm {

inline constexpr std::size_t kNodeLanesOffset = 0x800;
inline constexpr std::uint32_t kNodesMax = 128;
inline constexpr std::uint32_t kNodeLanesMax = 255;
struct NodeLanesWords {
  std::atomic<std::uint64_t> shares;
  std::atomic<std::uint64_t> floor;
};
static_assert(kNodeLanesOffset + kNodesMax * sizeof(NodeLanesWords) == kPageBytes);

inline constexpr std::uint64_t kNoUnit = ~std::uint64_t{0};

// Units go to lanes in blocks: `block` units in a row go to one lane, then it is the next lane's
// turn.
struct NodeLanes {
  std::uint64_t floor = 0;
  std::uint64_t from = 0;
  std::uint32_t before = 1;
  std::uint32_t now = 1;

  [[nodiscard]] constexpr std::uint32_t lane_of(std::uint64_t unit,
                                                std::uint64_t block) const noexcept {
    return static_cast<std::uint32_t>(unit / block % (unit < from ? before : now));
  }
  // The lane's first unit from `unit` on that is not done; kNoUnit: it has none left.
  [[nodiscard]] constexpr std::uint64_t next(std::uint32_t lane, std::uint64_t unit,
                                             std::uint64_t block) const noexcept {
    unit = unit < floor ? floor : unit;
    if (unit < from) {
      const std::uint64_t old = lane < before ? turn(lane, before, unit, block) : kNoUnit;
      if (old < from) return old;
      unit = from;
    }
    return lane < now ? turn(lane, now, unit, block) : kNoUnit;
  }

  friend constexpr bool operator==(const NodeLanes&, const NodeLanes&) = default;

 private:
  static constexpr std::uint64_t turn(std::uint64_t lane, std::uint64_t lanes, std::uint64_t unit,
                                      std::uint64_t block) noexcept {
    const std::uint64_t round = unit - unit % (lanes * block);
    const std::uint64_t begin = round + lane * block;
    if (unit < begin) return begin;
    return unit < begin + block ? unit : begin + lanes * block;
  }
};

inline NodeLanes load(const NodeLanesWords& words) noexcept {
  // relaxed, both: they change only while this lane stands still, and it loaded the desire that let
  // it go on with acquire.
  const std::uint64_t shares = words.shares.load(std::memory_order_relaxed);
  return {.floor = words.floor.load(std::memory_order_relaxed),
          .from = shares >> 16,
          .before = static_cast<std::uint32_t>(shares & 0xff),
          .now = static_cast<std::uint32_t>(shares >> 8 & 0xff)};
}

inline void store(NodeLanesWords& words, const NodeLanes& lanes) noexcept {
  words.floor.store(lanes.floor, std::memory_order_relaxed);  // relaxed: as above
  // release: not before the floor, because a death may leave one without the other.
  words.shares.store(
      lanes.from << 16 | std::uint64_t{lanes.now & 0xff} << 8 | (lanes.before & 0xff),
      std::memory_order_release);
}

// The next change: `now` lanes share the units from `from` on. Only when all units below
// `lanes.from` are done.
constexpr NodeLanes changed(const NodeLanes& lanes, std::uint64_t from,
                            std::uint32_t now) noexcept {
  return {.floor = lanes.from, .from = from, .before = lanes.now, .now = now};
}

}  // namespace ringfeed::shm
