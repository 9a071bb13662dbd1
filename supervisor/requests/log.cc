// The log while the feed runs: its level, asked for or changed.
#include <fmt/format.h>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {
namespace {

LogConfig::Level wire_level(metrics::Level level) {
  switch (level) {
    case metrics::Level::kDebug:
      return LogConfig::DEBUG;
    case metrics::Level::kInfo:
      return LogConfig::INFO;
    case metrics::Level::kWarn:
      return LogConfig::WARN;
    case metrics::Level::kError:
      return LogConfig::ERROR;
  }
  return LogConfig::INFO;
}

}  // namespace

// Trainers ask for little once they are attached: no batch passes here.
void Feed::log_request(control::ConnectionId connection, const Request& request) const {
  if (talk_.level() > metrics::Level::kDebug) return;
  const auto* const body =
      Request::descriptor()->FindFieldByNumber(static_cast<int>(request.body_case()));
  const control::Peer peer = server_->peer(connection);
  try {
    event(metrics::Level::kDebug, "request",
          fmt::format("of={} pid={} uid={}", body->name(), peer.pid, peer.uid));
  } catch (const std::exception&) {
    // No memory to say so: no reason to refuse what is asked.
  }
}

// Each process of a stage group is told too, and those that follow it.
bool Feed::on_log(control::ConnectionId connection, const Request& request, Reply& reply) {
  const metrics::Level before = talk_.level();
  if (request.log().has_level()) {
    const LogConfig::Level level = request.log().level();
    const metrics::Level now = metrics::level_named(LogConfig::Level_Name(level));
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->set_log_level(level);
    // Said where either of them lets it through.
    const auto say = [&] {
      event(metrics::Level::kInfo, "log_level_changed",
            fmt::format("from={} to={} pid={}", metrics::name_of(before), metrics::name_of(now),
                        server_->peer(connection).pid));
    };
    if (now >= before) say();
    talk_.set_level(now);
    if (now < before) say();
  }
  LogReply& out = *reply.mutable_log();
  out.set_level(wire_level(talk_.level()));
  out.set_before(wire_level(before));
  out.set_format(talk_.json() ? LogConfig::JSON : LogConfig::TEXT);
  out.set_to(talk_.destination());
  return true;
}

}  // namespace ringfeed::process
