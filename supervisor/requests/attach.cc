// Attaching, detaching and coming back: trainers, and workers of a feed that was taken over.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/feed/feed.h"

namespace ringfeed::process {

const BatchSchema& Feed::schema_of(const Output& output) const {
  return run_.plan.stages(static_cast<int>(output.memory.layout().stage)).batch();
}

void Feed::on_attach(control::ConnectionId connection, const AttachRequest& request, Reply& reply,
                     std::vector<int>& fds) {
  const auto refuse = [&](std::string text) {
    reply.set_error(Reply::BAD_REQUEST);
    reply.set_text(std::move(text));
  };
  std::vector<std::string> aliases;
  Output* wanted = request.has_output() ? nullptr : outputs_.front().get();
  bool attached = false;
  for (const std::unique_ptr<Output>& output : outputs_) {
    aliases.push_back(fmt::format("'{}'", output->memory.layout().alias));
    attached = attached || output->trainers.has(connection);
    if (request.has_output() && output->memory.layout().alias == request.output()) {
      wanted = output.get();
    }
  }
  if (attached) {
    return refuse("this connection is already attached: detach first, or open another one");
  }
  if (wanted == nullptr) {
    const bool unnamed = outputs_.size() == 1 && outputs_[0]->memory.layout().alias.empty();
    return refuse(fmt::format("feed '{}' has no output '{}'; {}", run_.config.feed(),
                              request.output(),
                              unnamed ? "it has one, without a name: ask for none by name"
                                      : fmt::format("it has {}", fmt::join(aliases, ", "))));
  }
  wanted->trainers.attach(*server_, connection, request, reply, fds);
}

void Feed::answer_attach(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto take_back = [&] {
    for (const std::unique_ptr<Output>& output : outputs_) output->trainers.take_back(connection);
  };
  std::vector<int> fds;
  // A connection that had attached before keeps what it has.
  const bool attached_before =
      std::any_of(outputs_.begin(), outputs_.end(),
                  [&](const auto& output) { return output->trainers.has(connection); });
  on_attach(connection, request.attach(), reply, fds);
  bool told = false;
  try {
    told = server_->send(connection, reply, fds);
  } catch (...) {
    if (!attached_before) take_back();
    throw;
  }
  if (!told && !attached_before) take_back();
  for (const std::unique_ptr<Output>& output : outputs_) {
    if (told && !attached_before && output->trainers.has(connection)) tell_notices(connection);
  }
  // Lanes are asked only after the answer is on its way.
  advance_groups();
}

bool Feed::on_attach_request(control::ConnectionId connection, const Request& request,
                             Reply& reply) {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    reply.set_error(Reply::FEED_ENDING);
    reply.set_text(phase_ == Phase::kFailing
                       ? reason_
                       : fmt::format("feed '{}' is being stopped", run_.config.feed()));
    return true;
  }
  answer_attach(connection, request, reply);
  return false;
}

bool Feed::on_detach(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto of = std::find_if(outputs_.begin(), outputs_.end(), [&](const auto& output) {
    return output->trainers.has(connection);
  });
  (of == outputs_.end() ? outputs_.front() : *of)
      ->trainers.detach(connection, request.detach(), reply);
  server_->send(connection, reply);
  // Lanes are asked only after the answer is on its way.
  advance_groups();
  return false;
}

bool Feed::on_rejoin(control::ConnectionId connection, const Request& request, Reply& reply) {
  const std::uint32_t output = request.rejoin().output();
  if (output < outputs_.size()) {
    outputs_[output]->trainers.rejoin(*server_, connection, request.rejoin(), reply);
    if (outputs_[output]->trainers.has(connection)) tell_notices(connection);
  } else {
    reply.set_error(Reply::NO_SUCH_GROUP);
    reply.set_text(fmt::format("feed '{}' has no output {}", run_.config.feed(), output));
  }
  return true;
}

bool Feed::on_worker_rejoin(control::ConnectionId connection, const Request& request,
                            Reply& reply) {
  const shm::FeedId& id = memory_.identity().feed_id;
  std::optional<WorkerLinks> links;
  if (request.worker_rejoin().feed_id() ==
      std::string_view(reinterpret_cast<const char*>(id.data()), id.size())) {
    for (std::size_t g = 0; g < workers_.size(); ++g) {
      if (workers_[g]->name() != request.worker_rejoin().group()) continue;
      links = workers_[g]->relink(server_->peer(connection).pid);
      // What it was asked since it was adopted had no way to it.
      if (links) stage_calls_.ask_again(g);
    }
  }
  if (!links) {
    reply.set_error(Reply::NO_SUCH_GROUP);
    reply.set_text(fmt::format("process {} runs no lanes of feed '{}'",
                               server_->peer(connection).pid, run_.config.feed()));
    return true;
  }
  reply.mutable_worker_rejoin()->set_supervisor_pid(static_cast<std::uint32_t>(::getpid()));
  server_->send(connection, reply,
                std::vector<int>{links->their_socket.get(), links->their_log.get()});
  return false;
}

void Feed::tell_trainers() {
  if (!server_) return;
  Reply reply;
  reply.set_id(0);
  reply.mutable_event()->set_state(static_cast<StatusReply::State>(shown_state()));
  reply.mutable_event()->set_reason(reason_);
  for (const std::unique_ptr<Output>& output : outputs_) {
    for (const control::ConnectionId connection : output->trainers.connections()) {
      server_->send(connection, reply);
    }
  }
}

}  // namespace ringfeed::process
