#include "workers/lc0/plane_expansion.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfeed::formats {

namespace {

constexpr std::size_t kLineBytes = 64;
static_assert(kBitPlaneBytes % kLineBytes == 0 && 8 * kMadePlanes == kLineBytes);

// A rank of a plane (one byte, its highest bit file a) as eight elements, all ones where the bit is
// set: at home in L1.
template <typename Bits>
struct alignas(8 * sizeof(Bits)) Rank {
  Bits file[8];
};
template <typename Bits>
constexpr std::array<Rank<Bits>, 256> kRanks = [] {
  std::array<Rank<Bits>, 256> ranks{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    for (std::size_t file = 0; file < 8; ++file) {
      ranks[bits].file[file] =
          ((bits >> (7 - file)) & 1) != 0 ? std::numeric_limits<Bits>::max() : Bits{0};
    }
  }
  return ranks;
}();

template <typename Bits>
const Rank<Bits>& rank_of(const std::byte* planes, std::size_t rank) noexcept {
  return kRanks<Bits>[std::to_integer<std::size_t>(planes[rank])];
}

template <typename Bits>
void expand_portable(const std::byte* planes, Bits one, const MadePlanes<Bits>& made,
                     Bits* row) noexcept {
  const auto put = [&row](const Rank<Bits>& rank, Bits value) {
    for (const Bits file : rank.file) *row++ = file & value;
  };
  for (std::size_t rank = 0; rank < kBitPlaneBytes; ++rank) put(rank_of<Bits>(planes, rank), one);
  const auto* squares = reinterpret_cast<const std::byte*>(made.squares);
  for (std::size_t rank = 0; rank < 8 * kMadePlanes; ++rank) {
    put(rank_of<Bits>(squares, rank), made.values[rank / 8]);
  }
}

void stream_portable(const std::byte* from, std::size_t bytes, std::byte* to) noexcept {
  std::memcpy(to, from, bytes);
}

#if defined(__x86_64__)

// A piece of memory that begins and ends inside lines that it shares with its neighbours: those two
// parts are written with ordinary stores, and only the whole lines between them are streamed.
struct Pieces {
  std::size_t head_bytes;
  std::size_t lines;
  std::size_t tail_bytes;
};
Pieces pieces_of(const std::byte* at, std::size_t bytes) noexcept {
  const std::size_t head =
      std::min<std::size_t>((-reinterpret_cast<std::uintptr_t>(at)) % kLineBytes, bytes);
  const std::size_t lines = (bytes - head) / kLineBytes;
  return {.head_bytes = head, .lines = lines, .tail_bytes = bytes - head - lines * kLineBytes};
}

// One of the 112 planes: its eight ranks, and what a square has whose bit is set.
template <typename Bits>
struct Plane {
  const std::byte* ranks;
  Bits bits;
};
template <typename Bits>
__attribute__((always_inline)) inline Plane<Bits> plane_of(const std::byte* planes, Bits one,
                                                           const MadePlanes<Bits>& made,
                                                           std::size_t plane) noexcept {
  if (plane < kBitPlanes) return {planes + 8 * plane, one};
  const std::size_t at = plane - kBitPlanes;
  return {reinterpret_cast<const std::byte*>(&made.squares[at]), made.values[at]};
}

__attribute__((target("avx2"))) void expand32_avx2(const std::byte* planes, std::uint32_t one,
                                                   const MadePlanes<std::uint32_t>& made,
                                                   std::uint32_t* row) noexcept {
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane) {
    const auto [ranks, bits] = plane_of(planes, one, made, plane);
    const __m256i value = _mm256_set1_epi32(static_cast<int>(bits));
    for (std::size_t rank = 0; rank < 8; ++rank, row += 8) {
      const __m256i files = _mm256_load_si256(
          reinterpret_cast<const __m256i*>(rank_of<std::uint32_t>(ranks, rank).file));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(row), _mm256_and_si256(files, value));
    }
  }
}

