// What the stages of lc0 say to each other (ringfeed/worker/facts.h).
#pragma once

#include "ringfeed/worker/facts.h"

namespace ringfeed {

// The lanes that write frames give them to those that read them in turn, one each.
inline constexpr Fact<bool> kDealtInTurn{"frames.dealt_in_turn"};

}  // namespace ringfeed
