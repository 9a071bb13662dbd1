#include "supervisor/control/questions.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/control.pb.h"
#include "supervisor/os/packet.h"

namespace ringfeed::control {
namespace {

enum : std::uint64_t { kStatusId = 1, kMetricsId = 2 };

}  // namespace

std::optional<Result<shm::Fd>> connected_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  path.copy(address.sun_path, path.size());
  shm::Fd link(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!link) {
    return Error(ErrorCode::kIo, fmt::format("it cannot be asked: {}", std::strerror(errno)));
  }
  if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return link;
  }
  const int error = errno;
  if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR) return std::nullopt;
  if (error == EAGAIN) {
    return Error(ErrorCode::kBusy,
                 "its supervisor accepts no connections: it is stopped, or out of descriptors");
  }
  return Error(ErrorCode::kIo, fmt::format("it cannot be reached at {}: {}: ask as the user who "
                                           "runs it",
                                           path, std::strerror(error)));
}

bool ask_both(int socket) {
  Request status;
  status.set_id(kStatusId);
  status.mutable_status();
  Request metrics;
  metrics.set_id(kMetricsId);
  metrics.mutable_metrics();
  return send_packet(socket, status.SerializeAsString()) &&
         send_packet(socket, metrics.SerializeAsString());
}

std::optional<std::string> Answers::take(const std::string& bytes) {
  Reply reply;
  if (!reply.ParseFromString(bytes)) return std::nullopt;
  if (reply.error() != Reply::NONE) return reply.text();
  if (reply.id() == kStatusId && reply.has_status()) {
    status = std::make_shared<StatusReply>(std::move(*reply.mutable_status()));
  }
  if (reply.id() == kMetricsId && reply.has_metrics()) {
    metrics = std::make_shared<MetricsReply>(std::move(*reply.mutable_metrics()));
  }
  return std::nullopt;
}

}  // namespace ringfeed::control
