// A lane's ports: several rings seen as one stream, in the order of units (stage.h).
//
// Modes of an edge: ORDERED (units in rotation, one order whatever the lane counts), RELAXED
// (whoever is ready; a unit stays together), LOOSE (records for themselves; edges that may drop,
// where a lost end of a unit would stop a rotation).
//
// Which lane a unit comes from and which it goes to is said by the NodeLanes of the two nodes of
// the edge, which change when a node is scaled. Rings to lanes that have no units now are there all
// the same: an input reads from all of them, an output that is not ORDERED writes to those of
// `now`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/node_lanes.h"
#include "ringfeed/shm/ring.h"

namespace ringfeed {

enum class EdgeMode { kOrdered, kRelaxed, kLoose };

// The rings and words that the step under way has touched, for rollback, commit and waking.
struct RingState {
  shm::Neighbour neighbour;
  bool touched = false;       // in the step under way
  std::uint64_t attempt = 0;  // the call of step() in which the savepoint was taken
  bool owed = false;          // the neighbour may need to be woken for what was committed
};

// The lanes of the port's own node and of the node at the other end.
struct PortLanes {
  shm::NodeLanes own;
  shm::NodeLanes peer;
  // Where they stand; nullptr: they never change.
  const shm::NodeLanesWords* own_words = nullptr;
  const shm::NodeLanesWords* peer_words = nullptr;

  void load() noexcept;
};

// What a position means now, kept because divisions are slow: a unit has many records.
struct UnitPlace {
  std::uint64_t position = shm::kNoUnit;  // for which the rest holds
  std::uint64_t unit = shm::kNoUnit;      // the lane's first from there on
  std::uint32_t ring = 0;                 // it is in
};

class InputPort {
 public:
  struct Ring : RingState {
    shm::RingConsumer end;
    shm::RingConsumer::Savepoint saved{};
  };
  std::vector<Ring> rings;  // by producing lane
  EdgeMode mode = EdgeMode::kOrdered;
  std::uint64_t block = 1;
  std::uint32_t lane = 0;
  PortLanes lanes;
  shm::WordRef word;             // where `position` lasts
  std::uint64_t first_unit = 0;  // of a lane that has never stored it (ORDERED)
  // ORDERED: the lane's units below it are consumed; else: ring << 1 | in the middle of a unit
  std::uint64_t position = 0;
  std::uint64_t committed_position = 0;
  std::uint64_t saved_position = 0;
  std::uint32_t current = 0;      // ring of the record peeked last
  bool empty = false;             // peek() found nothing in this attempt, in the rings
  std::uint32_t looked_from = 0;  // looked_from, looked_from + 1, ... (looked_count of them)
  std::uint32_t looked_count = 0;

  void start(std::uint64_t stored) noexcept;
  // Takes up the lanes that the nodes have now.
  void follow_lanes() noexcept;
  [[nodiscard]] std::uint64_t stored() const noexcept {
    return position + 1;
  }  // 0 means: never stored
  // The next record or end-of-unit mark; nullopt: nothing now.
  std::optional<shm::RecordView> peek() noexcept;
  // Moves past it; true if a unit ended with it.
  bool consume(const shm::RecordHeader& header) noexcept;
  bool ended() noexcept;
  // Is there something now in the rings that peek() found empty, or have they closed? (the
  // sleeper's look; between two steps only)
  [[nodiscard]] bool moved() noexcept;

 private:
  void found_nothing(std::uint32_t from, std::uint32_t count) noexcept;
  void look_for_unit(std::uint64_t from) noexcept;

