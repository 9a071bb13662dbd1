#include "workers/samples/json_text.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <array>
#include <bit>
#include <cstring>

namespace ringfeed {
namespace {

constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> of{};
  of['"'] = '"';
  of['\\'] = '\\';
  of['/'] = '/';
  of['b'] = '\b';
  of['f'] = '\f';
  of['n'] = '\n';
  of['r'] = '\r';
  of['t'] = '\t';
  return of;
}();

constexpr std::array<std::uint8_t, 256> kHexDigits = [] {
  std::array<std::uint8_t, 256> of{};
  for (std::uint8_t& digit : of) digit = 0xff;
  for (std::uint8_t i = 0; i < 10; ++i) of['0' + i] = i;
  for (std::uint8_t i = 0; i < 6; ++i) {
    of['a' + i] = static_cast<std::uint8_t>(10 + i);
    of['A' + i] = static_cast<std::uint8_t>(10 + i);
  }
  return of;
}();

// Four hexadecimal digits; beyond 16 bits: they are none. Where a text ends there is a quote, which
// is none either.
std::uint32_t hex4(const char* at) noexcept {
  std::uint32_t code = 0;
  std::uint32_t wrong = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint8_t digit = kHexDigits[static_cast<std::uint8_t>(at[i])];
    wrong |= digit;
    code = code << 4 | digit;
  }
  return wrong > 0xf ? ~std::uint32_t{0} : code;
}

// Writes the letter of the escape "\uXXXX" at `at`, or of two of them that are a pair, and gives
// its end; `at` becomes what is behind. nullptr: it is none, or half of a pair and kHalves does not
// say that these are taken.
template <bool kHalves>
std::byte* put_letter(const char*& at, std::byte* to) noexcept {
  std::uint32_t code = hex4(at + 2);
  if (code > 0xffff) return nullptr;
  at += 6;
  if (code - 0xd800 < 0x800) {
    const std::uint32_t second = code < 0xdc00 && at[0] == '\\' && at[1] == 'u' ? hex4(at + 2) : 0;
    if (second - 0xdc00 < 0x400) {
      code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
      at += 6;
    } else if constexpr (!kHalves) {
      return nullptr;
    }
  }
  const auto put = [&](std::uint32_t byte) { *to++ = static_cast<std::byte>(byte); };
  if (code < 0x80) {
    put(code);
    return to;
  }
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 63));
    }
    put(0x80 | (code >> 6 & 63));
  }
  put(0x80 | (code & 63));
  return to;
}

// From backslash to backslash.
template <bool kHalves>
std::byte* unescape_plainly(std::string_view text, std::byte* to) noexcept {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const auto left = static_cast<std::size_t>(end - at);
    const void* const found = std::memchr(at, '\\', left);
    const std::size_t bytes =
        found == nullptr ? left : static_cast<std::size_t>(static_cast<const char*>(found) - at);
    std::memcpy(to, at, bytes);
    to += bytes;
    at += bytes;
    if (found == nullptr) break;
    if (at[1] == 'u') {
      to = put_letter<kHalves>(at, to);
      if (to == nullptr) return nullptr;
      continue;
    }
    const char is = kEscapes[static_cast<std::uint8_t>(at[1])];
    if (is == '\0') return nullptr;
    *to++ = static_cast<std::byte>(is);
    at += 2;
  }
  return to;
}

#ifdef __SSE2__
// Bit i: byte i is a backslash.
std::uint64_t backslashes(const char* at) {
  const __m128i sign = _mm_set1_epi8('\\');
  std::uint64_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16 * i));
    bits |= static_cast<std::uint64_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(some, sign))) << (16 * i);
  }
  return bits;
}

// Writes up to 32 bytes more than there are, and reads so many.
[[gnu::always_inline]] inline std::byte* copy_text(std::byte* to, const char* from,
                                                   const char* end) {
  const std::size_t bytes = static_cast<std::size_t>(end - from);
  std::memcpy(to, from, 32);
  for (std::size_t at = 32; at < bytes; at += 32) std::memcpy(to + at, from + at, 32);
  return to + bytes;
}

