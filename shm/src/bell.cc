#include "ringfeed/shm/bell.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdint>

#include "ringfeed/shm/failpoint.h"

namespace ringfeed::shm {
namespace {

// Linux 5.16; declared here because Debian 12's libc has no wrapper and older headers lack the
// struct.
struct Waiter {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};
constexpr std::uint32_t kFutex32Bits = 2;
constexpr long kFutexWaitv = 449;

std::atomic<bool> waitv_missing{false};

timespec plus_ms(timespec time, int ms) noexcept {
  time.tv_sec += ms / 1000;
  time.tv_nsec += (ms % 1000) * 1'000'000L;
  if (time.tv_nsec >= 1'000'000'000L) {
    ++time.tv_sec;
    time.tv_nsec -= 1'000'000'000L;
  }
  return time;
}

}  // namespace

void futex_wait_any(std::span<const BellWord> words, int timeout_ms) noexcept {
  // relaxed: only avoids a failing system call.
  if (words.size() > 1 && !waitv_missing.load(std::memory_order_relaxed)) {
    Waiter waiters[32];
    const std::size_t count = words.size() < 32 ? words.size() : 32;
    for (std::size_t i = 0; i < count; ++i) {
      waiters[i] = {words[i].seen, reinterpret_cast<std::uint64_t>(words[i].word), kFutex32Bits, 0};
    }
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const timespec until = plus_ms(now, timeout_ms);
    const long woken = ::syscall(kFutexWaitv, waiters, count, 0U, &until, CLOCK_MONOTONIC);
    if (woken >= 0 || (errno != ENOSYS && errno != EPERM)) return;
    waitv_missing.store(true, std::memory_order_relaxed);
  }
  // Without futex_waitv only the first word can be waited on; the others are looked at every
  // millisecond.
  const int ms = words.size() > 1 ? 1 : timeout_ms;
  const timespec timeout = plus_ms({}, ms);
  ::syscall(SYS_futex, words[0].word, FUTEX_WAIT, words[0].seen, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  RF_FAILPOINT("shm.bell.wake");
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ringfeed::shm
