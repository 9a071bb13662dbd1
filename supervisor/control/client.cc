#include "supervisor/control/client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/control.pb.h"
#include "supervisor/control/changes.h"
#include "supervisor/control/place.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/identity.h"
#include "supervisor/os/packet.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; older headers lack it
#endif

namespace ringfeed::control {
namespace {

constexpr int kMeanwhileMs = 250;
constexpr int kLastWordMs = 1'000;

// A pidfd of whoever listens; empty: none is to be had, or he has ended.
shm::Fd peer_pidfd(int socket) {
  // The kernel's own looks into other pid namespaces too.
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return shm::Fd(fd);
  ucred peer{};
  size = sizeof peer;
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return known && peer.pid > 0 ? process::open_pidfd(peer.pid) : shm::Fd();
}

// nullopt: there is no answer in time.
std::optional<Reply> receive(int socket, const Request& request, int timeout_ms,
                             const ControlClient::Meanwhile& meanwhile) {
  const std::uint64_t until = process::now_ms() + static_cast<std::uint64_t>(timeout_ms);
  for (;;) {
    const std::uint64_t now = process::now_ms();
    pollfd ready{socket, POLLIN, 0};
    const int left = now < until ? static_cast<int>(until - now) : 0;
    const int events = ::poll(&ready, 1, meanwhile ? std::min(left, kMeanwhileMs) : left);
    if (events == 0 && meanwhile && left != 0) {
      meanwhile();
      continue;
    }
    if (events == 0) return std::nullopt;
    if (events < 0) continue;
    Packet packet = receive_packet(socket).value_or_throw();
    if (packet.end) {
      throw Error(ErrorCode::kClosed,
                  "the supervisor closed the connection without an answer: either the feed has "
                  "ended, or its supervisor has no memory to answer: ask again");
    }
    Reply reply;
    if (packet.empty || !reply.ParseFromString(packet.bytes)) continue;
    // A refusal before any request was read has no id; events have none and no error.
    if (reply.id() == request.id() || reply.error() != Reply::NONE) return reply;
  }
}

// Of a request that the supervisor has taken there may be a last word.
Reply give_up(int socket, const Request& request, int timeout_ms) {
  if (withdraw(socket)) {
    throw Error(ErrorCode::kTimeout,
                fmt::format("the feed has not answered within {} ms: its supervisor is stopped, or "
                            "very busy. It has not read the request, which is withdrawn: nothing "
                            "was changed, and nothing will be",
                            timeout_ms));
  }
  std::optional<Reply> reply = receive(socket, request, kLastWordMs, {});
  if (reply) return std::move(*reply);
  throw Error(ErrorCode::kTimeout,
              fmt::format("the feed has not answered within {} ms, but its supervisor has the "
                          "request: it is under way, and will be done as soon as that is possible: "
                          "see ringfeed status, and do not ask again before",
                          timeout_ms));
}

}  // namespace

std::optional<ControlClient> ControlClient::connect(const std::vector<std::string>& directories,
                                                    const std::string& feed, int patience_ms) {
  for (const std::string& directory : directories) {
    const std::string path = socket_path(directory, feed);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) continue;
    path.copy(address.sun_path, path.size());
    shm::Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const timeval patience{patience_ms / 1000, patience_ms % 1000 * 1000};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (socket &&
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      return ControlClient(std::move(socket));
    }
    // Nothing there, or a socket without its process.
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) continue;
    if (errno == EAGAIN) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("feed '{}' has not accepted a connection at {} within {:g} s: its "
                              "supervisor is stopped, or out of descriptors",
                              feed, path, patience_ms / 1000.0));
    }
    throw Error(
        ErrorCode::kIo,
        fmt::format("feed '{}' cannot be reached at {}: {}: connect as the user who runs it", feed,
                    path, std::strerror(errno)));
  }
  return std::nullopt;
}

Reply ControlClient::call(const Request& request, int timeout_ms, const Meanwhile& meanwhile) {
  const Status sent = send_packet(socket_.get(), request.SerializeAsString());
  // Whoever was refused is disconnected, and the reason lies there to be read.
  if (!sent && sent.error().code() != ErrorCode::kClosed) sent.or_throw();
  std::optional<Reply> reply = receive(socket_.get(), request, timeout_ms, meanwhile);
  if (reply) return std::move(*reply);
  if (changes_something(request)) return give_up(socket_.get(), request, timeout_ms);
  throw Error(ErrorCode::kTimeout,
              fmt::format("the feed has not answered within {} ms", timeout_ms));
}

bool ControlClient::wait_for_end(int timeout_ms, const Meanwhile& meanwhile) {
  const shm::Fd process = peer_pidfd(socket_.get());
  const int watched = process ? process.get() : socket_.get();
  const std::uint64_t until = process::now_ms() + static_cast<std::uint64_t>(timeout_ms);
  for (;;) {
    const std::uint64_t now = process::now_ms();
    int wait = timeout_ms < 0 ? -1 : now < until ? static_cast<int>(until - now) : 0;
    const bool last = wait == 0;
    if (meanwhile) wait = wait < 0 ? kMeanwhileMs : std::min(wait, kMeanwhileMs);
    pollfd ready{watched, POLLIN, 0};
    const int events = ::poll(&ready, 1, wait);
    if (events == 0 && meanwhile && !last) {
      meanwhile();
      continue;
    }
    if (events == 0) return false;
    if (events < 0) continue;
    if (process) return true;
    const Result<Packet> packet = receive_packet(socket_.get());
    if (!packet || packet->end) return true;
  }
}

std::vector<std::string> ControlClient::live_feeds(const std::vector<std::string>& directories) {
  std::vector<std::string> live;
  for (const std::string& directory : directories) {
    for (const std::string& feed : feeds_in(directory)) {
      if (std::find(live.begin(), live.end(), feed) == live.end() && connect({directory}, feed)) {
        live.push_back(feed);
      }
    }
  }
  return live;
}

}  // namespace ringfeed::control
