// The control socket: who is connected, what he asks, what he is answered.
//
// A client is the same user as the supervisor, or root; anyone else gets one sentence. A client
// that does not read its answers is disconnected; nobody waits for him. The end of a connection is
// no proof of a death.
//
// Places are limited (ServerLimits), and nobody can keep the others out by holding them:
//   - who has asked nothing that can be understood within silent_ms is told so and disconnected;
//   - one process has at most per_process, one other user at most per_other_user;
//   - the last `reserved` places are for questions that an operator has (status, metrics, stop) and
//     for workers and members that come back; others are refused there, with the reason;
//   - when all are taken, the one who waits for nothing (first of all who has never asked, then who
//     has been idle longest) gives way. Members and those whose answer is due stay.
//
// Out of descriptors or memory the listener rests (backoff), so that a queue of clients costs no
// processor time; the descriptors of the reserve serve one client at a time meanwhile, for an
// operator's questions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "supervisor/os/event_loop.h"
#include "supervisor/os/reserve.h"

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

struct ServerLimits {
  std::size_t connections = 512;
  std::size_t reserved = 32;  // of these
  std::size_t per_process = 64;
  std::size_t per_other_user = 256;
  std::uint64_t silent_ms = 5'000;
};

class ControlServer {
 public:
  struct Handlers {
    std::function<void(ConnectionId, const Request&)> on_request;
    std::function<void(ConnectionId)> on_closed;
    // Connections cannot be accepted, for the `times`-th time in a row; 0: they can again.
    std::function<void(std::uint64_t times, const std::string& why)> on_starved = {};
  };

  // Removes what is left of an earlier socket (the caller holds the feed's lock) and listens, mode
  // 0600. Throws Error (kIo, kNoMemory). `reserve` may be null.
  ControlServer(process::EventLoop& loop, std::string path, Handlers handlers,
                process::DescriptorReserve* reserve = nullptr, const ServerLimits& limits = {});
  // Removes the socket, unless another one has its name by now.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Whether the socket's name is still that of this socket.
  [[nodiscard]] bool in_place() const;
  // Listens under the same name anew; who is connected stays so. The caller holds the feed's lock
  // there. Errors (kIo, kNoMemory): then all is as before.
  [[nodiscard]] Status listen_again();

  // To a connection that may be gone by now: then nothing happens. False: the other end does not
  // get it.
  bool send(ConnectionId connection, const Reply& reply, std::span<const int> fds = {});
  // Ends a connection; nothing happens if it is gone by now.
  void close(ConnectionId id);
  [[nodiscard]] Peer peer(ConnectionId connection) const;
  // A pidfd of the peer; empty if there is none.
  [[nodiscard]] shm::Fd peer_pidfd(ConnectionId connection) const;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    shm::Fd socket;
    Peer peer;
    std::uint64_t since_ms = 0;  // it was made, or has last asked
    std::uint64_t requests = 0;
    std::uint64_t due = 0;      // answers
    std::uint32_t starved = 0;  // looks at its next request for which there was no memory
    bool stays = false;         // a member's, or one that waits for the feed's end
    bool emergency = false;     // stands on a descriptor of the reserve
  };
  using Connections = std::map<ConnectionId, Connection>;

  void accept_all();
  shm::Fd accept_one(bool* emergency);
  void admit(shm::Fd socket, bool emergency);
  [[nodiscard]] std::optional<std::string> refusal_of(const Peer& peer);
  bool make_room();
  void rest(int error);
  void listen_on();
  void look_for_silent();
  [[nodiscard]] std::uint64_t patience_ms(const Connection& connection) const;
  [[nodiscard]] bool in_reserved_place(const Connection& connection);
  void read_from(ConnectionId id);
  void read_requests(ConnectionId id);
  void answer(ConnectionId id, const Request& request);

  process::EventLoop& loop_;
  std::string path_;
  std::string feed_;
  Handlers handlers_;
  process::DescriptorReserve* reserve_;
  ServerLimits limits_;
  shm::Fd listener_;
  std::uint64_t device_ = 0;  // of the socket's name
  std::uint64_t inode_ = 0;
  Connections connections_;
  ConnectionId next_ = 1;
  std::optional<process::EventLoop::TimerId> resting_;
  std::optional<process::EventLoop::TimerId> silence_;
  std::uint64_t starved_ = 0;  // times in a row
  std::uint64_t rest_ms_ = 0;
};

}  // namespace ringfeed::control
