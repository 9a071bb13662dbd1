// What the domains of this program have; of ringfeed-worker, those of the build (RINGFEED_DOMAINS).
#pragma once

namespace ringfeed {

class Registry;
namespace inspect {
struct Describers;
}

void register_all_stages(Registry& registry);
void register_all_describers(inspect::Describers& describers);

}  // namespace ringfeed
