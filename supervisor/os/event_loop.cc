#include "supervisor/os/event_loop.h"

#include <poll.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "ringfeed/shm/result.h"
#include "ringfeed/shm/starvation.h"

namespace ringfeed::process {

std::uint64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

namespace {

// A timer whose callback has thrown is called again after this, and other callbacks wait for this
// long.
constexpr std::uint64_t kAgainMs = 100;
constexpr int kPauseMs = 5;

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) {
    throw Error(ErrorCode::kIo,
                std::string("the system provides no epoll: ") + std::strerror(errno));
  }
}

void EventLoop::watch(int fd, Callback on_ready) {
  const std::uint64_t number = next_number_++;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = number << 32 | static_cast<std::uint32_t>(fd);
  // What takes memory comes first: a descriptor that nobody knows would be ready for ever.
  auto callback = std::make_shared<Callback>(std::move(on_ready));
  const auto [watch, fresh] = watches_.try_emplace(fd);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    // ENOSPC: fs.epoll.max_user_watches.
    const int why = errno;
    const int error = why == ENOSPC ? ENOBUFS : why;
    if (fresh) watches_.erase(watch);
    throw Error(system_code(error), std::string("a descriptor cannot be watched: ") +
                                        std::strerror(why) + "; raise the open-file limit");
  }
  watch->second = {number & 0xffffffffU, std::move(callback)};
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::after(std::uint64_t delay_ms, Callback on_time) {
  const TimerId id = next_number_++;
  const std::uint64_t time = now_ms() + delay_ms;
  const auto timer = timers_.emplace(std::pair(time, id), std::move(on_time)).first;
  try {
    timer_times_.emplace(id, time);
  } catch (...) {
    timers_.erase(timer);  // nobody could cancel it
    throw;
  }
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const auto time = timer_times_.find(timer);
  if (time == timer_times_.end()) return;
  timers_.erase({time->second, timer});
  timer_times_.erase(time);
}

bool EventLoop::survives(const Callback& callback) {
  try {
    callback();
    return true;
  } catch (const std::exception& error) {
    if (!report_) throw;
    report_(error);
    return false;
  }
}

void EventLoop::call_due() {
  const std::uint64_t now = now_ms();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const auto due = timers_.begin();
    Callback callback = std::move(due->second);
    // Kept as nodes, so that the same timer can be set again without any memory.
    auto time = timer_times_.extract(due->first.second);
    auto timer = timers_.extract(due);
    if (survives(callback)) continue;
    time.mapped() = timer.key().first = now + kAgainMs;
    timer.mapped() = std::move(callback);
    timer_times_.insert(std::move(time));
    timers_.insert(std::move(timer));
  }
}

void EventLoop::run_once(int timeout_ms) {
  if (!timers_.empty()) {
    const std::uint64_t now = now_ms();
    const std::uint64_t due = timers_.begin()->first.first;
    const int wait = due <= now ? 0 : static_cast<int>(std::min<std::uint64_t>(due - now, 60'000));
    timeout_ms = timeout_ms < 0 ? wait : std::min(timeout_ms, wait);
  }
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[static_cast<std::size_t>(i)].data.u64;
    const auto found = watches_.find(static_cast<int>(key & 0xffffffffU));
    // An earlier callback of this round may have removed it, or given its number to another file.
    if (found == watches_.end() || found->second.number != key >> 32) continue;
    // Held here, because the callback may remove itself.
    const std::shared_ptr<Callback> callback = found->second.callback;
    // Not at once: what is missing would not be there yet, and the processor would be taken.
    if (!survives(*callback)) ::poll(nullptr, 0, kPauseMs);
  }
  call_due();
}

void EventLoop::run() {
  running_ = true;
  while (running_) run_once(-1);
}

}  // namespace ringfeed::process
