#include "supervisor/control/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "proto/control.pb.h"
#include "ringfeed/shm/starvation.h"
#include "supervisor/control/changes.h"
#include "supervisor/os/identity.h"
#include "supervisor/os/packet.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; older headers lack it
#endif

namespace ringfeed::control {
namespace {

constexpr int kBacklog = 64;
// Requests that one connection may have waiting are taken this many at a time, so that nobody keeps
// the others from their turn; the same for who wants to connect.
constexpr int kRequestsPerTurn = 8;
constexpr int kAcceptsPerTurn = 64;
// Out of descriptors: the listener rests so long, then twice as long, up to the second.
constexpr std::uint64_t kRestMsMin = 20;
constexpr std::uint64_t kRestMsMax = 1'000;
// Who stands on a descriptor of the reserve and waits for nothing goes after this time.
constexpr std::uint64_t kEmergencyMs = 1'000;
// A request for which there is no memory is looked at again, so many times; then its connection is
// closed, for it may be the request that takes too much.
constexpr std::uint32_t kStarvedMax = 100;

// What an operator asks, and who has a place already.
bool is_for_reserved(const Request& request) {
  switch (request.body_case()) {
    case Request::kStatus:
    case Request::kMetrics:
    case Request::kStop:
    case Request::kDetach:
    case Request::kRejoin:
    case Request::kWorkerRejoin:
      return true;
    default:
      return false;
  }
}

// Somebody waits there for an answer to what has not been read yet.
bool has_input(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0 &&
         (ready.revents & POLLHUP) == 0;
}

// The sentence is for people: without memory the end of the connection has to do.
template <typename Text>
void refuse(int socket, Reply::ErrorCode code, const Text& text) try {
  Reply reply;
  reply.set_error(code);
  reply.set_text(text());
  static_cast<void>(send_packet(socket, reply.SerializeAsString()));
} catch (const std::bad_alloc&) {
}

Result<shm::Fd> bind_socket(const std::string& path) {
  shm::Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  RF_CHECK(path.size() < sizeof address.sun_path, path.size());
  path.copy(address.sun_path, path.size());
  // Beside its place, and then moved there: what cannot be had takes nothing away.
  address.sun_path[path.size() - 1] = '~';
  const std::string partial = address.sun_path;
  int error = errno;
  if (listener) {
    ::unlink(partial.c_str());
    const mode_t before = ::umask(0177);
    const bool bound =
        ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    error = errno;
    ::umask(before);
    if (bound && ::listen(listener.get(), kBacklog) == 0 &&
        ::rename(partial.c_str(), path.c_str()) == 0) {
      return listener;
    }
    if (bound) {
      error = errno;
      ::unlink(partial.c_str());
    }
  }
  return Error{system_code(error),
               fmt::format("control socket {}: {}", path, std::strerror(error))};
}

}  // namespace

ControlServer::ControlServer(process::EventLoop& loop, std::string path, Handlers handlers,
                             process::DescriptorReserve* reserve, const ServerLimits& limits)
    : loop_(loop),
      path_(std::move(path)),
      feed_(std::filesystem::path(path_).stem().string()),
      handlers_(std::move(handlers)),
      reserve_(reserve),
      limits_(limits) {
  listen_again().or_throw();
}

ControlServer::~ControlServer() {
  if (resting_) loop_.cancel(*resting_);
  if (silence_) loop_.cancel(*silence_);
  for (const auto& [id, connection] : connections_) loop_.unwatch(connection.socket.get());
  loop_.unwatch(listener_.get());
  if (in_place()) ::unlink(path_.c_str());
}

bool ControlServer::in_place() const {
  struct stat named {};
  return ::stat(path_.c_str(), &named) == 0 && named.st_dev == device_ && named.st_ino == inode_;
}

Status ControlServer::listen_again() {
  Result<shm::Fd> fresh = bind_socket(path_);
  if (!fresh) return fresh.error();
  struct stat named {};
  if (::stat(path_.c_str(), &named) != 0) {
    return Error{ErrorCode::kIo, fmt::format("control socket {}: {}", path_, std::strerror(errno))};
  }
  if (listener_) loop_.unwatch(listener_.get());
  listener_ = std::move(*fresh);
  if (!resting_) listen_on();
  // Only now is it in place: what fails before is tried again.
  device_ = named.st_dev;
  inode_ = named.st_ino;
  return {};
}

// The listener is watched from now on, or later if the system has no room for that either.
void ControlServer::listen_on() {
  try {
    loop_.watch(listener_.get(), [this] { accept_all(); });
  } catch (const std::exception&) {
    rest(ENOMEM);
  }
}

void ControlServer::rest(int error) {
  if (resting_) return;
  const std::uint64_t rest_ms = rest_ms_ == 0 ? kRestMsMin : std::min(2 * rest_ms_, kRestMsMax);
  // First of all: a listener that nobody watches again would be none.
  resting_ = loop_.after(rest_ms, [this] {
    resting_.reset();
    listen_on();
    if (!resting_) accept_all();
  });
  loop_.unwatch(listener_.get());
  rest_ms_ = rest_ms;
  ++starved_;
  if (handlers_.on_starved) handlers_.on_starved(starved_, std::strerror(error));
}

// Empty with errno if there is none, or none can be had.
shm::Fd ControlServer::accept_one(bool* emergency) {
  const auto accept = [this] {
    return shm::Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  };
  *emergency = false;
  shm::Fd socket = accept();
  if (socket || (errno != EMFILE && errno != ENFILE) || reserve_ == nullptr) return socket;
  const int error = errno;
  if (reserve_->give_up(1, process::kReserveForRestart) == 0) {
    errno = error;
    return socket;
  }
  *emergency = true;
  socket = accept();
  if (!socket) {
    const int again = errno;
    reserve_->refill();
    errno = again;
  }
  return socket;
}

void ControlServer::accept_all() {
  for (int turn = 0; turn < kAcceptsPerTurn; ++turn) {
    bool emergency = false;
    shm::Fd socket = accept_one(&emergency);
    if (socket) {
      if (!emergency && starved_ != 0) {
        starved_ = 0;
        rest_ms_ = 0;
        if (handlers_.on_starved) handlers_.on_starved(0, {});
      }
      admit(std::move(socket), emergency);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Who wanted to connect has gone meanwhile, or may not: that is his own affair.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPERM || errno == EPROTO) continue;
    return rest(errno);
  }
}

// Why this peer gets no place; nullopt: it may have one, if there is one.
std::optional<std::string> ControlServer::refusal_of(const Peer& peer) {
  const auto count = [this](auto&& counts) {
    return static_cast<std::size_t>(
        std::count_if(connections_.begin(), connections_.end(),
                      [&](const auto& entry) { return counts(entry.second.peer); }));
  };
  const std::size_t own =
      peer.pid == 0 ? 0 : count([&](const Peer& other) { return other.pid == peer.pid; });
  if (own >= limits_.per_process) {
    return fmt::format(
        "process {} already has {} connections to feed '{}', which is the maximum for one process: "
        "close some",
        peer.pid, own, feed_);
  }
  const std::size_t users = count([&](const Peer& other) { return other.uid == peer.uid; });
  if (peer.uid != ::geteuid() && users >= limits_.per_other_user) {
    return fmt::format(
        "user {} already has {} connections to feed '{}', which is the maximum for a user who does "
        "not run it: close some",
        peer.uid, users, feed_);
  }
  if (connections_.size() >= limits_.connections && !make_room()) {
    return fmt::format(
        "the supervisor of feed '{}' already serves {} connections, which is the maximum, and none "
        "of them is idle: close some",
        feed_, connections_.size());
  }
  return std::nullopt;
}

// Whoever waits for nothing gives way: first who has never asked, then who has been idle longest.
bool ControlServer::make_room() {
  auto least = connections_.end();
  for (auto at = connections_.begin(); at != connections_.end(); ++at) {
    const Connection& one = at->second;
    if (one.stays || one.due != 0 || has_input(one.socket.get())) continue;
    const auto rank = [](const Connection& c) { return std::pair(c.requests != 0, c.since_ms); };
    if (least == connections_.end() || rank(one) < rank(least->second)) least = at;
  }
  if (least == connections_.end()) return false;
  refuse(least->second.socket.get(), Reply::FULL, [this] {
    return fmt::format(
        "the supervisor of feed '{}' already serves {} connections, which is the maximum, and this "
        "one was idle: connect again",
        feed_, connections_.size());
  });
  close(least->first);
  return true;
}

void ControlServer::admit(shm::Fd socket, bool emergency) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size);
  const Peer peer{credentials.pid, credentials.uid};
  const int fd = socket.get();
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    refuse(fd, Reply::PERMISSION, [&] {
      return fmt::format(
          "this feed belongs to user {} and you are user {}: attach as the user who runs it",
          ::geteuid(), peer.uid);
    });
  } else if (const std::optional<std::string> refusal = refusal_of(peer)) {
    refuse(fd, Reply::FULL, [&] { return *refusal; });
  } else {
    const ConnectionId id = next_++;
    try {
      Connection& connection = connections_[id];
      connection.socket = std::move(socket);
      connection.peer = peer;
      connection.since_ms = process::now_ms();
      connection.emergency = emergency;
      loop_.watch(fd, [this, id] { read_from(id); });
      if (silence_ && emergency) loop_.cancel(*std::exchange(silence_, std::nullopt));
      if (!silence_) {
        silence_ = loop_.after(emergency ? kEmergencyMs : limits_.silent_ms,
                               [this] { look_for_silent(); });
      }
      return;
    } catch (const std::exception& error) {
      refuse(fd, Reply::FULL, [&] {
        return fmt::format(
            "the supervisor of feed '{}' cannot serve another connection: {}: try again later",
            feed_, error.what());
      });
      // As if it had never been.
      loop_.unwatch(fd);
      connections_.erase(id);
    }
  }
  socket.reset();
  if (emergency) reserve_->refill();
}

