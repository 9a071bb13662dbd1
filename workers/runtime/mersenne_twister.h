// The random streams of Python and of NumPy's legacy interface, draw for draw: for pipelines that
// must give what a program in Python gave. Everything else draws from random.h, whose numbers do
// not hang on the order of the draws.
//
// MT19937 of Matsumoto and Nishimura ("Mersenne Twister", ACM TOMACS 1998). Nothing here allocates;
// a stream belongs to one thread.
#pragma once

#include <array>
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

  std::uint32_t next() noexcept;
  // Words given since it was seeded.
  [[nodiscard]] std::uint64_t drawn() const noexcept { return drawn_; }
  // Goes on until so many have been given.
  void skip_to(std::uint64_t drawn) noexcept {
    while (drawn_ < drawn) next();
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
  std::size_t used_ = kWords;
  std::uint64_t drawn_ = 0;
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
  template <typename T>
  void shuffle(std::span<T> items) noexcept {
    for (std::size_t i = items.size(); i-- > 1;) {
      std::swap(items[i], items[at_most(static_cast<std::uint32_t>(i))]);
    }
  }

 private:
  std::uint32_t at_most(std::uint32_t largest) noexcept;
  MersenneTwister twister_;
};

}  // namespace ringfeed