__attribute__((target("avx2"))) void expand16_avx2(const std::byte* planes, std::uint16_t one,
                                                   const MadePlanes<std::uint16_t>& made,
                                                   std::uint16_t* row) noexcept {
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane) {
    const auto [ranks, bits] = plane_of(planes, one, made, plane);
    const __m128i value = _mm_set1_epi16(static_cast<short>(bits));
    for (std::size_t rank = 0; rank < 8; ++rank, row += 8) {
      const __m128i files = _mm_load_si128(
          reinterpret_cast<const __m128i*>(rank_of<std::uint16_t>(ranks, rank).file));
      _mm_stream_si128(reinterpret_cast<__m128i*>(row), _mm_and_si128(files, value));
    }
  }
}

__attribute__((target("avx2"))) void expand8_avx2(const std::byte* planes, std::uint8_t one,
                                                  const MadePlanes<std::uint8_t>& made,
                                                  std::uint8_t* row) noexcept {
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane) {
    const auto [ranks, bits] = plane_of(planes, one, made, plane);
    const __m128i value = _mm_set1_epi8(static_cast<char>(bits));
    for (std::size_t rank = 0; rank < 8; rank += 2, row += 16) {
      const __m128i low = _mm_loadl_epi64(
          reinterpret_cast<const __m128i*>(rank_of<std::uint8_t>(ranks, rank).file));
      const __m128i high = _mm_loadl_epi64(
          reinterpret_cast<const __m128i*>(rank_of<std::uint8_t>(ranks, rank + 1).file));
      _mm_stream_si128(reinterpret_cast<__m128i*>(row),
                       _mm_and_si128(_mm_unpacklo_epi64(low, high), value));
    }
  }
}

__attribute__((target("avx2"))) void stream_avx2(const std::byte* from, std::size_t bytes,
                                                 std::byte* to) noexcept {
  const Pieces pieces = pieces_of(to, bytes);
  std::memcpy(to, from, pieces.head_bytes);
  to += pieces.head_bytes;
  from += pieces.head_bytes;
  for (std::size_t line = 0; line < pieces.lines; ++line, to += 64, from += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
  }
  std::memcpy(to, from, pieces.tail_bytes);
}

#define RF_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

// A masked move takes file a from the lowest bit of its mask, a plane has it in the highest bit of
// each byte: turns the bits of every byte around, a nibble at a time, 64 bytes at once.
RF_AVX512 __attribute__((always_inline)) inline __m512i turned_bytes(const void* from) noexcept {
  // The masked form, all lanes on: GCC 12 warns of an uninitialised operand in the plain one.
  const __m512i reversed_nibbles = _mm512_maskz_broadcast_i32x4(
      0xFFFF, _mm_setr_epi8(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15));
  const __m512i low_nibble = _mm512_set1_epi8(0x0F);
  const __m512i high_nibble = _mm512_set1_epi8(static_cast<char>(0xF0));
  const __m512i bytes = _mm512_loadu_si512(from);
  const __m512i low = _mm512_shuffle_epi8(reversed_nibbles, _mm512_and_si512(bytes, low_nibble));
  const __m512i high = _mm512_shuffle_epi8(
      reversed_nibbles, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_nibble));
  return _mm512_or_si512(_mm512_and_si512(_mm512_slli_epi16(low, 4), high_nibble), high);
}

// All 112 planes as masks whose lowest bit is square a1.
struct alignas(64) PlaneMasks {
  std::uint64_t plane[kInputPlanes];
};
RF_AVX512 __attribute__((always_inline)) inline void turn(const std::byte* planes,
                                                          const std::uint64_t* made,
                                                          PlaneMasks& masks) noexcept {
  for (std::size_t at = 0; at < kBitPlaneBytes; at += 64) {
    _mm512_store_si512(masks.plane + at / 8, turned_bytes(planes + at));
  }
  _mm512_store_si512(masks.plane + kBitPlanes, turned_bytes(made));
}

