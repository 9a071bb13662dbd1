#include "workers/runtime/ports.h"

namespace ringfeed {

// ---- input
// ----------------------------------------------------------------------------------------------------------

void InputPort::start(std::uint64_t stored) noexcept {
  position = stored != 0 ? stored - 1 : mode == EdgeMode::kOrdered ? lane * block : 0;
  committed_position = saved_position = position;
}

// This lane takes `block` units in a row, then those of the next blocks go to the other lanes.
std::uint64_t InputPort::next_unit(std::uint64_t unit) const noexcept {
  return (unit + 1) % block != 0 ? unit + 1 : unit + 1 + (lanes - 1) * block;
}

std::optional<shm::RecordView> InputPort::peek() noexcept {
  const auto count = static_cast<std::uint32_t>(rings.size());
  if (mode == EdgeMode::kOrdered) {
    // A producing lane that has closed leaves gaps in the rotation; `tries` bounds the walk when
    // every ring that this lane's units come from has closed and only rings that never carry
    // anything are still open.
    std::uint64_t unit = position;
    for (std::uint64_t tries = 0; tries <= std::uint64_t{count} * lanes + block; ++tries) {
      current = static_cast<std::uint32_t>(unit % count);
      Ring& ring = rings[current];
      if (std::optional<shm::RecordView> record = ring.end.peek()) {
        position = unit;
        return record;
      }
      if (!ring.end.ended()) {
        found_nothing(current, 1);
        return std::nullopt;
      }
      unit = next_unit(unit);
    }
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
    if (unit_end) position = next_unit(position);
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
// ---------------------------------------------------------------------------------------------------------

void OutputPort::start(std::uint64_t stored) noexcept {
  position = stored != 0 ? stored - 1 : 0;
  committed_position = saved_position = position;
  unit_open = false;
}

std::uint32_t OutputPort::destination() const noexcept {
  const std::uint64_t unit = position * lanes + lane;
  return static_cast<std::uint32_t>(unit / block % rings.size());
}

void OutputPort::unit_done() noexcept {
  unit_open = false;
  if (mode == EdgeMode::kOrdered) {
    ++position;
  } else {
    position = std::uint64_t{(current + 1) % static_cast<std::uint32_t>(rings.size())} << 1;
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
