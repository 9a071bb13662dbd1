// The service manager that has started this process (systemd), as sd_notify(3) documents it:
// datagrams to $NOTIFY_SOCKET, a line for each thing that is said.
//
//   READY=1                 the start is over
//   STATUS=text             for `systemctl status`
//   RELOADING=1             until the next READY=1
//   STOPPING=1              the end has begun
//   EXTEND_TIMEOUT_USEC=n   another message follows within that time: start or stop still goes on
//   WATCHDOG=1              it works; due every $WATCHDOG_USEC
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/segment.h"

namespace ringfeed::process {

class ServiceManager {
 public:
  // Nobody is told anything.
  ServiceManager() = default;
  // That of the environment, which is not handed on: what this process starts is no service.
  [[nodiscard]] static ServiceManager of_environment();

  [[nodiscard]] bool listens() const { return !address_.empty(); }
  // WATCHDOG=1 is to be sent this often: half of what is asked for. 0: not at all.
  [[nodiscard]] std::uint64_t watchdog_ms() const { return watchdog_ms_; }
  // Never waits. Errors: kBusy if there is no room now, else kIo.
  [[nodiscard]] Status send(std::string_view lines);

 private:
  std::string address_;  // a path, or @ and an abstract name
  std::uint64_t watchdog_ms_ = 0;
  shm::Fd socket_;
};

}  // namespace ringfeed::process
