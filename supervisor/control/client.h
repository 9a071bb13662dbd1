// The other end of the control socket: what the command line uses.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"

namespace ringfeed {
class Reply;
class Request;
}  // namespace ringfeed

namespace ringfeed::control {

class ControlClient {
 public:
  // A supervisor accepts at once; one that is short of descriptors within a second or two.
  static constexpr int kConnectMs = 10'000;

  // nullopt: no live feed of that name in any of the directories. Throws Error (kIo) if there is
  // one that cannot be reached (another user), (kTimeout) if it has not accepted the connection
  // after `patience_ms`.
  [[nodiscard]] static std::optional<ControlClient> connect(
      const std::vector<std::string>& directories, const std::string& feed,
      int patience_ms = kConnectMs);

  // Called several times a second while something is waited for.
  using Meanwhile = std::function<void()>;
  // Sends and waits for the answer. Throws Error (kClosed) if the feed goes away meanwhile,
  // (kTimeout) after `timeout_ms`: what would have changed something is then withdrawn, or under
  // way. The text says which, and the connection is of no use any more.
  [[nodiscard]] Reply call(const Request& request, int timeout_ms = 10'000,
                           const Meanwhile& meanwhile = {});
  // Waits until the supervisor's process has ended, or, where that cannot be seen, the other end
  // closes. False after `timeout_ms` (-1: never).
  bool wait_for_end(int timeout_ms = -1, const Meanwhile& meanwhile = {});

  // The feeds that answer, in these directories.
  [[nodiscard]] static std::vector<std::string> live_feeds(
      const std::vector<std::string>& directories);

 private:
  explicit ControlClient(shm::Fd socket) : socket_(std::move(socket)) {}
  shm::Fd socket_;
};

}  // namespace ringfeed::control
