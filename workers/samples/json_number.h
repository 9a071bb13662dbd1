// Numbers of JSON as text, and as elements of a type.
#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "ringfeed/worker/sample.h"
#include "workers/samples/numbers.h"

namespace ringfeed::json {

inline constexpr std::array<bool, 256> chars(std::string_view of) {
  std::array<bool, 256> is{};
  for (const char c : of) is[static_cast<std::uint8_t>(c)] = true;
  return is;
}
// Behind a number, true, false or null.
inline constexpr std::array<bool, 256> kEndsScalar = chars(",]} \t\r\n");
inline constexpr std::array<bool, 256> kDigits = chars("0123456789");

inline bool ends_scalar(char c) { return kEndsScalar[static_cast<std::uint8_t>(c)]; }
inline bool is_digit(char c) { return kDigits[static_cast<std::uint8_t>(c)]; }

inline constexpr std::array<std::uint64_t, 9> kWholePowers = {
    1, 10, 100, 1'000, 10'000, 100'000, 1'000'000, 10'000'000, 100'000'000};

// Up to eight digits at once, and how many there were: the bytes of a word that are none have their
// highest bit set. The digits are added up as in Lemire, "Quickly parsing eight digits".
[[gnu::always_inline]] inline std::size_t add_digits(const char* at, std::uint64_t& number) {
  std::uint64_t text = 0;
  std::memcpy(&text, at, 8);
  text ^= 0x3030303030303030;
  const std::uint64_t others =
      (((text & 0x7f7f7f7f7f7f7f7f) + 0x7676767676767676) | text) & 0x8080808080808080;
  const auto count = static_cast<std::size_t>(others == 0 ? 8 : std::countr_zero(others) / 8);
  if (count == 0) return 0;
  // In front of them stand zeros.
  text <<= 64 - 8 * count;
  text = (text * 10) + (text >> 8);
  constexpr std::uint64_t kPairs = 0x000000ff000000ff;
  text =
      ((text & kPairs) * 0x000f424000000064 + ((text >> 16) & kPairs) * 0x0000271000000001) >> 32;
  number = number * kWholePowers[count] + static_cast<std::uint32_t>(text);
  return count;
}
[[gnu::always_inline]] inline const char* read_digits(const char* at, std::uint64_t& number) {
  for (;;) {
    const std::size_t count = add_digits(at, number);
    at += count;
    if (count != 8) return at;
  }
}

struct Number {
  bool is_whole;       // and fits int64
  std::int64_t whole;  // if so
  double real;         // in any case
};

inline constexpr std::array<double, 23> kPowers = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// A number of JSON; false: it is none, or one that takes more to read (read_any_number). Behind it
// 64 bytes are readable.
[[gnu::always_inline]] inline bool read_number(const char* const begin, Number& number) {
  const char* at = begin;
  const bool negative = *at == '-';
  at += negative ? 1 : 0;
  const char* const first = at;
  std::uint64_t digits = 0;
  if (is_digit(*at) && !is_digit(at[1])) {
    digits = static_cast<std::uint64_t>(*at++ - '0');
  } else {
    at = read_digits(at, digits);
  }
  std::ptrdiff_t count = at - first;
  if (count == 0 || (*first == '0' && count != 1)) return false;
  if (ends_scalar(*at)) {
    // 19 digits fit 64 bits.
    if (count > 19) return false;
    constexpr std::uint64_t kMost = 1ULL << 63;
    if (digits > kMost - (negative ? 0 : 1)) return false;
    number.is_whole = true;
    number.whole = static_cast<std::int64_t>(negative ? 0 - digits : digits);
    number.real = static_cast<double>(number.whole);
    return true;
  }
  std::int64_t exponent = 0;
  if (*at == '.') {
    const char* const behind = ++at;
    at = read_digits(at, digits);
    if (at == behind) return false;
    exponent = behind - at;
    count += at - behind;
  }
  if (*at == 'e' || *at == 'E') {
    ++at;
    const bool below = *at == '-';
    if (*at == '-' || *at == '+') ++at;
    const char* const from = at;
    std::int64_t power = 0;
    for (; is_digit(*at) && at - from < 6; ++at) power = power * 10 + (*at - '0');
    if (at == from) return false;
    exponent += below ? -power : power;
  }
  if (!ends_scalar(*at)) return false;
  number.is_whole = false;
  // Both are exact, so that what comes of them is rounded once (Clinger).
  constexpr std::uint64_t kExact = 1ULL << 53;
  if (count <= 19 && digits <= kExact && exponent >= -22 && exponent <= 22) {
    const auto value = static_cast<double>(digits);
    const double real = exponent < 0 ? value / kPowers[static_cast<std::size_t>(-exponent)]
                                     : value * kPowers[static_cast<std::size_t>(exponent)];
    // Without a branch: nobody can tell what sign comes next.
    number.real = std::bit_cast<double>(std::bit_cast<std::uint64_t>(real) |
                                        static_cast<std::uint64_t>(negative) << 63);
    return true;
  }
  const auto [end, error] = std::from_chars(begin, at, number.real);
  return error == std::errc() && end == at;
}

inline bool is_word(const char* at, std::string_view word) {
  return std::memcmp(at, word.data(), word.size()) == 0 && ends_scalar(at[word.size()]);
}

// Behind this, a double does not have each whole number.
inline constexpr double kWholeMax = 9007199254740992;

template <typename T>
bool put_whole(const Number& number, std::byte* to) {
  std::int64_t whole = number.whole;
  if (!number.is_whole) {
    if (!(std::abs(number.real) < kWholeMax) || std::trunc(number.real) != number.real) {
      return false;
    }
    whole = static_cast<std::int64_t>(number.real);
  }
  if (!std::in_range<T>(whole)) return false;
  const auto value = static_cast<T>(whole);
  std::memcpy(to, &value, sizeof value);
  return true;
}
template <typename T>
bool put_real(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
  return true;
}
// What is finite stays so.
inline bool put_float(double real, std::byte* to) {
  const auto value = static_cast<float>(real);
  return (!std::isinf(value) || std::isinf(real)) && put_real(value, to);
}
inline bool put_half(std::uint16_t bits, std::uint16_t infinity, double real, std::byte* to) {
  return ((bits & 0x7fff) != infinity || std::isinf(real)) && put_real(bits, to);
}
// False: the type cannot hold it; whole numbers beyond kWholeMax that are written as others, too.
inline bool put_number(const Number& number, SampleDtype dtype, std::byte* to) {
  switch (dtype) {
    case SampleDtype::kInt8:
      return put_whole<std::int8_t>(number, to);
    case SampleDtype::kInt16:
      return put_whole<std::int16_t>(number, to);
    case SampleDtype::kInt32:
      return put_whole<std::int32_t>(number, to);
    case SampleDtype::kInt64:
      return put_whole<std::int64_t>(number, to);
    case SampleDtype::kUint8:
      return put_whole<std::uint8_t>(number, to);
    case SampleDtype::kUint16:
      return put_whole<std::uint16_t>(number, to);
    case SampleDtype::kUint32:
      return put_whole<std::uint32_t>(number, to);
    case SampleDtype::kUint64:
      return put_whole<std::uint64_t>(number, to);
    case SampleDtype::kFloat16:
      return put_half(to_half(number.real), 0x7c00, number.real, to);
    case SampleDtype::kBfloat16:
      return put_half(to_bfloat16(number.real), 0x7f80, number.real, to);
    case SampleDtype::kFloat32:
      return put_float(number.real, to);
    case SampleDtype::kFloat64:
      return put_real(number.real, to);
    default:
      return false;
  }
}

// ---- numbers of all kinds

struct AnyNumber {
  enum class Kind : std::uint8_t {
    kNone,      // it is no number
    kWhole,     // int64
    kLarge,     // a whole one that uint64 holds, and int64 does not
    kHuge,      // a whole one that neither holds
    kReal,      // any other
    kBeyond,    // one that float64 does not hold
    kNotFinite  // NaN, Infinity, -Infinity
  };
  Kind kind = Kind::kNone;
  Number number = {};       // whole: of kWhole; real: of all but kBeyond and huge ones beyond it
  std::uint64_t large = 0;  // of kLarge
};

// Of a text that ends with the number, blanks aside, and behind which 64 bytes are readable.
[[nodiscard]] AnyNumber read_any_number(std::string_view text);
// As put_number(). A whole number that is written with a fraction or a power is one where the
// double that is nearest to it is that number.
[[nodiscard]] bool put_any_number(const AnyNumber& number, std::string_view text, SampleDtype dtype,
                                  std::byte* to);

}  // namespace ringfeed::json
