// All kinds of stages that ringfeed comes with. A new stage is one line in all.cc.
#pragma once

#include "workers/runtime/registry.h"

namespace ringfeed {

void register_all_stages(Registry& registry);

}  // namespace ringfeed