// Looks for the backslashes of 64 bytes at once.
std::byte* unescape_sse2(std::string_view text, std::byte* to) {
  const char* from = text.data();  // what is not copied yet
  const char* const end = from + text.size();
  for (const char* chunk = from; chunk < end; chunk += 64) {
    std::uint64_t found = backslashes(chunk);
    // An escape may have begun in the chunk before.
    if (from > chunk) found &= ~std::uint64_t{0} << (from - chunk);
    while (found != 0) {
      const char* const at = chunk + std::countr_zero(found);
      if (at >= end) break;
      to = copy_text(to, from, at);
      from = at;
      if (at[1] == 'u') {
        to = put_letter<false>(from, to);
        if (to == nullptr) return nullptr;
        found = from - chunk < 64 ? found & ~std::uint64_t{0} << (from - chunk) : 0;
        continue;
      }
      const char is = kEscapes[static_cast<std::uint8_t>(at[1])];
      if (is == '\0') return nullptr;
      *to++ = static_cast<std::byte>(is);
      from = at + 2;
      found &= found - 1;
      if (at[1] == '\\') found &= found - 1;  // in the next chunk: it is left out there
    }
  }
  return copy_text(to, from, end);
}
// By code point, two registers of 64.
alignas(64) constexpr std::array<char, 128> kEscapesOfAscii = [] {
  std::array<char, 128> of{};
  for (std::size_t i = 0; i < of.size(); ++i) of[i] = kEscapes[i];
  return of;
}();

#define RF_AVX512 [[gnu::target("avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt")]]

// The same without a branch for each backslash: those that begin an escape are squeezed out of the
// 64 bytes, and what stands behind them is exchanged.
// What has other escapes is left to the one above.
RF_AVX512 std::byte* unescape_avx512(std::string_view text, std::byte* to) {
  const __m512i low = _mm512_load_si512(kEscapesOfAscii.data());
  const __m512i high = _mm512_load_si512(kEscapesOfAscii.data() + 64);
  const __m512i sign = _mm512_set1_epi8('\\');
  std::byte* const begin = to;
  std::uint64_t carry = 0;  // the first byte of the next 64 is escaped
  for (std::size_t at = 0; at < text.size(); at += 64) {
    const std::size_t left = text.size() - at;
    const std::uint64_t lanes = left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
    __m512i chunk = _mm512_maskz_loadu_epi8(lanes, text.data() + at);
    const std::uint64_t signs = _mm512_cmpeq_epi8_mask(chunk, sign);
    if ((signs | carry) == 0) {
      _mm512_storeu_si512(to, chunk);
      to += left >= 64 ? 64 : left;
      continue;
    }
    // Of a row of backslashes every second one is escaped (simdjson, "find_escaped").
    constexpr std::uint64_t kEven = 0x5555555555555555;
    const std::uint64_t begins = signs & ~carry;
    const std::uint64_t follows = begins << 1 | carry;
    const std::uint64_t odd = begins & ~kEven & ~follows;
    unsigned long long rows = 0;
    carry = __builtin_add_overflow(odd, begins, &rows) ? 1 : 0;
    const std::uint64_t escaped = (kEven ^ (static_cast<std::uint64_t>(rows) << 1)) & follows;
    const __m512i exchanged = _mm512_permutex2var_epi8(low, chunk, high);
    const std::uint64_t unknown =
        _mm512_testn_epi8_mask(exchanged, exchanged) | _mm512_movepi8_mask(chunk);
    if ((unknown & escaped) != 0) return unescape_sse2(text, begin);
    chunk = _mm512_mask_mov_epi8(chunk, escaped, exchanged);
    const std::uint64_t kept = lanes & ~(signs & ~escaped);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(kept, chunk));
    to += std::popcount(kept);
  }
  return to;
}

bool has_avx512() noexcept {
  return __builtin_cpu_supports("avx512vbmi2") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}

#endif

#ifdef __SSE2__
constexpr std::array<Unescaper, 3> kUnescapers = {
    {{"avx512", unescape_avx512}, {"sse2", unescape_sse2}, {"plain", unescape_plainly<false>}}};
#else
constexpr std::array<Unescaper, 1> kUnescapers = {{{"plain", unescape_plainly<false>}}};
bool has_avx512() noexcept { return true; }  // nothing to leave out
#endif

}  // namespace

std::byte* unescape_halves(std::string_view text, std::byte* to) noexcept {
  return unescape_plainly<true>(text, to);
}

std::span<const Unescaper> unescapers() noexcept {
  static const bool kAll = has_avx512();
  return std::span(kUnescapers).subspan(kAll ? 0 : 1);
}

}  // namespace ringfeed
