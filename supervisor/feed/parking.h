// Has all lanes stand still between two steps, for as long as somebody looks at what they left or
// changes what they go by (lane_page.h, Parking).
//
// A lane that dies while it stands still is no harm: its next incarnation stands still as well.
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

  // Calls back when all lanes stand still, or with an error (kTimeout) if one does not come to the
  // end of its step; then they go on.
  void begin(std::function<void(const std::optional<Error>&)> at_rest);
  // The lanes go on. Returns for how long they did not, in microseconds; 0: they were not parked.
  std::uint64_t end();
  [[nodiscard]] bool at_rest(std::uint32_t lane) const;

 private:
  void look();
  [[nodiscard]] bool all_at_rest();  // if not, it will be looked at again

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
