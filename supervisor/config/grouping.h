// Which stages share a process.
#pragma once

#include <string>
#include <vector>

#include "supervisor/config/wiring.h"

namespace ringfeed::config {

struct StageGroup {
  std::string name;
  std::vector<int> stages;  // numbers in DataLoaderConfig.stages, producers first
  friend bool operator==(const StageGroup&, const StageGroup&) = default;
};

// The configured groups; where there are none, the default ones.
//
// The default cuts the chain of stages into at most one group more than there are cores, so that
// the heaviest group is as light as it can be, then joins neighbours that are cheap even together
// (kCheapShare): heavy stages have a process of their own, cheap ones share one. At least two
// groups from three stages on, so that the death of one process is never the death of all.
//
// `config`, `plan` and `wiring` have no problems; `cores` is at least 1.
[[nodiscard]] std::vector<StageGroup> stage_groups(const DataLoaderConfig& config,
                                                   const PipelinePlan& plan, const Wiring& wiring,
                                                   int cores);

// Neighbours that weigh at most this share of the heaviest stage are not worth a process each: that
// costs page tables, a log and a restart of its own, and gives nothing, because lanes are threads.
inline constexpr double kCheapShare = 0.5;

// The rule itself: weights of a chain, in order; the result is the number of stages in each group.
[[nodiscard]] std::vector<int> cut_chain(const std::vector<double>& weights, int cores);

}  // namespace ringfeed::config
