// What ringfeed-worker and the programs of plug-ins do.
#pragma once

#include <vector>

#include "ringfeed/worker/main.h"

namespace ringfeed {

// The exit status; what was thrown is said on standard error. `stages`: of a plug-in, beside those
// of all.h.
int run_program(int argc, char** argv, std::vector<StageType> stages) noexcept;

}  // namespace ringfeed