void ControlServer::look_for_silent() {
  silence_.reset();
  const std::uint64_t now = process::now_ms();
  std::vector<ConnectionId> silent;
  std::optional<std::uint64_t> next_ms;
  for (const auto& [id, connection] : connections_) {
    const bool idle = connection.emergency && connection.due == 0 && !connection.stays;
    if (connection.requests != 0 && !idle) continue;
    const std::uint64_t due_ms = connection.since_ms + patience_ms(connection);
    if (due_ms <= now) {
      silent.push_back(id);
    } else {
      next_ms = std::min(next_ms.value_or(due_ms), due_ms);
    }
  }
  for (const ConnectionId id : silent) {
    const Connection& connection = connections_.at(id);
    refuse(connection.socket.get(), Reply::BAD_REQUEST, [&] {
      return fmt::format(
          "the supervisor of feed '{}' got no request within {} ms: connect when there is "
          "something to ask",
          feed_, patience_ms(connection));
    });
    close(id);
  }
  if (next_ms) silence_ = loop_.after(*next_ms - now, [this] { look_for_silent(); });
}

std::uint64_t ControlServer::patience_ms(const Connection& connection) const {
  return connection.emergency ? std::min(kEmergencyMs, limits_.silent_ms) : limits_.silent_ms;
}

