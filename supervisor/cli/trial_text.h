// What `try` and `dead-letters --replay --pdb` have in common.
#pragma once

#include "supervisor/feed/trial.h"

namespace ringfeed {
class StagePlan;
}

namespace ringfeed::cli {

// As shells have it.
inline constexpr int kInterrupted = 130;

// Does the program of the stage show it in the foreground, and can be debugged there?
[[nodiscard]] bool shows_itself(const StagePlan& stage);

// Says what is left to say; the exit status, which is `died` if the stage died on a sample.
[[nodiscard]] int say_trial(const process::TrialReport& report, int died);

}  // namespace ringfeed::cli
