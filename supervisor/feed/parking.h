// Makes all lanes stand still between two steps, while somebody reads their state or changes the
// words that direct them (lane_page.h, Parking).
//
// A lane that dies while it stands still does no harm: its next incarnation stands still as well.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "supervisor/layout/feed_memory.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::process {

class Parking {
 public:
  // `order`: parks the lanes of all workers under a ticket; 0: they go on.
  Parking(EventLoop& loop, const layout::FeedMemory& memory,
          std::function<void(std::uint64_t ticket)> order);
  ~Parking();
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // Calls back when all lanes stand still. If a lane does not finish its step, calls back with an
  // error (kTimeout), and the lanes go on.
  void begin(std::function<void(const std::optional<Error>&)> at_rest);
  // Lets the lanes go on. Returns how long they stood still, in microseconds; 0: they were not
  // parked.
  std::uint64_t end();
  [[nodiscard]] bool at_rest(std::uint32_t lane) const;

 private:
  void look();
  [[nodiscard]] bool all_at_rest();  // if not, it looks again later

  EventLoop& loop_;
  const layout::FeedMemory& memory_;
  std::function<void(std::uint64_t)> order_;
  std::function<void(const std::optional<Error>&)> at_rest_;
  std::uint64_t ticket_ = 0;
  bool parked_ = false;
  std::uint64_t since_us_ = 0;
  std::optional<EventLoop::TimerId> timer_;
};

}  // namespace ringfeed::process
