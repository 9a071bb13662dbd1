// What `ringfeed init` makes of files that sample_source reads.
#pragma once

#include "workers/kit/proposal.h"

namespace ringfeed {

[[nodiscard]] std::optional<Proposal> propose_samples(const DirectoryLook& look,
                                                      const ProposalWish& wish);

}  // namespace ringfeed
