#include "supervisor/feed/linger.h"

#include <fmt/format.h>

namespace ringfeed::process {

using shm::GroupState;

std::optional<std::string> reason_to_linger(const control::ConsumerGroups& groups,
                                            const LingerFacts& facts) {
  if (!groups.ever_joined()) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (groups.state(g) == GroupState::kJoining) {
        return fmt::format("group '{}' is joining", groups.terms(g).name);
      }
    }
    if (facts.draining) return std::nullopt;
    if (facts.batches == 0 && facts.now_ms - facts.ended_ms >= kEmptyFeedMs) return std::nullopt;
    return fmt::format("the run is over, {} batches wait for the first trainer", facts.batches);
  }
  // Declared groups are there from the start; a trainer of theirs may just be starting.
  bool any_came = facts.draining || facts.keep_newest;
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    any_came = any_came || (groups.state(g) != GroupState::kUnused && groups.had_member(g));
  }
  if (!any_came && facts.empty && facts.now_ms - facts.ended_ms < kEmptyFeedMs) {
    return std::string("the run ended without a batch, and no trainer has been told");
  }
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    const std::string& name = groups.terms(g).name;
    const GroupState state = groups.state(g);
    if (state == GroupState::kJoining) return fmt::format("group '{}' is joining", name);
    if (state != GroupState::kActive && state != GroupState::kDraining) continue;
    const std::uint64_t left = groups.unfinished(g, true);
    if (left == 0) continue;
    if (groups.live_members(g) > 0)
      return fmt::format("group '{}' has {} batches left", name, left);
    if (state == GroupState::kDraining || facts.keep_newest) continue;
    if (!groups.had_member(g)) {
      return fmt::format("{} batches wait for the first trainer of group '{}'", left, name);
    }
    if (!facts.draining && !groups.rejoin_over(g, facts.now_ms)) {
      return fmt::format("group '{}' has {} batches left and no trainer, but one may come back",
                         name, left);
    }
  }
  return std::nullopt;
}

bool drain_is_hopeless(const control::ConsumerGroups& groups, bool all_closed) {
  bool any_left = !all_closed || !groups.ever_joined();
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (groups.state(g) == GroupState::kUnused) continue;
    if (groups.live_members(g) > 0 || groups.declared(g)) return false;
    any_left = any_left || groups.unfinished(g, true) > 0;
  }
  return any_left;
}

}  // namespace ringfeed::process
