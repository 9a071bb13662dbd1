// Messages to stages, as the supervisor passes them on to a process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "workers/runtime/lane.h"

namespace ringfeed {

class LaneSetup;

// Gives a call to each lane that it is for, and sends their answers over `socket` when the last one
// has come; at once if it is for none. `setups` describes `lanes`, one for one. An order about the
// log is carried out; anything else is passed over.
void pass_on_call(int socket, const std::string& packet,
                  const std::vector<const LaneSetup*>& setups,
                  const std::vector<std::unique_ptr<LaneRuntime>>& lanes);

}  // namespace ringfeed
