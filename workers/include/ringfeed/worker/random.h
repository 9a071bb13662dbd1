// Random numbers as a function of a key and a counter: Philox 4x32, 10 rounds (Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// The counter is the only state. So a step that is repeated after a death draws the same numbers,
// and the numbers for a thing (a chunk in its third use) do not depend on the lane that works on
// it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ringfeed {

// Mixes numbers into one 64-bit key (the finaliser of SplitMix64 over a running sum).
constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept { return mix(mix(a) ^ b); }
constexpr std::uint64_t mix(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a 64
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return mix(hash);
}

// Two 64-bit numbers for each value of the counter.
constexpr std::array<std::uint64_t, 2> philox(std::uint64_t key, std::uint64_t counter) noexcept {
  std::uint32_t x0 = static_cast<std::uint32_t>(counter);
  std::uint32_t x1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t x2 = 0;
  std::uint32_t x3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53} * x0;
    const std::uint64_t b = std::uint64_t{0xcd9e8d57} * x2;
    const std::uint32_t y0 = static_cast<std::uint32_t>(b >> 32) ^ x1 ^ k0;
    const std::uint32_t y2 = static_cast<std::uint32_t>(a >> 32) ^ x3 ^ k1;
    x1 = static_cast<std::uint32_t>(b);
    x3 = static_cast<std::uint32_t>(a);
    x0 = y0;
    x2 = y2;
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return {std::uint64_t{x1} << 32 | x0, std::uint64_t{x3} << 32 | x2};
}

// A sequence of numbers: `key` names the sequence, `counter` is the position in it.
class Random {
 public:
  explicit constexpr Random(std::uint64_t key, std::uint64_t counter = 0) noexcept
      : key_(key), counter_(counter) {}

  constexpr std::uint64_t next() noexcept {
    const std::uint64_t block = counter_ >> 1;
    if (block != block_ || !filled_) {
      numbers_ = philox(key_, block);
      block_ = block;
      filled_ = true;
    }
    return numbers_[counter_++ & 1];
  }

  // Uniform in [0, bound), bound > 0: the high half of a product, with the few biased low halves
  // rejected (Lemire, "Fast random integer generation in an interval", ACM TOMACS 2019).
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    for (;;) {
      __extension__ using Wide = unsigned __int128;
      const Wide product = static_cast<Wide>(next()) * bound;
      const auto low = static_cast<std::uint64_t>(product);
      if (low >= bound || low >= -bound % bound) return static_cast<std::uint64_t>(product >> 64);
    }
  }

  // Uniform in [0, 1): 53 random bits.
  constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  [[nodiscard]] constexpr std::uint64_t counter() const noexcept { return counter_; }
  constexpr void seek(std::uint64_t counter) noexcept { counter_ = counter; }

 private:
  std::uint64_t key_;
  std::uint64_t counter_;
  std::uint64_t block_ = 0;
  bool filled_ = false;
  std::array<std::uint64_t, 2> numbers_{};
};

}  // namespace ringfeed
