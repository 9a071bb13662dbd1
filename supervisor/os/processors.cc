#include "supervisor/os/processors.h"

#include <cerrno>
#include <memory>

namespace ringfeed::process {
namespace {

constexpr int kProcessorsMost = 1 << 20;

struct FreeSet {
  void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};

}  // namespace

std::vector<int> usable_processors(const AskAffinity& ask) {
  std::vector<int> found;
  // The system refuses a set that has no place for all it might have: a cpu_set_t has 1,024.
  for (int count = CPU_SETSIZE; count <= kProcessorsMost; count *= 2) {
    const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(static_cast<std::size_t>(count)));
    if (set == nullptr) return found;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(count));
    CPU_ZERO_S(bytes, set.get());
    if (ask(0, bytes, set.get()) != 0) {
      if (errno != EINVAL) return found;
      continue;
    }
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set.get())) found.push_back(cpu);
    }
    return found;
  }
  return found;
}

}  // namespace ringfeed::process
