// How many lanes of a node share its units, and since which unit: what changes when a stage is
// scaled while it runs.
//
// Control segment, page 0, from 0x800 on: two words per node, written by the supervisor, at the
// feed's beginning and while all lanes stand still (lane_page.h, Parking):
//   offset  size  field   meaning
//      0x0     8  shares  from the lowest bit: `before` (8 bits), `now` (8), `from` (48)
//      0x8     8  floor   the `from` of the change before: every unit below it is done
//
// A unit belongs to one lane, by its number and these words alone: units below `from` are shared by
// `before` lanes, the others by `now`. So a change needs no lane to be drained: what was given out
// in the old way is taken, and passed on, in the old way, and `from` is a number that nobody has
// reached. The next change begins when nobody is below `from` any more. A lane's own position may
// be: it stands behind its last unit, and those up to `from` were others'. By the next change's
// `before` some would be its own; `floor`, which is stored first, says that they are not. A death
// of the supervisor leaves the old `shares`, with which a floor is no news, or the new ones.
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

// Units go to lanes in blocks: `block` units in a row to one lane, then its successor's turn.
struct NodeLanes {
  std::uint64_t floor = 0;
  std::uint64_t from = 0;
  std::uint32_t before = 1;
  std::uint32_t now = 1;

  [[nodiscard]] constexpr std::uint32_t lane_of(std::uint64_t unit,
                                                std::uint64_t block) const noexcept {
    return static_cast<std::uint32_t>(unit / block % (unit < from ? before : now));
  }
  // The lane's first unit from `unit` on that is not done; kNoUnit: it has none any more.
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
  // relaxed, both: they change only while this lane stands still; the desire that let it go on was
  // loaded with acquire.
  const std::uint64_t shares = words.shares.load(std::memory_order_relaxed);
  return {.floor = words.floor.load(std::memory_order_relaxed),
          .from = shares >> 16,
          .before = static_cast<std::uint32_t>(shares & 0xff),
          .now = static_cast<std::uint32_t>(shares >> 8 & 0xff)};
}

inline void store(NodeLanesWords& words, const NodeLanes& lanes) noexcept {
  words.floor.store(lanes.floor, std::memory_order_relaxed);  // relaxed: as above
  // release: not before the floor, for whoever finds what a death has left.
  words.shares.store(
      lanes.from << 16 | std::uint64_t{lanes.now & 0xff} << 8 | (lanes.before & 0xff),
      std::memory_order_release);
}

// The next change: `now` lanes share the units from `from` on. Only when nobody is below
// `lanes.from` any more.
constexpr NodeLanes changed(const NodeLanes& lanes, std::uint64_t from,
                            std::uint32_t now) noexcept {
  return {.floor = lanes.from, .from = from, .before = lanes.now, .now = now};
}

}  // namespace ringfeed::shm
