#include "workers/runtime/setup.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/worker.pb.h"

namespace ringfeed {
namespace {

constexpr std::size_t kDescriptorsPerPacket = 250;

}  // namespace

std::string receive_packet(int socket, std::vector<shm::Fd>& descriptors) {
  // As long as it is: what is made room for in vain costs a new process a fault for each page.
  ssize_t length = 0;
  do {
    length = ::recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (length < 0 && errno == EINTR);
  std::string bytes(static_cast<std::size_t>(std::max<ssize_t>(length, 0)), '\0');
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (kDescriptorsPerPacket + 3))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0)
    throw Error(ErrorCode::kIo, fmt::format("the supervisor's socket: {}", std::strerror(errno)));
  for (cmsghdr* part_header = CMSG_FIRSTHDR(&message); part_header != nullptr;
       part_header = CMSG_NXTHDR(&message, part_header)) {
    if (part_header->cmsg_level != SOL_SOCKET || part_header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part_header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part_header) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

WorkerSetup receive_setup(int socket, std::vector<shm::Fd>& descriptors) {
  std::size_t expected = 1;
  bool first = true;
  while (first || descriptors.size() < expected) {
    ToWorker packet;
    const std::string bytes = receive_packet(socket, descriptors);
    if (bytes.empty() || !packet.ParseFromString(bytes)) {
      throw Error(ErrorCode::kIo, "the supervisor's setup ended early or cannot be read");
    }
    if (first) {
      if (!packet.has_setup())
        throw Error(ErrorCode::kIo, "the supervisor's first packet is not a setup");
      expected = packet.setup().descriptor_count();
      first = false;
    }
  }
  if (descriptors.size() != expected || expected == 0) {
    throw Error(ErrorCode::kIo, fmt::format("the supervisor announced {} descriptors and sent {}",
                                            expected, descriptors.size()));
  }
  struct stat info {};
  ::fstat(descriptors[0].get(), &info);
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  if (::pread(descriptors[0].get(), bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::kIo, "the supervisor's setup cannot be read");
  }
  WorkerSetup setup;
  if (!setup.ParseFromString(bytes))
    throw Error(ErrorCode::kIo, "the supervisor's setup is damaged");
  return setup;
}

}  // namespace ringfeed
