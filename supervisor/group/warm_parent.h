// The warm parent of a stage: a process that has loaded what the stage's processes need, which may
// take seconds, and forks them, which takes milliseconds. It has none of the feed's memory.
//
// It is a help and no more. While it is not ready, does not answer or has died, processes are
// started as all others are. It is started again after a pause, unless it says that what it has
// loaded cannot be forked.
//
// A child is forked twice, so that the kernel gives it to this process, the nearest subreaper: it
// is watched, killed and reaped like any other worker.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "supervisor/group/log_tail.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/event_loop.h"

namespace ringfeed::process {

class WarmParent {
 public:
  struct Hooks {
    std::function<void(std::string_view line)> on_line;  // what the process says
    std::function<void(std::string_view level, std::string_view event, const std::string& values)>
        on_event;
  };

  // `setup`: a serialized WorkerSetup that says the configuration and the stage.
  WarmParent(EventLoop& loop, std::string stage, std::string binary, std::string setup,
             Hooks hooks);
  ~WarmParent();
  WarmParent(const WarmParent&) = delete;
  WarmParent& operator=(const WarmParent&) = delete;

  // Starts it, if it is time to. Called at every tick once the stage runs.
  void look_after();
  // A process that it has forked, with the links of spawn_worker(); nothing: it cannot now.
  [[nodiscard]] std::optional<Spawned> spawn(int lock);

  [[nodiscard]] const std::string& stage() const { return stage_; }
  [[nodiscard]] bool ready() const { return ready_; }

 private:
  void start();
  void on_packet();
  void read_log();
  void end(std::string_view why);

  EventLoop& loop_;
  std::string stage_;
  std::string binary_;
  std::string setup_;
  Hooks hooks_;
  Spawned process_;
  LogTail tail_;
  bool ready_ = false;
  bool never_ = false;  // what it has loaded cannot be forked
  std::uint32_t deaths_ = 0;
  std::uint64_t started_ms_ = 0;
  std::uint64_t next_ms_ = 0;
};

}  // namespace ringfeed::process
