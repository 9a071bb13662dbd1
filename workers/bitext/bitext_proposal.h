// What `ringfeed init` makes of fairseq's token files.
#pragma once

#include "workers/kit/proposal.h"

namespace ringfeed {

[[nodiscard]] std::optional<Proposal> propose_bitext(const DirectoryLook& look,
                                                     const ProposalWish& wish);

}  // namespace ringfeed
