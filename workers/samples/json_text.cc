#include "workers/samples/json_text.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif
#include <simdjson.h>

#include <array>
#include <bit>
#include <cstring>

namespace ringfeed {
namespace {

// Of a string from `from` on, as far as its end. simdjson 3.1 and later can also replace what is no
// Unicode.
template <typename Parser>
std::byte* by_simdjson(const Parser& parser, const char* from, std::byte* to) {
  const auto* text = reinterpret_cast<const std::uint8_t*>(from);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  if constexpr (requires { parser.parse_string(text, out, false); }) {
    return reinterpret_cast<std::byte*>(parser.parse_string(text, out, false));
  } else {
    return reinterpret_cast<std::byte*>(parser.parse_string(text, out));
  }
}

#ifdef __SSE2__
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

// simdjson copies as far as each backslash; this looks for those of 64 bytes at once.
std::byte* unescape_sse2(const SimdjsonParser& parser, std::string_view text, std::byte* to) {
  const char* from = text.data();  // what is not copied yet
  const char* const end = from + text.size();
  for (const char* chunk = from; chunk < end; chunk += 64) {
    std::uint64_t found = backslashes(chunk);
    // An escape may have begun in the chunk before.
    if (from > chunk) found &= ~std::uint64_t{0} << (from - chunk);
    while (found != 0) {
      const char* const at = chunk + std::countr_zero(found);
      if (at >= end) break;
      const char is = kEscapes[static_cast<std::uint8_t>(at[1])];
      to = copy_text(to, from, at);
      if (is == '\0') return by_simdjson(parser, at, to);
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
RF_AVX512 std::byte* unescape_avx512(const SimdjsonParser& parser, std::string_view text,
                                     std::byte* to) {
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
    if ((unknown & escaped) != 0) return by_simdjson(parser, text.data(), begin);
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

std::byte* unescape_by_simdjson(const SimdjsonParser& parser, std::string_view text,
                                std::byte* to) {
  return by_simdjson(parser, text.data(), to);
}

#ifdef __SSE2__
constexpr std::array<Unescaper, 3> kUnescapers = {
    {{"avx512", unescape_avx512}, {"sse2", unescape_sse2}, {"simdjson", unescape_by_simdjson}}};
#else
constexpr std::array<Unescaper, 1> kUnescapers = {{{"simdjson", unescape_by_simdjson}}};
bool has_avx512() noexcept { return true; }  // nothing to leave out
#endif

}  // namespace

std::span<const Unescaper> unescapers() noexcept {
  static const bool kAll = has_avx512();
  return std::span(kUnescapers).subspan(kAll ? 0 : 1);
}

}  // namespace ringfeed
