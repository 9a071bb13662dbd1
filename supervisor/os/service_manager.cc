#include "supervisor/os/service_manager.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "ringfeed/shm/quote.h"

namespace ringfeed::process {
namespace {

std::string taken(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

std::uint64_t number(const std::string& text) {
  std::uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? value : 0;
}

}  // namespace

ServiceManager ServiceManager::of_environment() {
  ServiceManager manager;
  manager.address_ = taken("NOTIFY_SOCKET");
  const std::uint64_t watchdog_us = number(taken("WATCHDOG_USEC"));
  const std::string watched = taken("WATCHDOG_PID");
  // Without a number it is for whoever reads it.
  const bool own = watched.empty() || number(watched) == static_cast<std::uint64_t>(::getpid());
  if (manager.listens() && own && watchdog_us != 0) {
    manager.watchdog_ms_ = std::max<std::uint64_t>(watchdog_us / 2'000, 1);
  }
  return manager;
}

Status ServiceManager::send(std::string_view lines) {
  if (!listens()) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((address_[0] != '/' && address_[0] != '@') || address_.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kIo,
                 fmt::format("NOTIFY_SOCKET is {}: neither a path nor an abstract socket",
                             in_quotes(address_))};
  }
  address_.copy(address.sun_path, sizeof address.sun_path - 1);
  if (address_[0] == '@') address.sun_path[0] = '\0';
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  if (!socket_) socket_ = shm::Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket_ && ::sendto(socket_.get(), lines.data(), lines.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                          reinterpret_cast<const sockaddr*>(&address), bytes) >= 0) {
    return {};
  }
  const bool full = errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
  return Error{full ? ErrorCode::kBusy : ErrorCode::kIo,
               fmt::format("the service manager at {} cannot be told: {}", in_quotes(address_),
                           std::strerror(errno))};
}

}  // namespace ringfeed::process
