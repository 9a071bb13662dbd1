#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"

namespace ringfeed::client {

int connect_path(const char* path, bool wait, int* error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) {
    *error = ENAMETOOLONG;
    return -1;
  }
  memcpy(address.sun_path, path, strlen(path));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    *error = errno;
    close(fd);
    return -1;
  }
  if (!wait) fcntl(fd, F_SETFL, 0);
  return fd;
}

namespace {

bool given(const char* text) { return text != nullptr && text[0] != '\0'; }

}  // namespace

int connect_feed(const rf_attach_options& options, char* path, size_t path_room, int* error) {
  if (given(options.socket_path)) {
    snprintf(path, path_room, "%s", options.socket_path);
    return connect_path(path, true, error);
  }
  // secure_getenv: a set-uid program must not be led to another's socket.
  const char* dir =
      given(options.socket_dir) ? options.socket_dir : secure_getenv("RINGFEED_SOCKET_DIR");
  if (given(dir)) {
    snprintf(path, path_room, "%s/%s.sock", dir, options.feed);
    return connect_path(path, true, error);
  }
  if (const char* runtime = secure_getenv("XDG_RUNTIME_DIR"); given(runtime)) {
    snprintf(path, path_room, "%s/ringfeed/%s.sock", runtime, options.feed);
    const int fd = connect_path(path, true, error);
    // A trainer of a login session may well use a feed of the system.
    if (fd >= 0 || (*error != ENOENT && *error != ECONNREFUSED)) return fd;
  }
  snprintf(path, path_room, "/run/ringfeed/%s.sock", options.feed);
  return connect_path(path, true, error);
}

bool send_message(int fd, const uint8_t* bytes, size_t count) {
  for (;;) {
    if (send(fd, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count)) return true;
    if (errno != EINTR) return false;
  }
}

ssize_t receive_message(int fd, const Deadline& deadline, uint8_t* bytes, size_t room, int* fds,
                        size_t fd_room, size_t* fd_count) {
  *fd_count = 0;
  pollfd ready{fd, POLLIN, 0};
  for (;;) {
    const int64_t left = deadline.left_ms(1000);
    const int events = poll(&ready, 1, static_cast<int>(left));
    if (events < 0) return errno == EINTR ? -2 : -3;
    if (events > 0) break;
    if (!deadline.never && deadline.left_ms(1) == 0) return -1;
  }
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
  iovec part{bytes, room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  // So comes the end of a supervisor that had not read everything; what it had said before that, a
  // refusal, comes then.
  if (received < 0 && errno == ECONNRESET) received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) {
    if (errno == ECONNRESET) return 0;
    return errno == EINTR ? -2 : -3;
  }
  for (cmsghdr* part_header = CMSG_FIRSTHDR(&message); part_header != nullptr;
       part_header = CMSG_NXTHDR(&message, part_header)) {
    if (part_header->cmsg_level != SOL_SOCKET || part_header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part_header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received_fd = -1;
      memcpy(&received_fd, CMSG_DATA(part_header) + i * sizeof(int), sizeof(int));
      if (*fd_count < fd_room) {
        fds[(*fd_count)++] = received_fd;
      } else {
        close(received_fd);
      }
    }
  }
  return received;
}

}  // namespace ringfeed::client
