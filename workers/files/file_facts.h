// What stages that name files say of them (ringfeed/worker/facts.h).
#pragma once

#include <string>

#include "ringfeed/worker/facts.h"

namespace ringfeed {

// The patterns that all paths follow, one a line.
inline constexpr Fact<std::string> kFilePatterns{"files.patterns"};

}  // namespace ringfeed
