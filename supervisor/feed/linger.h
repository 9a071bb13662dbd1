// Must a feed whose lanes have all finished stay for somebody?
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "supervisor/control/consumer_groups.h"

namespace ringfeed::process {

// An ended feed without a single batch waits this long for its first trainer, so that a trainer
// that is just starting finds an ended feed and not a missing one.
inline constexpr std::uint64_t kEmptyFeedMs = 10'000;

// When all trainers have had their batches, the feed stays this much longer if one of them is still
// a member, so that it can ask for the totals.
inline constexpr std::uint64_t kTotalsMs = 1'000;

struct LingerFacts {
  bool draining = false;  // somebody has asked for the end
  std::uint64_t now_ms = 0;
  std::uint64_t ended_ms = 0;  // when the last lane finished
  std::uint64_t batches = 0;   // published in all, to this output
  bool keep_newest = false;    // the output waits only for those who are there
  bool empty = false;          // no output has a batch
};

// What it waits for, as text for people; nullopt: every group has had its batches.
//   no group has ever joined     waits for the first trainer, unless draining
//   a group with batches left    waits while a member lives, or may come back (rejoin_ms), or, if
//                                the group is declared and nobody has come yet, for its first
//                                member
//   an empty feed                waits kEmptyFeedMs for a first member, unless draining
// An output with KEEP_NEWEST waits only for members that live.
[[nodiscard]] std::optional<std::string> reason_to_linger(const control::ConsumerGroups& groups,
                                                          const LingerFacts& facts);

// While the feed drains: are batches on their way that cannot get anywhere? `all_closed`: every
// producing lane has closed (OutputMemory::all_closed). Trainers see that before the lanes have
// said that they are at their end, and may have had everything and left.
[[nodiscard]] bool drain_is_hopeless(const control::ConsumerGroups& groups, bool all_closed);

}  // namespace ringfeed::process
