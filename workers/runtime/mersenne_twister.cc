#include "workers/runtime/mersenne_twister.h"

#include <algorithm>
#include <bit>

namespace ringfeed {

MersenneTwister::MersenneTwister(std::uint32_t seed) noexcept { this->seed(seed); }

MersenneTwister::MersenneTwister(std::span<const std::uint32_t> key) noexcept {
  seed(19650218);
  const auto mixed = [this](std::size_t i) {
    const std::uint32_t before = words_[i - 1];
    return before ^ before >> 30;
  };
  std::size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    words_[0] = words_[kWords - 1];
    i = 1;
  };
  for (std::size_t step = 0; step < std::max(kWords, key.size()); ++step) {
    const std::size_t j = step % key.size();
    words_[i] = (words_[i] ^ mixed(i) * 1664525U) + key[j] + static_cast<std::uint32_t>(j);
    advance();
  }
  for (std::size_t step = 1; step < kWords; ++step) {
    words_[i] = (words_[i] ^ mixed(i) * 1566083941U) - static_cast<std::uint32_t>(i);
    advance();
  }
  words_[0] = 0x80000000U;
}

void MersenneTwister::seed(std::uint32_t seed) noexcept {
  words_[0] = seed;
  for (std::uint32_t i = 1; i < kWords; ++i) {
    words_[i] = 1812433253U * (words_[i - 1] ^ words_[i - 1] >> 30) + i;
  }
}

void MersenneTwister::turn() noexcept {
  constexpr std::size_t kMiddle = 397;
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint32_t bits = (words_[i] & 0x80000000U) | (words_[(i + 1) % kWords] & 0x7fffffffU);
    words_[i] = words_[(i + kMiddle) % kWords] ^ bits >> 1 ^ ((bits & 1) != 0 ? 0x9908b0dfU : 0U);
  }
  used_ = 0;
}

std::uint32_t MersenneTwister::next() noexcept {
  if (used_ == kWords) turn();
  ++drawn_;
  std::uint32_t word = words_[used_++];
  word ^= word >> 11;
  word ^= word << 7 & 0x9d2c5680U;
  word ^= word << 15 & 0xefc60000U;
  return word ^ word >> 18;
}

namespace {

MersenneTwister python_twister(std::uint64_t seed) noexcept {
  const std::array<std::uint32_t, 2> key = {static_cast<std::uint32_t>(seed),
                                            static_cast<std::uint32_t>(seed >> 32)};
  return MersenneTwister(std::span(key).first(key[1] == 0 ? 1 : 2));
}

}  // namespace

PythonRandom::PythonRandom(std::uint64_t seed) noexcept : twister_(python_twister(seed)) {}

std::uint32_t PythonRandom::below(std::uint32_t bound) noexcept {
  const int width = std::bit_width(bound);
  std::uint32_t drawn = bits(width);
  while (drawn >= bound) drawn = bits(width);
  return drawn;
}

std::uint32_t NumpyRandom::at_most(std::uint32_t largest) noexcept {
  const std::uint32_t mask =
      static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(largest)) - 1);
  std::uint32_t drawn = twister_.next() & mask;
  while (drawn > largest) drawn = twister_.next() & mask;
  return drawn;
}

}  // namespace ringfeed
