#include "ringfeed/shm/failpoint.h"

#ifdef RINGFEED_FAILPOINTS
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace ringfeed::shm {
namespace {

struct Armed {
  char name[96] = {};
  std::atomic<char> action{0};
  std::atomic<std::uint64_t> count{0};
};
Armed armed;

// A place is made once, when it is first passed; more places than this would go unregistered.
constexpr std::size_t kPlacesMax = 256;
std::atomic<const char*> places[kPlacesMax];
std::atomic<std::size_t> place_count{0};

void act(char action) noexcept {
  switch (action) {
    case 'k':
      ::kill(::getpid(), SIGKILL);
      break;
    case 's':
      ::kill(::getpid(), SIGSTOP);
      break;
    case 'e':
      ::_exit(70);
    default:
      break;
  }
}

}  // namespace

Failpoint::Failpoint(const char* name) noexcept : name_(name) {
  // relaxed: a test asks for the names after it has passed the places itself.
  const std::size_t at = place_count.fetch_add(1, std::memory_order_relaxed);
  if (at < kPlacesMax) places[at].store(name, std::memory_order_relaxed);
  const char* wanted = std::getenv("RINGFEED_FAILPOINT");
  if (wanted == nullptr) return;
  const std::string_view text(wanted);
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || text.substr(0, equals) != name) return;
  const std::size_t sign = text.find('@', equals);
  action_ = text[equals + 1];
  fire_at_ = sign == std::string_view::npos ? 1 : std::strtoull(wanted + sign + 1, nullptr, 10);
}

void Failpoint::pass() noexcept {
  // relaxed: a counter of this process.
  if (action_ != 0 && passed_.fetch_add(1, std::memory_order_relaxed) + 1 == fire_at_) act(action_);
  // relaxed: tests arm before they start the thread or process that passes.
  if (const char action = armed.action.load(std::memory_order_relaxed);
      action != 0 && std::strcmp(armed.name, name_) == 0 &&
      armed.count.fetch_sub(1, std::memory_order_relaxed) == 1) {
    act(action);
  }
}

void arm_failpoint(const char* name, char action, std::uint64_t count) noexcept {
  std::strncpy(armed.name, name, sizeof armed.name - 1);
  armed.count.store(count, std::memory_order_relaxed);
  armed.action.store(name[0] == '\0' ? '\0' : action, std::memory_order_relaxed);
}

std::vector<std::string> failpoints(std::string_view prefix) {
  std::vector<std::string> names;
  // relaxed: as in the constructor.
  const std::size_t count = std::min(kPlacesMax, place_count.load(std::memory_order_relaxed));
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = places[i].load(std::memory_order_relaxed);
    if (name != nullptr && std::string_view(name).starts_with(prefix)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace ringfeed::shm
#endif
