#include "ringfeed/shm/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ringfeed::shm {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // reflected

using Table = std::array<std::uint32_t, 256>;

// kTables[k][b]: what byte b does to the checksum when k bytes follow it.
constexpr std::array<Table, 8> kTables = [] {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}();

std::uint64_t load64(const std::uint8_t* at) noexcept {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::uint32_t update_portable(std::uint32_t crc, const std::uint8_t* at,
                              std::size_t count) noexcept {
  for (; count >= 8; count -= 8, at += 8) {
    const std::uint64_t word = load64(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; count > 0; --count, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)
// The instruction takes three cycles and one can begin in each: three stretches of memory at a
// time, whose checksums are put together by moving the earlier ones over the bytes of the later.
constexpr std::size_t kStretch = 4096;

// kOver[i][b]: byte i of a checksum, when it is b, after kStretch zero bytes.
constexpr std::array<Table, 4> kOver = [] {
  // Moving is linear, so 32 single bits tell all.
  std::array<std::uint32_t, 32> bits{};
  for (std::size_t i = 0; i < bits.size(); ++i) {
    std::uint32_t crc = 1U << i;
    for (std::size_t byte = 0; byte < kStretch; ++byte) {
      crc = (crc >> 8) ^ kTables[0][crc & 0xff];
    }
    bits[i] = crc;
  }
  std::array<Table, 4> tables{};
  for (std::size_t i = 0; i < tables.size(); ++i) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) tables[i][byte] ^= bits[8 * i + bit];
      }
    }
  }
  return tables;
}();

std::uint32_t over_stretch(std::uint32_t crc) noexcept {
  return kOver[0][crc & 0xff] ^ kOver[1][crc >> 8 & 0xff] ^ kOver[2][crc >> 16 & 0xff] ^
         kOver[3][crc >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t update_sse42(std::uint32_t crc,
                                                             const std::uint8_t* at,
                                                             std::size_t count) noexcept {
  for (; count >= 3 * kStretch; count -= 3 * kStretch, at += 3 * kStretch) {
    std::uint64_t first = crc;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kStretch; i += 8) {
      first = _mm_crc32_u64(first, load64(at + i));
      second = _mm_crc32_u64(second, load64(at + kStretch + i));
      third = _mm_crc32_u64(third, load64(at + 2 * kStretch + i));
    }
    crc = over_stretch(over_stretch(static_cast<std::uint32_t>(first)) ^
                       static_cast<std::uint32_t>(second)) ^
          static_cast<std::uint32_t>(third);
  }
  std::uint64_t wide = crc;
  for (; count >= 8; count -= 8, at += 8) wide = _mm_crc32_u64(wide, load64(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; count > 0; --count, ++at) crc = _mm_crc32_u8(crc, *at);
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* bytes, std::size_t count) noexcept {
  return ~update_portable(~0U, static_cast<const std::uint8_t*>(bytes), count);
}

std::uint32_t crc32c(const void* bytes, std::size_t count) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    return ~update_sse42(~0U, static_cast<const std::uint8_t*>(bytes), count);
  }
#endif
  return crc32c_portable(bytes, count);
}

}  // namespace ringfeed::shm
