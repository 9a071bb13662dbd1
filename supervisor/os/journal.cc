#include "supervisor/os/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ringfeed::process {
namespace {

Error refused() { return Error{ErrorCode::kIo, std::strerror(errno)}; }

}  // namespace

bool stderr_is_journal() {
  const char* const named = std::getenv("JOURNAL_STREAM");
  struct stat here {};
  if (named == nullptr || ::fstat(STDERR_FILENO, &here) != 0) return false;
  return fmt::format("{}:{}", here.st_dev, here.st_ino) == named;
}

Status Journal::send(std::string_view entry) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kIo, "the path of the journal's socket is too long"};
  }
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  if (!socket_) socket_ = shm::Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_) return refused();
  for (;;) {
    // Not connected: each entry finds whoever listens now.
    if (::sendto(socket_.get(), entry.data(), entry.size(), MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), sizeof address) >= 0) {
      return {};
    }
    if (errno == EINTR) continue;
    if (errno == EMSGSIZE || errno == ENOBUFS) return send_file(&address, sizeof address, entry);
    return refused();
  }
}

Status Journal::send_file(const void* address, unsigned address_bytes,
                          std::string_view entry) const {
  const shm::Fd file(::memfd_create("journal-entry", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return refused();
  while (!entry.empty()) {
    const ssize_t written = ::write(file.get(), entry.data(), entry.size());
    if (written < 0 && errno != EINTR) return refused();
    if (written > 0) entry.remove_prefix(static_cast<std::size_t>(written));
  }
  // The journal reads no file that could still change.
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) !=
      0) {
    return refused();
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<void*>(address);
  message.msg_namelen = address_bytes;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = file.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return refused();
  }
  return {};
}

}  // namespace ringfeed::process
