// One message a packet over SOCK_SEQPACKET, with descriptors beside it.
//
// A message too large for a packet goes as a memfd: the packet is then empty but for
// kBodyInDescriptor, and the descriptor holds the bytes. Receivers here undo that by themselves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::control {

// As many descriptors as a packet takes (the kernel's SCM_MAX_FD is 253).
inline constexpr std::size_t kDescriptorsPerPacket = 250;
inline constexpr std::size_t kPacketBytesMax = 128 * 1024;
// Field 15 (a varint, value 1), which no message of ours has: skipped by who does not know it.
inline constexpr std::string_view kBodyInDescriptor{"\x78\x01", 2};

// Never blocks and never raises SIGPIPE. Errors: kClosed (nobody at the other end), kBusy (the
// other end does not read), kIo.
[[nodiscard]] Status send_packet(int socket, std::string_view bytes, std::span<const int> fds = {});

struct Packet {
  bool end = false;    // the other end has closed
  bool empty = false;  // nothing there now
  std::string bytes;
  std::vector<shm::Fd> fds;
  // Who has sent it, as the kernel says, of a socket with SO_PASSCRED; else 0.
  pid_t sender_pid = 0;
  uid_t sender_uid = 0;
};
// Errors: kIo, kDamaged (cut short).
[[nodiscard]] Result<Packet> receive_packet(int socket);
// The same, and the packet stays first in the queue until drop_packet(): whoever has no memory to
// do what it says can look at it again.
[[nodiscard]] Result<Packet> peek_packet(int socket);
void drop_packet(int socket) noexcept;

// A memfd with these bytes, at its beginning.
[[nodiscard]] Result<shm::Fd> bytes_as_fd(std::string_view bytes, const char* name);

}  // namespace ringfeed::control
