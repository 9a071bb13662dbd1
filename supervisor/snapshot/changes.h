// What may have changed since the last copy of a feed's segments, so that the next one need not
// look at the rest.
//
//   arenas    pages with a stamp of the last copy's generation or a later one (stamps.h); header,
//             journal and runtime words always
//   payload   the same for slots
//   rings     what was published since, of what is still there: all else is scratch
//   heads     head lines; stamps themselves are of no use to anybody who loads a snapshot
//   others    everything
//
// A copy that is made while lanes run begins with mark(): what a lane writes from then on is seen
// by the next one. The last copy is made while all lanes stand still.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "supervisor/layout/feed_memory.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::snapshot {

class Changes {
 public:
  explicit Changes(const layout::FeedMemory& memory);

  // Orders a new generation of stamps and waits a moment for the lanes to take it over. A lane that
  // does not in time makes the next copy longer, and nothing wrong.
  void order(const std::atomic<bool>& cancelled) const;
  // What the copy that begins now must look at.
  [[nodiscard]] Look look();

 private:
  void look_at_lane(const layout::LanePlan& plan, Look& out);
  void look_at_rings(Look& out);

  const layout::FeedMemory& memory_;
  bool first_ = true;
  std::vector<std::uint32_t> since_;  // by lane: the generation that it had reached
  std::vector<std::uint64_t> tails_;  // by ring
};

}  // namespace ringfeed::snapshot
