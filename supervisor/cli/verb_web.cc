// ringfeed web: this process becomes ringfeed-web.
#include <sys/prctl.h>

#include <memory>

#include "supervisor/cli/verb.h"
#include "supervisor/web/serve.h"

namespace ringfeed::cli {

void add_web(CLI::App& verb, int& result) {
  const auto options = std::make_shared<web::Options>();
  web::add_options(verb, *options);
  verb.footer(
      "It prints its address. There: the page, /metrics for Prometheus, /healthz, /readyz, "
      "/api/v1/feeds. It only reads: nothing can be changed through it.\n"
      "Example: ringfeed web --listen 127.0.0.1:9464");
  verb.callback([options, &result] {
    ::prctl(PR_SET_NAME, "ringfeed-web");
    result = web::serve(*options);
  });
}

}  // namespace ringfeed::cli
