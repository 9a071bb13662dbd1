#include "supervisor/group/suspects.h"

namespace ringfeed::process {

Blame blame_for(bool lane_faulted, bool any_faulted, bool lane_stalled, bool any_stalled,
                bool fault_signal) noexcept {
  if (any_stalled) return lane_stalled ? Blame::kCertain : Blame::kNone;
  if (any_faulted) return lane_faulted ? Blame::kCertain : Blame::kNone;
  return fault_signal ? Blame::kNone : Blame::kPerhaps;
}

Suspects::Verdict Suspects::on_death(std::uint32_t lane, std::uint64_t key, Blame blame) {
  if (key == 0 || blame == Blame::kNone) return {};
  Suspect& suspect = by_lane_[lane];
  if (suspect.key != key) suspect = {.key = key};
  const bool before = suspect.halves >= 2 * max_attempts_;
  suspect.halves += blame == Blame::kCertain ? 2 : 1;
  ++suspect.deaths;
  return {.condemned = !before && suspect.halves >= 2 * max_attempts_, .deaths = suspect.deaths};
}

}  // namespace ringfeed::process
