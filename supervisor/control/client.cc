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
#include "supervisor/control/place.h"
#include "supervisor/os/event_loop.h"
#include "supervisor/os/packet.h"

namespace ringfeed::control {
namespace {

constexpr int kMeanwhileMs = 250;

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
  const std::uint64_t until = process::now_ms() + static_cast<std::uint64_t>(timeout_ms);
  for (;;) {
    const std::uint64_t now = process::now_ms();
    pollfd ready{socket_.get(), POLLIN, 0};
    const int left = now < until ? static_cast<int>(until - now) : 0;
    const int events = ::poll(&ready, 1, meanwhile ? std::min(left, kMeanwhileMs) : left);
    if (events == 0 && meanwhile && left != 0) {
      meanwhile();
      continue;
    }
    if (events == 0) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("the feed has not answered within {} ms", timeout_ms));
    }
    if (events < 0) continue;
    Packet packet = receive_packet(socket_.get()).value_or_throw();
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

bool ControlClient::wait_for_end(int timeout_ms, const Meanwhile& meanwhile) {
  const std::uint64_t until = process::now_ms() + static_cast<std::uint64_t>(timeout_ms);
  for (;;) {
    const std::uint64_t now = process::now_ms();
    int wait = timeout_ms < 0 ? -1 : now < until ? static_cast<int>(until - now) : 0;
    const bool last = wait == 0;
    if (meanwhile) wait = wait < 0 ? kMeanwhileMs : std::min(wait, kMeanwhileMs);
    pollfd ready{socket_.get(), POLLIN, 0};
    const int events = ::poll(&ready, 1, wait);
    if (events == 0 && meanwhile && !last) {
      meanwhile();
      continue;
    }
    if (events == 0) return false;
    if (events < 0) continue;
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
