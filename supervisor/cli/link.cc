#include "supervisor/cli/link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "proto/plan.pb.h"
#include "ringfeed/shm/abi.h"
#include "supervisor/os/packet.h"

namespace ringfeed::cli {
namespace {

// The program makes it while this process is being started.
constexpr int kPlanMsMax = 1'000;

}  // namespace

shm::Fd take_link(int fd) {
  if (fd < 0) return {};
  int type = 0;
  socklen_t length = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--link-fd {}: not a socket of packets", fd));
  }
  return shm::Fd(fd);
}

std::optional<PipelinePlan> plan_on(int link) {
  pollfd ready{link, POLLIN, 0};
  int found = 0;
  do {
    found = ::poll(&ready, 1, kPlanMsMax);
  } while (found < 0 && errno == EINTR);
  if (found <= 0) return std::nullopt;
  const Result<control::Packet> packet = control::receive_packet(link);
  PipelinePlan plan;
  if (!packet || packet->bytes.empty() || !plan.ParseFromString(packet->bytes) ||
      plan.worker_version() != RINGFEED_VERSION || plan.abi() != shm::kAbiMajor) {
    return std::nullopt;
  }
  return plan;
}

void say_listening(int link) {
  // A program that has gone is the feed's owner: its end is seen elsewhere.
  static_cast<void>(control::send_packet(link, kListening));
}

}  // namespace ringfeed::cli
