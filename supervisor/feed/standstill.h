// Sees that a trainer waits for a batch while nobody works, which would be for ever.
//
// Nothing moves: no lane has committed a step, and no trainer has taken or given back a batch. Each
// lane that has not ended has slept and looked around, and waits for another lane or for a slot. A
// lane in a long step has not, nor one whose process starts, is stopped or has died, nor one that
// waits for something outside of the feed, as new files, a server or memory. Slots that a trainer
// at work holds, or that wait for one who is to come, are no standstill either. What is left is a
// fault of a stage, or of how branches of the graph meet.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "supervisor/control/consumer_groups.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed::process {

class Standstill {
 public:
  struct Output {
    const layout::OutputMemory* memory;
    const control::ConsumerGroups* groups;
  };

  // `limit_ms`: so long nothing may move.
  explicit Standstill(std::uint64_t limit_ms) : limit_ms_(limit_ms) {}

  // Called again and again. How long nobody has worked, if that is too long; else 0.
  [[nodiscard]] std::uint64_t look(const layout::FeedMemory& memory,
                                   std::span<const Output> outputs, std::uint64_t now_ms);

 private:
  struct LaneSeen {
    std::uint64_t commit = 0;
    std::uint64_t sleeps = 0;
  };
  struct MemberSeen {
    std::uint64_t active_ns = 0;
    std::uint64_t waited_ns = 0;
  };
  struct Seen {
    std::uint64_t at_ms = 0;      // 0: there has been no look yet
    std::vector<LaneSeen> lanes;  // as in the layout
    std::vector<std::map<control::MemberPlace, MemberSeen>> members;  // by output
  };
  // Has nothing moved since the look before, and nobody a reason for that?
  [[nodiscard]] bool stands(const layout::FeedMemory& memory, std::span<const Output> outputs,
                            const Seen& now) const;

  std::uint64_t limit_ms_;
  std::uint64_t since_ms_ = 0;
  std::uint64_t stood_ms_ = 0;  // as of the last look
  Seen before_;
};

// For people: "lines (process 7) sleeps; both.0 (process 8) sleeps before 12 records".
[[nodiscard]] std::string lanes_text(const layout::FeedMemory& memory);

}  // namespace ringfeed::process
