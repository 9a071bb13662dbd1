// A random order that takes no memory.
#pragma once

#include <cstdint>

#include "ringfeed/worker/random.h"

namespace ringfeed {

// A shuffle of [0, count) of which each place can be asked for by itself: a Feistel network of six
// rounds over the next even number of bits, walked until it is inside (Black and Rogaway, "Ciphers
// with arbitrary finite domains", CT-RSA 2002). Of a hundred positions one costs a thirtieth of
// shuffling all.
class Shuffle {
 public:
  Shuffle(std::uint64_t key, std::uint64_t round, std::uint64_t count) noexcept
      : key_(mix(key, round)), count_(count) {
    while ((std::uint64_t{1} << 2 * bits_) < count) ++bits_;
  }
  // What stands at this place, below `count`.
  [[nodiscard]] std::uint32_t at(std::uint64_t place) const noexcept {
    do {
      place = once(place);
    } while (place >= count_);
    return static_cast<std::uint32_t>(place);
  }

 private:
  [[nodiscard]] std::uint64_t once(std::uint64_t value) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << bits_) - 1;
    std::uint64_t left = value >> bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (mix(key_ + round, right) & mask);
      left = right;
      right = next;
    }
    return left << bits_ | right;
  }
  std::uint64_t key_;
  std::uint64_t count_;
  unsigned bits_ = 1;  // of each half
};

}  // namespace ringfeed
