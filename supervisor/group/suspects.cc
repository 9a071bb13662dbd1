#include "supervisor/group/suspects.h"

#include <algorithm>

#include "ringfeed/shm/lane_page.h"

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
  const bool many = shm::names_many(key);
  if (suspect.key != key) {
    const bool among_many = !many && suspect.key != 0 && shm::names_many(suspect.key);
    suspect = {.key = key, .deaths = among_many ? suspect.deaths : 0};
  }
  const std::uint32_t limit = 2 * std::max(max_attempts_, many ? 2U : 1U);
  const bool before = suspect.halves >= limit;
  suspect.halves += blame == Blame::kCertain ? 2 : 1;
  ++suspect.deaths;
  return {.condemned = !before && suspect.halves >= limit, .deaths = suspect.deaths};
}

}  // namespace ringfeed::process
