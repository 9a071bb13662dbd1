// What clients ask over the control socket: the table of requests, and what becomes of one that
// goes wrong.
#include <fmt/format.h>

#include <exception>
#include <new>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {

// Whatever goes wrong on the way to an answer is the answer. The feed has nothing to do with it.
void Feed::answer(control::ConnectionId connection, const Request& request) {
  answers_.or_refuse({connection, request.id()}, [&] { on_request(connection, request); });
}

void Feed::refuse_for(const Asker& asker, const std::exception& error) noexcept {
  if (!server_) return;
  try {
    try {
      const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      Reply reply;
      reply.set_id(asker.request);
      reply.set_error(Reply::INTERNAL);
      reply.set_text(fmt::format("feed '{}' cannot do that now: {}", run_.config.feed(),
                                 no_memory ? "the supervisor has no memory for it" : error.what()));
      server_->send(asker.connection, reply);
    } catch (const std::bad_alloc&) {
      // Not even for that. Whoever waits hears the end of the connection, and not nothing.
      server_->close(asker.connection);
    }
  } catch (const std::exception&) {
    // Nor for the log.
  }
}

void Feed::on_request(control::ConnectionId connection, const Request& request) {
  // What takes a request; true: its reply is to be sent now.
  using Taker = bool (Feed::*)(control::ConnectionId, const Request&, Reply&);
  struct Entry {
    Request::BodyCase body;
    Taker take;
  };
  static constexpr Entry kTable[] = {
      {Request::kAttach, &Feed::on_attach_request},
      {Request::kDetach, &Feed::on_detach},
      {Request::kRejoin, &Feed::on_rejoin},
      {Request::kWorkerRejoin, &Feed::on_worker_rejoin},
      {Request::kStatus, &Feed::on_status},
      {Request::kMetrics, &Feed::on_metrics},
      {Request::kStop, &Feed::on_stop},
      {Request::kStageControl, &Feed::on_stage_control},
      {Request::kRestart, &Feed::on_restart},
      {Request::kScale, &Feed::on_scale},
      {Request::kSnapshot, &Feed::on_snapshot},
      {Request::kWait, &Feed::on_wait},
      {Request::kSnapshots, &Feed::on_snapshots},
      {Request::kLog, &Feed::on_log},
      {Request::kOrigin, &Feed::on_origin},
  };
  Reply reply;
  reply.set_id(request.id());
  for (const Entry& entry : kTable) {
    if (entry.body != request.body_case()) continue;
    log_request(connection, request);
    if ((this->*entry.take)(connection, request, reply)) server_->send(connection, reply);
    return;
  }
  reply.set_error(Reply::BAD_REQUEST);
  reply.set_text(
      "this version does not know the body of the request: use the same ringfeed version as the "
      "feed");
  server_->send(connection, reply);
}

bool Feed::on_stop(control::ConnectionId connection, const Request& request, Reply& reply) {
  reply.mutable_stop();
  const std::string why =
      fmt::format("stopped by a request of process {}", server_->peer(connection).pid);
  server_->send(connection, reply);
  // Trainers are told only after the answer is on its way.
  order_end(request.stop().now() || draining_, why);
  return false;
}

bool Feed::on_stage_control(control::ConnectionId connection, const Request& request,
                            Reply& reply) {
  return stage_calls_.take(connection, request, reply);
}

bool Feed::on_restart(control::ConnectionId connection, const Request& request, Reply& reply) {
  return restarts_.take(connection, request, reply);
}

bool Feed::on_scale(control::ConnectionId connection, const Request& request, Reply& reply) {
  return scaling_.take(connection, request, reply,
                       {.ending = phase_ != Phase::kStarting && phase_ != Phase::kRunning,
                        .takes_snapshot = snapshots_.under_way()});
}

}  // namespace ringfeed::process
