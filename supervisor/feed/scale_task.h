// Gives a node another number of lanes while the feed runs.
//
// All lanes stand still for a moment. Their arenas tell the first unit that no lane has begun; from
// it on, the new number of lanes shares the node's units (ringfeed/shm/node_lanes.h). Lanes finish
// the units that they were given before. A change begins only when the one before has been worked
// off.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "supervisor/feed/parking.h"
#include "supervisor/layout/feed_memory.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::process {

class ScaleTask {
 public:
  struct Facts {
    std::uint32_t before = 0;  // lanes
    std::uint32_t now = 0;
    std::uint64_t from = 0;      // the first unit that is shared by `now`
    std::uint64_t pause_us = 0;  // how long all lanes stood still
  };
  struct Hooks {
    std::function<void(std::uint64_t ticket)> park;  // as for Parking
    std::function<void(const Result<Facts>&)> done;  // later; may destroy the task
  };

  // `lanes`: 1 to lanes_max of the node, which must be scalable. `patience_ms`: how long an earlier
  // change may take to be worked off; after that, kBusy.
  ScaleTask(EventLoop& loop, const layout::FeedMemory& memory, std::uint32_t node,
            std::uint32_t lanes, std::uint64_t patience_ms, Hooks hooks);
  ~ScaleTask();
  ScaleTask(const ScaleTask&) = delete;
  ScaleTask& operator=(const ScaleTask&) = delete;

  [[nodiscard]] std::uint32_t node() const { return node_; }

 private:
  void look();
  void guarded(const std::function<void()>& part);
  void decide();
  void wait();
  void finish(Result<Facts> result);

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  std::uint32_t node_;
  std::uint32_t lanes_;
  std::uint64_t patience_ms_;
  Hooks hooks_;
  Parking parking_;
  std::uint64_t began_ms_;
  std::optional<EventLoop::TimerId> timer_;
};

// Why a stage cannot have this many lanes; empty: it can. `stage` is its number in the
// configuration. `node` is set to the node that would change.
[[nodiscard]] std::string cannot_scale(const layout::FeedMemory& memory, std::uint32_t stage,
                                       std::uint32_t lanes, std::uint32_t& node);

}  // namespace ringfeed::process
