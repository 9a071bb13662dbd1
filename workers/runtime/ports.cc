#include "workers/runtime/ports.h"

#include <algorithm>

namespace ringfeed {

void PortLanes::load() noexcept {
  if (own_words != nullptr) own = shm::load(*own_words);
  if (peer_words != nullptr) peer = shm::load(*peer_words);
}

// ---- input

void InputPort::start(std::uint64_t stored) noexcept {
  follow_lanes();
  position = stored != 0 ? stored - 1 : first_unit;
  committed_position = saved_position = position;
}

void InputPort::follow_lanes() noexcept {
  lanes.load();
  next_ = {};
}

void InputPort::look_for_unit(std::uint64_t from) noexcept {
  next_.unit = lanes.own.next(lane, from, block);
  if (next_.unit != shm::kNoUnit) next_.ring = lanes.peer.lane_of(next_.unit, 1);
}

std::optional<shm::RecordView> InputPort::peek() noexcept {
  const auto count = static_cast<std::uint32_t>(rings.size());
  if (mode == EdgeMode::kOrdered) {
    // A producing lane that has closed leaves gaps in the rotation. The pattern of rings repeats
    // itself after `period` units of this lane at the latest, except where lanes have changed: the
    // walk is bounded although rings that never carry anything for it may still be open.
    const std::uint64_t period = count * std::min<std::uint64_t>(block, count);
    if (next_.position != position) {
      next_.position = position;
      look_for_unit(position);
    }
    const UnitPlace first = next_;
    for (std::uint64_t tries = 0; next_.unit != shm::kNoUnit; ++tries) {
      if (tries > period) {
        const auto [early, late] = std::minmax(lanes.own.from, lanes.peer.from);
        if (next_.unit >= late) break;
        look_for_unit(next_.unit < early ? early : late);
        tries = 0;
        continue;
      }
      current = next_.ring;
      Ring& ring = rings[current];
      if (std::optional<shm::RecordView> record = ring.end.peek()) {
        position = next_.position = next_.unit;
        return record;
      }
      if (!ring.end.ended()) {
        next_ = first;
        found_nothing(current, 1);
        return std::nullopt;
      }
      look_for_unit(next_.unit + 1);
    }
    next_ = first;
    found_nothing(0, count);
    return std::nullopt;
  }
  const auto first = static_cast<std::uint32_t>(position >> 1);
  const bool sticks = (position & 1) != 0 && !rings[first].end.ended();
  const std::uint32_t looks = sticks ? 1 : count;
  for (std::uint32_t i = 0; i < looks; ++i) {
    current = (first + i) % count;
    if (std::optional<shm::RecordView> record = rings[current].end.peek()) {
      position = std::uint64_t{current} << 1 | (sticks ? 1 : 0);
      return record;
    }
  }
  found_nothing(first, looks);
  return std::nullopt;
}

void InputPort::found_nothing(std::uint32_t from, std::uint32_t count) noexcept {
  empty = true;
  looked_from = from;
  looked_count = count;
}

bool InputPort::consume(const shm::RecordHeader& header) noexcept {
  const bool unit_end = (header.flags & shm::kFlagUnitEnd) != 0;
  rings[current].end.consume();
  if (mode == EdgeMode::kOrdered) {
    if (unit_end) ++position;
  } else if (unit_end || mode == EdgeMode::kLoose) {
    position = std::uint64_t{(current + 1) % static_cast<std::uint32_t>(rings.size())} << 1;
  } else {
    position = std::uint64_t{current} << 1 | 1;
  }
  // On a loose edge each record is a unit for what follows it.
  return unit_end || mode == EdgeMode::kLoose;
}

bool InputPort::ended() noexcept {
  for (Ring& ring : rings) {
    if (!ring.end.ended()) return false;
  }
  return true;
}

bool InputPort::moved() noexcept {
  for (std::uint32_t i = 0; i < looked_count; ++i) {
    Ring& ring = rings[(looked_from + i) % rings.size()];
    if (ring.end.tail_moved()) return true;
    // Nothing new, but ended() or a later peek() of the same step may have seen it already.
    const bool there = ring.end.peek().has_value();
    if (mode == EdgeMode::kLoose) ring.end.abandon();  // a sleeper holds nothing against a producer
    if (there) return true;
  }
  return false;
}

// ---- output

void OutputPort::start(std::uint64_t stored) noexcept {
  follow_lanes();
  position = stored != 0 ? stored - 1 : first_unit;
  committed_position = saved_position = position;
  unit_open = false;
}

void OutputPort::follow_lanes() noexcept {
  lanes.load();
  place_ = {};
}

std::uint32_t OutputPort::open_rings() const noexcept { return lanes.peer.now; }

const UnitPlace& OutputPort::place() noexcept {
  if (place_.position != position) {
    place_.position = position;
    place_.unit = lanes.own.next(lane, position, 1);
    RF_CHECK(place_.unit != shm::kNoUnit, lane, position);  // a lane without units got a record
    place_.ring = lanes.peer.lane_of(place_.unit, block);
  }
  return place_;
}

void OutputPort::unit_done() noexcept {
  unit_open = false;
  if (mode == EdgeMode::kOrdered) {
    position = place().unit + 1;
  } else {
    position = std::uint64_t{(current + 1) % open_rings()} << 1;
  }
}

void OutputPort::put(std::uint64_t bytes, const shm::RecordInfo& info) noexcept {
  rings[current].end.put(bytes, info);
  if (mode == EdgeMode::kLoose) {
    unit_done();
    return;
  }
  unit_open = true;
  if (mode == EdgeMode::kRelaxed) position = std::uint64_t{current} << 1 | 1;
  if (unit_per_record) {
    rings[current].end.mark_last(shm::kFlagUnitEnd);
    unit_done();
  }
}

void OutputPort::found_no_room(std::uint32_t from, std::uint32_t count) noexcept {
  full = true;
  tried_from = from;
  tried_count = count;
}

bool OutputPort::moved() const noexcept {
  for (std::uint32_t i = 0; i < tried_count; ++i) {
    if (rings[(tried_from + i) % rings.size()].end.head_moved()) return true;
  }
  return false;
}

}  // namespace ringfeed
