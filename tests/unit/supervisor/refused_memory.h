// Refuses a thread of these tests an allocation: as malloc does for a supervisor without memory.
#pragma once

#include <cstdint>
#include <new>

namespace ringfeed::test {

// After so many allocations of this thread one is refused; negative: none.
extern thread_local std::int64_t allocations_left;

// Calls `body` with its nth allocation refused, and says whether it threw.
template <typename Body>
bool throws_without_memory(std::int64_t nth, const Body& body) {
  allocations_left = nth;
  try {
    body();
    allocations_left = -1;
    return false;
  } catch (const std::bad_alloc&) {
    allocations_left = -1;
    return true;
  }
}

}  // namespace ringfeed::test
