#include "supervisor/os/packet.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ringfeed/shm/starvation.h"

namespace ringfeed::control {
namespace {

Status send_now(int socket, std::string_view bytes, std::span<const int> fds) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsPerPacket * sizeof(int))> ancillary{};
  if (!fds.empty()) {
    RF_CHECK(fds.size() <= kDescriptorsPerPacket, fds.size());
    message.msg_control = ancillary.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    const ErrorCode code = errno == EPIPE || errno == ECONNRESET     ? ErrorCode::kClosed
                           : errno == EAGAIN || errno == EWOULDBLOCK ? ErrorCode::kBusy
                                                                     : system_code(errno);
    return Error{code, fmt::format("a packet of {} bytes and {} descriptors cannot be sent: {}",
                                   bytes.size(), fds.size(), std::strerror(errno))};
  }
  return {};
}

// Whoever may send may also send nonsense.
constexpr std::size_t kBodyBytesMax = 64 << 20;

// The bytes of a message that came as a descriptor.
Result<std::string> read_body(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return Error{ErrorCode::kIo, std::string("a message's descriptor: ") + std::strerror(errno)};
  }
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) > kBodyBytesMax) {
    return Error{ErrorCode::kDamaged, fmt::format("a message of {} bytes: at most {} are possible",
                                                  info.st_size, kBodyBytesMax)};
  }
  std::string body(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t at = 0;
  while (at < body.size()) {
    const ssize_t n = ::pread(fd, body.data() + at, body.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Error{ErrorCode::kDamaged, "a message's descriptor is shorter than announced"};
    at += static_cast<std::size_t>(n);
  }
  return body;
}

}  // namespace

Result<shm::Fd> bytes_as_fd(std::string_view bytes, const char* name) {
  shm::Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int error = errno;
  std::size_t at = 0;
  while (fd && at < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error = errno;
      fd.reset();
    }
    at += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  if (!fd) {
    return Error{system_code(error),
                 fmt::format("{} bytes for {}: {}", bytes.size(), name, std::strerror(error))};
  }
  return fd;
}

Status send_packet(int socket, std::string_view bytes, std::span<const int> fds) {
  if (bytes.size() <= kPacketBytesMax || !fds.empty()) return send_now(socket, bytes, fds);
  Result<shm::Fd> body = bytes_as_fd(bytes, "ringfeed-message");
  if (!body) return body.error();
  const std::array<int, 1> only{body->get()};
  return send_now(socket, kBodyInDescriptor, only);
}

namespace {

Result<Packet> read_packet(int socket, int flags) {
  Packet packet;
  packet.bytes.resize(kPacketBytesMax + 1);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(kDescriptorsPerPacket * sizeof(int)) + CMSG_SPACE(sizeof(ucred))>
          ancillary{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.data();
  message.msg_controllen = ancillary.size();
  ssize_t n = 0;
  // The end of the other side comes as ECONNRESET first where it had not read everything, and what
  // it had said before that, a refusal, comes then.
  bool reset = false;
  while ((n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags)) < 0 &&
         (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true)))) {
  }
  if (n < 0) {
    packet.bytes.clear();
    packet.empty = errno == EAGAIN || errno == EWOULDBLOCK;
    packet.end = errno == ECONNRESET;
    if (packet.empty || packet.end) return packet;
    return Error{ErrorCode::kIo, std::string("a packet cannot be received: ") + strerror(errno)};
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
      packet.sender_pid = sender.pid;
      packet.sender_uid = sender.uid;
    }
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::array<shm::Fd, kDescriptorsPerPacket> taken;
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      taken[i] = shm::Fd(fd);
    }
    packet.fds.reserve(count);
    for (std::size_t i = 0; i < count; ++i) packet.fds.push_back(std::move(taken[i]));
  }
  packet.bytes.resize(static_cast<std::size_t>(n));
  packet.end = n == 0 && packet.fds.empty();
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error{ErrorCode::kDamaged, "a packet is larger than any of ours"};
  }
  if (packet.bytes == kBodyInDescriptor && packet.fds.size() == 1) {
    Result<std::string> body = read_body(packet.fds[0].get());
    if (!body) return body.error();
    packet.bytes = std::move(*body);
    packet.fds.clear();
  }
  return packet;
}

}  // namespace

Result<Packet> receive_packet(int socket) { return read_packet(socket, 0); }

Result<Packet> peek_packet(int socket) { return read_packet(socket, MSG_PEEK); }

void drop_packet(int socket) noexcept {
  char none = 0;
  while (::recv(socket, &none, 0, MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

}  // namespace ringfeed::control
