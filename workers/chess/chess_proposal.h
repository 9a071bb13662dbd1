// What `ringfeed init` makes of chess games in Parquet files, and of searched positions beside
// them.
#pragma once

#include "workers/kit/proposal.h"

namespace ringfeed {

[[nodiscard]] std::optional<Proposal> propose_chess(const DirectoryLook& look,
                                                    const ProposalWish& wish);

}  // namespace ringfeed
