#include "ringfeed/shm/failpoint.h"

#ifdef RINGFEED_FAILPOINTS
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The linker's names for the ends of the section. Hidden: a library has its own.
extern "C" {
extern ringfeed::shm::Failpoint rf_first_place[] __asm__("__start_rf_failpoints")
    __attribute__((visibility("hidden")));
extern ringfeed::shm::Failpoint rf_end_of_places[] __asm__("__stop_rf_failpoints")
    __attribute__((visibility("hidden")));
}

namespace ringfeed::shm {
namespace {

struct Armed {
  char name[96];
  std::atomic<char> action;
  std::atomic<std::uint64_t> count;
};
// By a test in this process.
Armed armed;

// By the environment; written before main().
struct Ordered {
  char name[96];
  char action;
  std::uint64_t count;
  const char* once;
};
Ordered ordered;

// Only one process of all that have this environment acts.
bool is_first() noexcept {
  if (ordered.once == nullptr) return true;
  const int fd = ::open(ordered.once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  char text[16];
  const int bytes = ::snprintf(text, sizeof text, "%d\n", static_cast<int>(::getpid()));
  (void)!::write(fd, text, static_cast<std::size_t>(bytes));
  ::close(fd);
  return true;
}

bool act(char action) noexcept {
  switch (action) {
    case 'k':
      ::kill(::getpid(), SIGKILL);
      break;
    case 's':
      // This thread and not any: it must not get further.
      ::raise(SIGSTOP);
      break;
    case 'e':
      return true;
    case 'x':
      ::_exit(70);
    default:
      break;
  }
  return false;
}

char action_of(const char* word) noexcept {
  if (::strncmp(word, "exit", 4) == 0) return 'x';
  return *word;
}

[[gnu::constructor]] void read_environment() noexcept {
  const char* wanted = ::getenv("RINGFEED_FAILPOINT");
  if (wanted == nullptr) return;
  if (::strcmp(wanted, "list") == 0) {
    for (const Failpoint* place = failpoints_begin(); place != failpoints_end(); ++place) {
      ::printf("%s%s\n", place->name(), place->fails() ? " error" : "");
    }
    ::fflush(stdout);
    ::_exit(0);
  }
  const char* const equals = ::strchr(wanted, '=');
  if (equals == nullptr || static_cast<std::size_t>(equals - wanted) >= sizeof ordered.name) return;
  ::memcpy(ordered.name, wanted, static_cast<std::size_t>(equals - wanted));
  const char* const sign = ::strchr(equals, '@');
  ordered.count = sign == nullptr ? 1 : ::strtoull(sign + 1, nullptr, 10);
  ordered.once = ::getenv("RINGFEED_FAILPOINT_ONCE");
  ordered.action = action_of(equals + 1);
}

}  // namespace

Failpoint* failpoints_begin() noexcept { return rf_first_place; }
Failpoint* failpoints_end() noexcept { return rf_end_of_places; }

bool Failpoint::pass() noexcept {
  // relaxed: a counter of this process.
  if (ordered.action != 0 && ::strcmp(ordered.name, name_) == 0 &&
      passed_.fetch_add(1, std::memory_order_relaxed) + 1 == ordered.count && is_first()) {
    return act(ordered.action);
  }
  // relaxed: tests arm before they start the thread or process that passes.
  if (const char action = armed.action.load(std::memory_order_relaxed);
      action != 0 && ::strcmp(armed.name, name_) == 0 &&
      armed.count.fetch_sub(1, std::memory_order_relaxed) == 1) {
    return act(action);
  }
  return false;
}

void arm_failpoint(const char* name, char action, std::uint64_t count) noexcept {
  ::snprintf(armed.name, sizeof armed.name, "%s", name);
  armed.count.store(count, std::memory_order_relaxed);
  armed.action.store(name[0] == '\0' ? '\0' : action, std::memory_order_relaxed);
}

}  // namespace ringfeed::shm
#endif
