#include "supervisor/cli/asking.h"

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/orphans.h"

namespace ringfeed::cli {

using control::ControlClient;

Reply answer_of(ControlClient& client, const Request& request, int timeout_ms,
                const ControlClient::Meanwhile& meanwhile) {
  Request numbered = request;
  numbered.set_id(1);
  Reply reply = client.call(numbered, timeout_ms, meanwhile);
  // One line, whatever names are in it.
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, escaped(reply.text()));
  return reply;
}

std::optional<Reply> answer_of_feed(const std::vector<std::string>& directories,
                                    const std::string& feed, const Request& request, int& status,
                                    int timeout_ms, const ControlClient::Meanwhile& meanwhile) {
  std::optional<ControlClient> client = find_feed(directories, feed, status);
  if (!client) return std::nullopt;
  return answer_of(*client, request, timeout_ms, meanwhile);
}

}  // namespace ringfeed::cli
