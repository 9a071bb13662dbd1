// The looks at a feed of the last minute, and what was added between two of them.
//
// Of fixed size: a look that is more than kSpanNs old is forgotten. Times are given by the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "supervisor/metrics/looks.h"

namespace ringfeed::metrics {

inline constexpr std::uint64_t kLookNs = 250'000'000;
inline constexpr std::uint64_t kSpanNs = 60'000'000'000;

// Smallest, largest and mean of what was seen.
struct Fullness {
  std::uint64_t min = 0;
  std::uint64_t max = 0;
  std::uint64_t count = 0;
  std::uint64_t latest = 0;
  double mean = 0;

  void add(std::uint64_t value);
};

class History {
 public:
  // Takes a look. `fill` fills it; its time is later than the last one's. What only grows is never
  // less than in the look before: words of one lane are read one after the other. A look that was
  // taken between the regular ones, because somebody asked, gives way to the next.
  void add(const std::function<void(Look&)>& fill, bool regular = true);

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] const Look& newest() const { return at(count_ - 1); }
  // The look from which a window of so many nanoseconds up to the newest begins: the last one that
  // is old enough, to half a look; the oldest if there is none.
  [[nodiscard]] std::size_t begin_of(std::uint64_t window_ns) const;
  // The oldest look, not before `begin`, since which the feed has been the same: the same lanes at
  // work, the same number of trainers, and a first batch or none.
  [[nodiscard]] std::size_t steady_since(std::size_t begin, const FeedShape& shape) const;
  // 0: the oldest one held.
  [[nodiscard]] const Look& at(std::size_t i) const { return ring_[(first_ + i) % ring_.size()]; }
  [[nodiscard]] std::size_t size() const { return count_; }
  // How full the port's queue was in the looks from `begin` to the newest.
  [[nodiscard]] Fullness fullness(std::size_t port, std::size_t begin) const;
  // Since the first look of all.
  [[nodiscard]] const Fullness& fullness_ever(std::size_t port) const { return ever_[port]; }

 private:
  std::vector<Look> ring_;
  Look next_;  // room for the look that is being taken
  bool newest_regular_ = true;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::vector<Fullness> ever_;
};

}  // namespace ringfeed::metrics
