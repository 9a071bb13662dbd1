// SHA-256 (FIPS 180-4), to compare arrays with the digests that independent programs have printed.
// For tests: clear, not fast.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringfeed::testing {

namespace detail {

// The first 32 bits of the fractional part of a square or cube root of the small primes, as the
// standard defines its constants: computed with integers, so nothing is typed in that could be
// typed wrong.
constexpr std::uint64_t root_fraction_bits(std::uint64_t prime, int power) {
  // The largest r with r^power <= prime * 2^(32 * power); its low 32 bits are the fraction.
  __extension__ using Wide = unsigned __int128;
  std::uint64_t root = 0;
  for (int bit = 36; bit >= 0; --bit) {
    const std::uint64_t tried = root | (std::uint64_t{1} << bit);
    // For cubes tried^3 needs up to 111 bits, prime * 2^96 up to 105: both fit in 128.
    Wide value = tried;
    for (int i = 1; i < power; ++i) value *= tried;
    if (value <= (Wide{prime} << (32 * power))) root = tried;
  }
  return root & 0xFFFFFFFFU;
}

template <std::size_t N>
constexpr std::array<std::uint32_t, N> root_fractions(int power) {
  std::array<std::uint32_t, N> fractions{};
  std::uint64_t candidate = 2;
  for (std::size_t found = 0; found < N; ++candidate) {
    bool prime = true;
    for (std::uint64_t d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
    if (prime)
      fractions[found++] = static_cast<std::uint32_t>(root_fraction_bits(candidate, power));
  }
  return fractions;
}

inline constexpr std::array<std::uint32_t, 8> kStart = root_fractions<8>(2);
inline constexpr std::array<std::uint32_t, 64> kRounds = root_fractions<64>(3);
static_assert(kStart[0] == 0x6a09e667 && kRounds[0] == 0x428a2f98 && kRounds[63] == 0xc67178f2);

inline void sha256_block(std::array<std::uint32_t, 8>& state, const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | block[4 * i + b];
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15];
    const std::uint32_t b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  std::array<std::uint32_t, 8> s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const std::uint32_t first = s[7] +
                                (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                                choice + kRounds[i] + w[i];
    const std::uint32_t second =
        (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace detail

// The digest as 64 hexadecimal digits.
inline std::string sha256(std::span<const std::byte> message) {
  std::vector<std::uint8_t> padded;
  padded.reserve(message.size() + 72);
  for (const std::byte b : message) padded.push_back(std::to_integer<std::uint8_t>(b));
  padded.push_back(0x80);
  while (padded.size() % 64 != 56) padded.push_back(0);
  const std::uint64_t bits = 8 * static_cast<std::uint64_t>(message.size());
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded.push_back(static_cast<std::uint8_t>(bits >> shift & 0xFF));
  }
  std::array<std::uint32_t, 8> state = detail::kStart;
  for (std::size_t at = 0; at < padded.size(); at += 64) detail::sha256_block(state, &padded[at]);
  std::string text;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 0xF];
  }
  return text;
}

}  // namespace ringfeed::testing
