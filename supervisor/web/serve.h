// The process ringfeed-web: feeds in a browser, for Prometheus and for probes. It asks the
// supervisors of one socket directory like any client, and may be killed at any time.
#pragma once

#include "supervisor/web/options.h"

namespace ringfeed::web {

// Serves until SIGINT or SIGTERM, and returns the exit status. Throws Error for what cannot be had.
int serve(const Options& given);

}  // namespace ringfeed::web
