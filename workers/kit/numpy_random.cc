#include "workers/kit/numpy_random.h"

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
  const auto turned = [this](std::size_t i, std::size_t next, std::size_t middle) {
    const std::uint32_t bits = (words_[i] & 0x80000000U) | (words_[next] & 0x7fffffffU);
    words_[i] = words_[middle] ^ bits >> 1 ^ ((0U - (bits & 1)) & 0x9908b0dfU);
  };
  // In pieces in which no index wraps round, so that a compiler can take several at a time.
  for (std::size_t i = 0; i < kWords - kMiddle; ++i) turned(i, i + 1, i + kMiddle);
  for (std::size_t i = kWords - kMiddle; i < kWords - 1; ++i) {
    turned(i, i + 1, i + kMiddle - kWords);
  }
  turned(kWords - 1, 0, kMiddle - 1);
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint32_t word = words_[i];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680U;
    word ^= word << 15 & 0xefc60000U;
    ready_[i] = word ^ word >> 18;
  }
  used_ = 0;
  ++turns_;
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

}  // namespace ringfeed
