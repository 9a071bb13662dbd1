// Specification of supervisor/group/warm_parent.h: one that could not be started leaves nothing.
#include "supervisor/group/warm_parent.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdint>
#include <new>
#include <utility>

#include "tests/unit/supervisor/refused_memory.h"

namespace ringfeed::process {
namespace {

// Of this process; also one that has ended.
bool any_child() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// One that nobody watches, and that nobody has told what to load, would be there for ever.
TEST(WarmParents, EndIfThereIsNoMemoryToWatchThem) {
  EventLoop loop;
  ASSERT_FALSE(any_child());
  bool refused = true;
  for (std::int64_t nth = 0; refused; ++nth) {
    WarmParent parent(
        loop, "a", "/bin/cat", "",
        {[](std::string_view) {}, [](std::string_view, std::string_view, const std::string&) {}});
    test::allocations_left = nth;
    try {
      parent.look_after();
    } catch (const std::bad_alloc&) {
    }
    refused = std::exchange(test::allocations_left, -1) < 0;
    ASSERT_EQ(any_child(), !refused) << "allocation " << nth;
  }
}

}  // namespace
}  // namespace ringfeed::process
