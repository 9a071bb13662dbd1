#include "supervisor/control/changes.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "proto/control.pb.h"

namespace ringfeed::control {

// Not those of members and workers: a goodbye counts although its sender has gone.
bool changes_something(const Request& request) {
  switch (request.body_case()) {
    case Request::kStop:
    case Request::kStageControl:
    case Request::kRestart:
    case Request::kSnapshot:
    case Request::kScale:
      return true;
    case Request::kLog:
      return request.log().has_level();
    default:
      return false;
  }
}

bool is_given_up(int socket) {
  pollfd ended{socket, POLLRDHUP, 0};
  return ::poll(&ended, 1, 0) > 0 && (ended.revents & (POLLRDHUP | POLLHUP)) != 0;
}

bool withdraw(int socket) {
  ::shutdown(socket, SHUT_WR);
  int unread = 0;  // bytes of memory that the other end has yet to take
  return ::ioctl(socket, SIOCOUTQ, &unread) == 0 && unread > 0;
}

}  // namespace ringfeed::control