// Who is idle gives way before somebody is refused.
bool ControlServer::in_reserved_place(const Connection& connection) {
  const std::size_t open = limits_.connections - limits_.reserved;
  while (!connection.emergency && connections_.size() > open) {
    if (!make_room()) return true;
  }
  return connection.emergency;
}

void ControlServer::read_from(ConnectionId id) {
  try {
    read_requests(id);
  } catch (const std::exception&) {
    const auto found = connections_.find(id);
    // A member's goodbye is not lost: his process may live, and he would be waited for.
    if (found == connections_.end() || found->second.stays ||
        ++found->second.starved <= kStarvedMax) {
      throw;
    }
    close(id);
  }
}

// A request leaves the queue when it has been refused, or is about to be answered: what throws
// before that is met again in the next turn.
void ControlServer::read_requests(ConnectionId id) {
  for (int turn = 0; turn < kRequestsPerTurn; ++turn) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    const int socket = connection.socket.get();
    Result<Packet> packet = peek_packet(socket);
    if (!packet || packet->end) return close(id);
    if (packet->empty) return;
    Request request;
    Reply reply;
    if (!request.ParseFromString(packet->bytes)) {
      reply.set_error(Reply::BAD_REQUEST);
      reply.set_text(
          fmt::format("{} bytes that are not a request: use the same ringfeed version as the feed",
                      packet->bytes.size()));
      send(id, reply);
      if (!connections_.contains(id)) return;
      drop_packet(socket);
      continue;
    }
    const bool first = connection.requests == 0;
    if (first && !is_for_reserved(request) && in_reserved_place(connection)) {
      reply.set_id(request.id());
      reply.set_error(Reply::FULL);
      reply.set_text(
          connection.emergency
              ? fmt::format("the supervisor of feed '{}' has no descriptors left: raise its limit "
                            "of open files, or let other trainers leave; try again later",
                            feed_)
              : fmt::format("the supervisor of feed '{}' already serves {} connections, and the "
                            "last {} are reserved for status and stop: close some",
                            feed_, connections_.size(), limits_.reserved));
      send(id, reply);
      return close(id);
    }
    connection.since_ms = process::now_ms();
    ++connection.requests;
    connection.starved = 0;
    drop_packet(socket);
    if (changes_something(request) && is_given_up(socket)) {
      refuse(socket, Reply::INTERNAL, [this] {
        return fmt::format(
            "the supervisor of feed '{}' came to the request too late: it was withdrawn, and "
            "nothing was changed",
            feed_);
      });
      continue;
    }
    ++connection.due;
    answer(id, request);
  }
}

void ControlServer::answer(ConnectionId id, const Request& request) {
  try {
    try {
      handlers_.on_request(id, request);
    } catch (const std::exception& error) {
      Reply reply;
      reply.set_id(request.id());
      reply.set_error(Reply::INTERNAL);
      reply.set_text(error.what());
      send(id, reply);
    }
  } catch (const std::bad_alloc&) {
    // Not even for a refusal. Whoever waits hears the end of the connection, and not nothing.
    close(id);
  }
}

void ControlServer::close(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  loop_.unwatch(found->second.socket.get());
  const bool emergency = found->second.emergency;
  connections_.erase(found);
  if (emergency) reserve_->refill();
  handlers_.on_closed(id);
}

bool ControlServer::send(ConnectionId connection, const Reply& reply, std::span<const int> fds) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return false;
  const std::string bytes = reply.SerializeAsString();
  Connection& to = found->second;
  if (!reply.has_event() && to.due != 0) --to.due;
  const bool done = reply.error() == Reply::NONE;
  if (done && (reply.has_attach() || reply.has_rejoin() || reply.has_stop())) to.stays = true;
  if (done && reply.has_detach()) to.stays = false;
  const Status sent = send_packet(to.socket.get(), bytes, fds);
  // Who has gone may have said more before: that is read first, up to the end. Who does not read is
  // closed now.
  if (!sent && sent.error().code() != ErrorCode::kClosed) close(connection);
  return sent.ok();
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