RF_AVX512 void expand32_avx512(const std::byte* planes, std::uint32_t one,
                               const MadePlanes<std::uint32_t>& made, std::uint32_t* row) noexcept {
  PlaneMasks masks;
  turn(planes, made.squares, masks);
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane) {
    const __m512i value = _mm512_set1_epi32(
        static_cast<int>(plane < kBitPlanes ? one : made.values[plane - kBitPlanes]));
    for (std::uint64_t part = 0, mask = masks.plane[plane]; part < 4;
         ++part, mask >>= 16, row += 16) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(row),
                          _mm512_maskz_mov_epi32(static_cast<__mmask16>(mask), value));
    }
  }
}

RF_AVX512 void expand16_avx512(const std::byte* planes, std::uint16_t one,
                               const MadePlanes<std::uint16_t>& made, std::uint16_t* row) noexcept {
  PlaneMasks masks;
  turn(planes, made.squares, masks);
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane, row += 64) {
    const __m512i value = _mm512_set1_epi16(
        static_cast<short>(plane < kBitPlanes ? one : made.values[plane - kBitPlanes]));
    const std::uint64_t mask = masks.plane[plane];
    _mm512_stream_si512(reinterpret_cast<__m512i*>(row),
                        _mm512_maskz_mov_epi16(static_cast<__mmask32>(mask), value));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(row + 32),
                        _mm512_maskz_mov_epi16(static_cast<__mmask32>(mask >> 32), value));
  }
}

RF_AVX512 void expand8_avx512(const std::byte* planes, std::uint8_t one,
                              const MadePlanes<std::uint8_t>& made, std::uint8_t* row) noexcept {
  PlaneMasks masks;
  turn(planes, made.squares, masks);
  for (std::size_t plane = 0; plane < kInputPlanes; ++plane, row += 64) {
    const __m512i value = _mm512_set1_epi8(
        static_cast<char>(plane < kBitPlanes ? one : made.values[plane - kBitPlanes]));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(row),
                        _mm512_maskz_mov_epi8(masks.plane[plane], value));
  }
}

RF_AVX512 void stream_avx512(const std::byte* from, std::size_t bytes, std::byte* to) noexcept {
  const Pieces pieces = pieces_of(to, bytes);
  std::memcpy(to, from, pieces.head_bytes);
  to += pieces.head_bytes;
  from += pieces.head_bytes;
  for (std::size_t line = 0; line < pieces.lines; ++line, to += 64, from += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
  std::memcpy(to, from, pieces.tail_bytes);
}
#endif

}  // namespace

PlaneExpansion plane_expansion(Kernel kernel) noexcept {
  switch (kernel) {
#if defined(__x86_64__)
    case Kernel::kAvx512:
      return {expand32_avx512, expand16_avx512, expand8_avx512, stream_avx512};
    case Kernel::kAvx2:
      return {expand32_avx2, expand16_avx2, expand8_avx2, stream_avx2};
#endif
    default:
      return {expand_portable<std::uint32_t>, expand_portable<std::uint16_t>,
              expand_portable<std::uint8_t>, stream_portable};
  }
}

// By hand and not by the compiler's _Float16: the same bits from every machine and compiler.
std::uint16_t float16_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  // What is kept of a number of 24 bits, and what decides about rounding; below 2^-14 fewer are
  // kept.
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 101) return sign;  // below 2^-26: nearer to 0 than to the smallest one
  const std::uint32_t dropped = exponent < 113 ? 126 - exponent : 13;
  const std::uint32_t significand = (magnitude & 0x7fffffU) | (exponent == 0 ? 0U : 0x800000U);
  const std::uint32_t kept = significand >> dropped;
  const std::uint32_t rest = significand & ((1U << dropped) - 1);
  const std::uint32_t half = 1U << (dropped - 1);
  const std::uint32_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  // Above 2^-14 the leading bit of `kept` counts as one of the exponent; a carry does so anyway.
  const std::uint32_t base = exponent < 113 ? 0 : (exponent - 113) << 10;
  return static_cast<std::uint16_t>(sign + base + kept + up);
}

std::uint16_t bfloat16_bits(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace ringfeed::formats
