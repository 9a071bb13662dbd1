// Processors of machines that have more than a cpu_set_t has places for, and of those that say
// nothing.
#include "supervisor/os/processors.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <numeric>

namespace ringfeed::process {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A machine that might have `possible` processors, of which these may be used.
AskAffinity machine(int possible, std::vector<int> usable) {
  return [possible, usable = std::move(usable)](pid_t, std::size_t bytes, cpu_set_t* set) {
    if (bytes * 8 < static_cast<std::size_t>(possible)) {
      errno = EINVAL;
      return -1;
    }
    for (const int cpu : usable) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
    return 0;
  };
}

TEST(Processors, AreFoundOnMachinesOfAnySize) {
  EXPECT_THAT(usable_processors(machine(1, {0})), ElementsAre(0));
  EXPECT_THAT(usable_processors(machine(8192, {3, 1024, 8191})), ElementsAre(3, 1024, 8191));
  std::vector<int> all(1024);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(usable_processors(machine(1024, all)), all);
  all.resize(4096);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(usable_processors(machine(4096, all)), all);
}

TEST(Processors, OfASystemThatDoesNotSayAreNone) {
  EXPECT_THAT(usable_processors([](pid_t, std::size_t, cpu_set_t*) {
                errno = EPERM;
                return -1;
              }),
              IsEmpty());
  EXPECT_THAT(usable_processors(machine(1 << 30, {0})), IsEmpty());
}

TEST(Processors, OfThisMachineAreThere) { EXPECT_FALSE(usable_processors().empty()); }

}  // namespace
}  // namespace ringfeed::process
