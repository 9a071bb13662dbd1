// The random streams of Python and of NumPy's legacy interface, draw for draw: for pipelines that
// must give what a program in Python gave. Everything else draws from random.h, whose numbers do
// not hang on the order of the draws.
//
// MT19937 of Matsumoto and Nishimura ("Mersenne Twister", ACM TOMACS 1998). Nothing here allocates;
// a stream belongs to one thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

namespace ringfeed {

class MersenneTwister {
 public:
  // Seeded by one word.
  explicit MersenneTwister(std::uint32_t seed) noexcept;
  // Seeded by a key of one word or more, least significant first.
  explicit MersenneTwister(std::span<const std::uint32_t> key) noexcept;

  std::uint32_t next() noexcept {
    if (used_ == kWords) turn();
    return ready_[used_++];
  }
  // Words given since it was seeded.
  [[nodiscard]] std::uint64_t drawn() const noexcept { return turns_ * kWords + used_ - kWords; }
  // Goes on until so many have been given.
  void skip_to(std::uint64_t drawn) noexcept {
    while (this->drawn() < drawn) next();
  }
  // Uniform in [0, 1), with 53 random bits out of two words.
  double uniform() noexcept {
    const std::uint32_t high = next() >> 5;
    const std::uint32_t low = next() >> 6;
    return (high * 67108864.0 + low) * 0x1.0p-53;
  }

 private:
  static constexpr std::size_t kWords = 624;
  void seed(std::uint32_t seed) noexcept;
  void turn() noexcept;

  std::array<std::uint32_t, kWords> words_;
  std::array<std::uint32_t, kWords> ready_{};  // what they give, next in line from used_ on
  std::size_t used_ = kWords;
  std::uint64_t turns_ = 0;
};

// random.Random(seed).
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed) noexcept;

  [[nodiscard]] std::uint64_t drawn() const noexcept { return twister_.drawn(); }
  void skip_to(std::uint64_t drawn) noexcept { twister_.skip_to(drawn); }
  double uniform() noexcept { return twister_.uniform(); }
  // So many random bits, 1 to 32.
  std::uint32_t bits(int count) noexcept { return twister_.next() >> (32 - count); }
  // Uniform in [0, bound), 0 < bound < 2^32. Draws at least once, even of one.
  std::uint32_t below(std::uint32_t bound) noexcept;
  template <typename T>
  void shuffle(std::span<T> items) noexcept {
    for (std::size_t i = items.size(); i-- > 1;) {
      std::swap(items[i], items[below(static_cast<std::uint32_t>(i + 1))]);
    }
  }

 private:
  MersenneTwister twister_;
};

// numpy.random.RandomState(seed).
class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) noexcept : twister_(seed) {}
  // Of a seed that is an array, of one word or more.
  explicit NumpyRandom(std::span<const std::uint32_t> key) noexcept : twister_(key) {}

  [[nodiscard]] std::uint64_t drawn() const noexcept { return twister_.drawn(); }
  void skip_to(std::uint64_t drawn) noexcept { twister_.skip_to(drawn); }
  double uniform() noexcept { return twister_.uniform(); }
  // Of the Gumbel distribution at 0 with scale 1.
  double gumbel() noexcept {
    for (;;) {
      const double value = 1.0 - uniform();
      if (value < 1.0) return -std::log(-std::log(value));
    }
  }
  // Uniform in [0, largest]; of 0 alone nothing is drawn. Beyond 32 bits from two words, the first
  // of which is the high one.
  std::uint64_t at_most(std::uint64_t largest) noexcept {
    if (largest == 0) return 0;
    const std::uint64_t mask = mask_of(largest);
    std::uint64_t drawn = word(largest) & mask;
    while (drawn > largest) drawn = word(largest) & mask;
    return drawn;
  }
  // From the last item to the second, each changes places with one not behind it. Partners are
  // drawn ahead, so that those that are not in the cache are there in time.
  template <typename T>
  void shuffle(std::span<T> items) noexcept {
    std::array<std::uint64_t, 64> partners;
    for (std::uint64_t i = items.empty() ? 0 : items.size() - 1; i > 0;) {
      const std::uint64_t count = draw_partners(i, partners);
      for (std::uint64_t k = 0; k < count; ++k) __builtin_prefetch(&items[partners[k]], 1);
      for (std::uint64_t k = 0; k < count; ++k, --i) std::swap(items[i], items[partners[k]]);
    }
  }

 private:
  static std::uint64_t mask_of(std::uint64_t largest) noexcept {
    return ~std::uint64_t{0} >> std::countl_zero(largest);
  }
  std::uint64_t word(std::uint64_t largest) noexcept {
    if (largest <= 0xffffffffU) return twister_.next();
    const std::uint64_t high = twister_.next();
    return high << 32 | twister_.next();
  }
  // at_most(i), at_most(i - 1), ... down to at_most(1), as many as there is room for and as have
  // the same mask; at least one.
  std::uint64_t draw_partners(std::uint64_t i, std::span<std::uint64_t> partners) noexcept {
    const std::uint64_t mask = mask_of(i);
    const std::uint64_t wanted = std::min<std::uint64_t>(partners.size(), i - mask / 2);
    std::uint64_t count = 0;
    // Without a branch on what was drawn: every fourth draw or so is beyond i.
    while (count < wanted) {
      partners[count] = word(i) & mask;
      count += partners[count] <= i - count ? 1 : 0;
    }
    return count;
  }
  MersenneTwister twister_;
};

}  // namespace ringfeed
