// What is answered to which path.
//
//   /                                    the page
//   /metrics                             Prometheus or OpenMetrics text, as the client accepts
//   /healthz                             this process lives
//   /readyz                              200: every feed has published a batch and no group is
//                                        stuck; else 503, and why
//   /api/v1/feeds                        names and states
//   /api/v1/feeds/NAME/status|metrics|why|graph
//                                        the JSON of the command line
//   /api/v1/feeds/NAME/events            its status, and its metrics over the last ten seconds,
//                                        every second, as server-sent events
//   /api/v1/events                       the same of all feeds
//
// Errors of the API are {"error": TEXT}. A page of another site can neither read nor ask: Host has
// to be an address, "localhost" or a name that was allowed (against rebinding), Origin this server.
#pragma once

#include <string>
#include <vector>

#include "supervisor/web/http.h"
#include "supervisor/web/looks.h"

namespace ringfeed::web {

struct Access {
  std::string token = {};               // "": everybody who reaches the server may read
  std::vector<std::string> hosts = {};  // names by which it may be called
};

class Answers {
 public:
  Answers(boost::asio::io_context& loop, Looks& looks, Access access);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  void answer(const Question& question, const Respond& reply);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ringfeed::web