  UnitPlace next_;
};

class OutputPort {
 public:
  struct Ring : RingState {
    shm::RingProducer end;
    shm::RingProducer::Savepoint saved{};
  };
  std::vector<Ring> rings;  // by consuming lane; none: the feed
  EdgeMode mode = EdgeMode::kOrdered;
  std::uint64_t block = 1;
  std::uint32_t lane = 0;
  PortLanes lanes;
  bool unit_per_record = false;
  bool follows = false;
  shm::WordRef word;
  std::uint64_t first_unit = 0;  // as above
  // ORDERED: the lane's units below it are put; else: ring << 1 | in the middle of a unit
  std::uint64_t position = 0;
  std::uint64_t committed_position = 0;
  std::uint64_t saved_position = 0;
  bool unit_open = false;  // a record of the unit under way was put in this attempt
  std::uint32_t current = 0;
  bool discards = false;         // the reservation under way is not in a ring
  bool full = false;             // found no room in this attempt, in the rings
  std::uint32_t tried_from = 0;  // tried_from, tried_from + 1, ... (tried_count of them)
  std::uint32_t tried_count = 0;

  void start(std::uint64_t stored) noexcept;
  void follow_lanes() noexcept;
  [[nodiscard]] std::uint64_t stored() const noexcept { return position + 1; }
  // The ring for the next record if it has room, already saved for rollback by `touch`.
  template <typename Touch>
  std::byte* reserve(std::uint64_t bytes, Touch&& touch) noexcept;
  // Was the record of the last reserve() dropped (it counts as put)?
  [[nodiscard]] bool dropped() const noexcept { return rings[current].end.last_dropped(); }
  void put(std::uint64_t bytes, const shm::RecordInfo& info) noexcept;
  template <typename Touch>
  bool end_unit(Touch&& touch) noexcept;
  // Is there room now in the rings that were full? (the sleeper's look)
  [[nodiscard]] bool moved() const noexcept;

 private:
  // Of the unit under way, or the next one.
  const UnitPlace& place() noexcept;
  // To lanes that take units now (not ORDERED).
  [[nodiscard]] std::uint32_t open_rings() const noexcept;
  void found_no_room(std::uint32_t from, std::uint32_t count) noexcept;
  void unit_done() noexcept;

  UnitPlace place_;
};

template <typename Touch>
std::byte* OutputPort::reserve(std::uint64_t bytes, Touch&& touch) noexcept {
  if (mode == EdgeMode::kOrdered) {
    current = place().ring;
    touch(rings[current]);
    std::byte* room = rings[current].end.reserve(bytes);
    if (room == nullptr) found_no_room(current, 1);
    return room;
  }
  // A unit that was begun is ended in its ring, whatever the lanes behind it are now.
  const auto first = static_cast<std::uint32_t>(position >> 1);
  const bool sticks = (position & 1) != 0;
  const std::uint32_t count = sticks ? 1 : open_rings();
  for (std::uint32_t i = 0; i < count; ++i) {
    current = sticks ? first : (first + i) % count;
    touch(rings[current]);
    std::byte* room = rings[current].end.reserve(bytes);
    if (room != nullptr || rings[current].end.last_dropped()) return room;
  }
  if (sticks) {
    found_no_room(first, 1);
  } else {
    found_no_room(0, count);
  }
  return nullptr;
}

template <typename Touch>
bool OutputPort::end_unit(Touch&& touch) noexcept {
  if (mode == EdgeMode::kLoose || rings.empty()) return true;
  if (mode == EdgeMode::kRelaxed && (position & 1) == 0 && !unit_open)
    return true;  // an empty unit needs no mark
  if (mode == EdgeMode::kOrdered) current = place().ring;
  if (mode == EdgeMode::kRelaxed) current = static_cast<std::uint32_t>(position >> 1);
  touch(rings[current]);
  if (!(unit_open && rings[current].end.mark_last(shm::kFlagUnitEnd))) {
    if (rings[current].end.reserve(0) == nullptr) {
      found_no_room(current, 1);
      return false;
    }
    rings[current].end.put(0, {}, shm::RecordType::kUnitEnd);
    rings[current].end.mark_last(shm::kFlagUnitEnd);
  }
  unit_done();
  return true;
}

}  // namespace ringfeed
