// One thread that waits for everything: descriptors, and moments.
//
// Callbacks run one after the other in run(); each may add and remove any descriptor and timer,
// itself included. What is removed is not called any more, even if it was ready in the same round.
//
// An exception of a callback leaves run(), unless survive() has said who is to hear of it. Then the
// loop goes on: a descriptor that is still ready is called again, a timer a moment later, so what
// was to be done for want of memory or descriptors is done when there are some.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>

#include "ringfeed/shm/segment.h"

namespace ringfeed::process {

// Milliseconds of CLOCK_MONOTONIC: all of the supervisor's times.
[[nodiscard]] std::uint64_t now_ms() noexcept;

class EventLoop {
 public:
  using Callback = std::function<void()>;
  using TimerId = std::uint64_t;

  EventLoop();

  // Calls `on_ready` whenever the descriptor can be read, or has an end or an error to tell.
  void watch(int fd, Callback on_ready);
  void unwatch(int fd);

  // Calls once, `delay_ms` from now.
  TimerId after(std::uint64_t delay_ms, Callback on_time);
  void cancel(TimerId timer);

  // From now on exceptions of callbacks go to `report`, which throws none.
  void survive(std::function<void(const std::exception&)> report) { report_ = std::move(report); }

  // Until stop() is called from a callback.
  void run();
  void stop() { running_ = false; }
  // One round: waits for at most `timeout_ms` (-1: for the next event) and calls what is due.
  void run_once(int timeout_ms);

 private:
  struct Watch {
    std::uint64_t number;
    std::shared_ptr<Callback> callback;
  };
  void call_due();
  // False: it has thrown, and that was reported.
  bool survives(const Callback& callback);

  shm::Fd epoll_;
  std::map<int, Watch> watches_;
  std::uint64_t next_number_ = 1;  // tells a descriptor from an earlier one with the same number
  std::map<std::pair<std::uint64_t, TimerId>, Callback> timers_;  // by time
  std::map<TimerId, std::uint64_t> timer_times_;
  bool running_ = false;
  std::function<void(const std::exception&)> report_;
};

}  // namespace ringfeed::process
