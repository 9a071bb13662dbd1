// What `ringfeed init` makes of Leela Chess Zero's files.
#pragma once

#include "workers/kit/proposal.h"

namespace ringfeed {

[[nodiscard]] std::optional<Proposal> propose_lc0(const DirectoryLook& look,
                                                  const ProposalWish& wish);

}  // namespace ringfeed
