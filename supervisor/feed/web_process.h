// The feed's `ringfeed web` (`http` in its configuration): started, heard, and started again when
// it has ended, for as long as the feed lasts. The feed does not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "supervisor/group/log_tail.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed {
class HttpConfig;
}

namespace ringfeed::process {

class WebProcess {
 public:
  struct Hooks {
    std::function<void(std::string_view line)> on_line;  // what it says
    std::function<void(std::string_view level, std::string_view event, const std::string& values)>
        on_event;
    std::function<void(const std::string& text)> on_problem;  // empty: it is over
  };

  // `directory`: of the control sockets that it asks.
  WebProcess(EventLoop& loop, const HttpConfig& settings, const std::string& directory,
             Hooks hooks);
  // Kills it: it has nothing to save.
  ~WebProcess();
  WebProcess(const WebProcess&) = delete;
  WebProcess& operator=(const WebProcess&) = delete;

  // Starts it, if it is time to. Called at every tick.
  void look_after();
  // "http://127.0.0.1:9464/"; empty: it does not listen now.
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void start();
  void on_line(std::string_view line);
  void read_log();
  void ended();
  void end();
  void forget();
  void pause(const std::string& why);

  EventLoop& loop_;
  std::vector<std::string> words_;
  Hooks hooks_;
  Spawned process_;
  LogTail tail_;
  std::string address_;
  std::uint32_t failures_ = 0;  // in a row
  std::uint64_t started_ms_ = 0;
  std::uint64_t next_ms_ = 0;
};

}  // namespace ringfeed::process
