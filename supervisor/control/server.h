// The control socket: who is connected, what he asks, what he is answered.
//
// A client is the same user as the supervisor, or root; anyone else gets one sentence. A client
// that does not read its answers is disconnected; nobody waits for him. The end of a connection is
// no proof of a death.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "supervisor/process/event_loop.h"

namespace ringfeed {
class Reply;
class Request;
}  // namespace ringfeed

namespace ringfeed::control {

using ConnectionId = std::uint64_t;

// Who was at the other end when the connection was made.
struct Peer {
  pid_t pid = 0;  // 0: of a pid namespace that cannot be seen from here
  uid_t uid = 0;
};

class ControlServer {
 public:
  struct Handlers {
    std::function<void(ConnectionId, const Request&)> on_request;
    std::function<void(ConnectionId)> on_closed;
  };

  static constexpr std::size_t kConnectionsMax = 512;

  // Removes what is left of an earlier socket (the caller holds the feed's lock) and listens, mode
  // 0600. Throws Error (kIo).
  ControlServer(process::EventLoop& loop, std::string path, Handlers handlers);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // To a connection that may be gone by now: then nothing happens.
  void send(ConnectionId connection, const Reply& reply, std::span<const int> fds = {});
  [[nodiscard]] Peer peer(ConnectionId connection) const;
  // A pidfd of the peer; empty if there is none.
  [[nodiscard]] shm::Fd peer_pidfd(ConnectionId connection) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  struct Connection {
    shm::Fd socket;
    Peer peer;
    std::uint64_t requests = 0;
  };
  void accept_all();
  void read_from(ConnectionId id);
  void close(ConnectionId id);

  process::EventLoop& loop_;
  std::string path_;
  Handlers handlers_;
  shm::Fd listener_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_ = 1;
};

}  // namespace ringfeed::control
