// The stages of all domains that this build has (RINGFEED_DOMAINS).
#pragma once

namespace ringfeed {

class Registry;

void register_all_stages(Registry& registry);

}  // namespace ringfeed
