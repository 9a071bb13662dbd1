// Words of a running feed's memory, for people.
#pragma once

#include <atomic>

namespace ringfeed::metrics {

// relaxed: numbers that are shown, and decide nothing.
template <typename T>
T read(const std::atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

}  // namespace ringfeed::metrics
