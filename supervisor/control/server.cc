#include "supervisor/control/server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/control.pb.h"
#include "supervisor/control/packet.h"
#include "supervisor/process/identity.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; older headers lack it
#endif

namespace ringfeed::control {
namespace {

constexpr int kBacklog = 64;
// Requests that one connection may have waiting are taken this many at a time, so that nobody keeps
// the others from their turn.
constexpr int kRequestsPerTurn = 8;

}  // namespace

ControlServer::ControlServer(process::EventLoop& loop, std::string path, Handlers handlers)
    : loop_(loop), path_(std::move(path)), handlers_(std::move(handlers)) {
  listener_ = shm::Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  RF_CHECK(path_.size() < sizeof address.sun_path, path_.size());
  path_.copy(address.sun_path, path_.size());
  ::unlink(path_.c_str());
  const mode_t before = ::umask(0177);
  const bool bound = listener_ && ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address),
                                         sizeof address) == 0;
  const int error = errno;
  ::umask(before);
  if (!bound || ::listen(listener_.get(), kBacklog) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("control socket {}: {}", path_, std::strerror(bound ? errno : error)));
  }
  loop_.watch(listener_.get(), [this] { accept_all(); });
}

ControlServer::~ControlServer() {
  for (const auto& [id, connection] : connections_) loop_.unwatch(connection.socket.get());
  loop_.unwatch(listener_.get());
  ::unlink(path_.c_str());
}

void ControlServer::accept_all() {
  for (;;) {
    shm::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    ucred credentials{};
    socklen_t size = sizeof credentials;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    Reply refusal;
    if (credentials.uid != ::geteuid() && credentials.uid != 0) {
      refusal.set_error(Reply::PERMISSION);
      refusal.set_text(fmt::format(
          "this feed belongs to user {} and you are user {}: attach as the user who runs it",
          ::geteuid(), credentials.uid));
    } else if (connections_.size() >= kConnectionsMax) {
      refusal.set_error(Reply::FULL);
      refusal.set_text(fmt::format("{} connections are open, which is the most: close some",
                                   connections_.size()));
    }
    if (refusal.has_error()) {
      static_cast<void>(send_packet(socket.get(), refusal.SerializeAsString()));
      continue;
    }
    const ConnectionId id = next_++;
    const int fd = socket.get();
    connections_.emplace(id, Connection{std::move(socket), {credentials.pid, credentials.uid}});
    loop_.watch(fd, [this, id] { read_from(id); });
  }
}

void ControlServer::read_from(ConnectionId id) {
  for (int turn = 0; turn < kRequestsPerTurn; ++turn) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Result<Packet> packet = receive_packet(found->second.socket.get());
    if (!packet || packet->end) return close(id);
    if (packet->empty) return;
    Request request;
    if (!request.ParseFromString(packet->bytes)) {
      Reply reply;
      reply.set_error(Reply::BAD_REQUEST);
      reply.set_text(
          fmt::format("{} bytes that are no request: use the same ringfeed version as "
                      "the feed",
                      packet->bytes.size()));
      send(id, reply);
      continue;
    }
    handlers_.on_request(id, request);
  }
}

void ControlServer::close(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  loop_.unwatch(found->second.socket.get());
  connections_.erase(found);
  handlers_.on_closed(id);
}

void ControlServer::send(ConnectionId connection, const Reply& reply, std::span<const int> fds) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  const std::string bytes = reply.SerializeAsString();
  const Status sent = send_packet(found->second.socket.get(), bytes, fds);
  // Who has gone may have said more before: that is read first, up to the end. Who does not read is
  // closed now.
  if (!sent && sent.error().code() != ErrorCode::kClosed) close(connection);
}

Peer ControlServer::peer(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? Peer{} : found->second.peer;
}

shm::Fd ControlServer::peer_pidfd(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return {};
  // The kernel's own: it names the very process that connected.
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(found->second.socket.get(), SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    return shm::Fd(fd);
  }
  if (found->second.peer.pid <= 0) return {};
  return process::open_pidfd(found->second.peer.pid);
}

}  // namespace ringfeed::control
