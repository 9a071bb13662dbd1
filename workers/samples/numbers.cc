#include "workers/samples/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace ringfeed {
namespace {

// Floats that C++ has no type for.
struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

template <typename T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

template <typename T>
double real_of(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return from_half(value.bits);
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    const std::uint32_t bits = std::uint32_t{value.bits} << 16;
    float wide = 0;
    std::memcpy(&wide, &bits, sizeof wide);
    return static_cast<double>(wide);
  } else {
    return static_cast<double>(value);
  }
}
template <typename T>
T real_as(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return {to_half(value)};
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return {to_bfloat16(value)};
  } else {
    return static_cast<T>(value);
  }
}

// Calls with a value of the type's C++ type; complex ones and what is no number have none.
template <typename Use>
bool with_type(SampleDtype dtype, Use&& use) {
  switch (dtype) {
    case SampleDtype::kBool:
      return use(bool{});
    case SampleDtype::kInt8:
      return use(std::int8_t{});
    case SampleDtype::kInt16:
      return use(std::int16_t{});
    case SampleDtype::kInt32:
      return use(std::int32_t{});
    case SampleDtype::kInt64:
      return use(std::int64_t{});
    case SampleDtype::kUint8:
      return use(std::uint8_t{});
    case SampleDtype::kUint16:
      return use(std::uint16_t{});
    case SampleDtype::kUint32:
      return use(std::uint32_t{});
    case SampleDtype::kUint64:
      return use(std::uint64_t{});
    case SampleDtype::kFloat16:
      return use(Half{});
    case SampleDtype::kBfloat16:
      return use(Bfloat{});
    case SampleDtype::kFloat32:
      return use(float{});
    case SampleDtype::kFloat64:
      return use(double{});
    default:
      return false;
  }
}

template <typename From, typename To>
constexpr bool kFits = std::is_same_v<From, To> || !std::is_same_v<To, bool>;

// False: it is no whole number, or one that the type has not.
template <typename T>
bool put_whole(double value, T& to) {
  // Both ends are powers of two, or 0, and so are doubles.
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double begin = std::is_signed_v<T> ? -end : 0;
  if (std::trunc(value) != value || value < begin || value >= end) return false;
  to = static_cast<T>(value);
  return true;
}

template <typename From, typename To>
constexpr bool kStays = std::is_same_v<From, To> || (!std::is_same_v<To, bool> &&
                                                     !(std::is_same_v<From, bool> && kIsFloat<To>));

template <bool kExact, typename From, typename To>
bool convert(std::span<const std::byte> numbers, std::vector<std::byte>& to) {
  if constexpr (!kFits<From, To> || (kExact && !kStays<From, To>)) {
    return false;
  } else {
    const std::size_t count = numbers.size() / sizeof(From);
    to.resize(count * sizeof(To));
    for (std::size_t i = 0; i < count; ++i) {
      From from;
      if constexpr (std::is_same_v<From, bool>) {
        from = numbers[i] != std::byte{0};
      } else {
        std::memcpy(&from, numbers.data() + i * sizeof from, sizeof from);
      }
      To out;
      if constexpr (std::is_same_v<From, To>) {
        out = from;
      } else if constexpr (kIsFloat<To>) {
        const double value = real_of(from);
        out = real_as<To>(value);
        if (std::isinf(real_of(out)) && !std::isinf(value)) return false;
        if constexpr (kExact && !kIsFloat<From>) {
          From back{};
          if (!put_whole(real_of(out), back) || back != from) return false;
        }
      } else if constexpr (std::is_same_v<From, bool>) {
        out = static_cast<To>(from ? 1 : 0);
      } else if constexpr (kIsFloat<From>) {
        if (!put_whole(real_of(from), out)) return false;
      } else {
        if (!std::in_range<To>(from)) return false;
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number and no character
        out = static_cast<To>(from);
      }
      std::memcpy(to.data() + i * sizeof out, &out, sizeof out);
    }
    return true;
  }
}

}  // namespace

std::uint16_t to_half(double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::abs(value);
  if (std::isnan(value)) return 0x7e00;
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  int exponent = 0;
  static_cast<void>(std::frexp(magnitude, &exponent));
  const int step = std::max(exponent - 11, -24);  // of the last bit
  const double units = std::nearbyint(std::ldexp(magnitude, -step));
  const double rounded = std::ldexp(units, step);
  if (rounded == 0) return sign;
  static_cast<void>(std::frexp(rounded, &exponent));
  if (exponent < -13)
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 24)));
  const int mantissa = static_cast<int>(std::ldexp(rounded, 11 - exponent)) - 1024;
  return static_cast<std::uint16_t>(sign | (exponent + 14) << 10 | mantissa);
}

std::uint16_t to_bfloat16(double value) {
  const auto narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof bits);
  if (std::isnan(narrow)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024, exponent - 25);
}

bool can_become(SampleDtype from, SampleDtype to) noexcept {
  if (from == to) return true;
  return with_type(from, [&](auto is) {
    return with_type(to, [](auto wanted) { return kFits<decltype(is), decltype(wanted)>; });
  });
}

namespace {

template <bool kExact>
bool convert_all(std::span<const std::byte> numbers, SampleDtype from, SampleDtype dtype,
                 std::vector<std::byte>& to) {
  to.clear();
  if (from == dtype) {
    to.assign(numbers.begin(), numbers.end());
    return true;
  }
  return with_type(from, [&](auto is) {
    return with_type(dtype, [&](auto wanted) {
      return convert<kExact, decltype(is), decltype(wanted)>(numbers, to);
    });
  });
}

}  // namespace

bool convert_numbers(std::span<const std::byte> numbers, SampleDtype from, SampleDtype dtype,
                     std::vector<std::byte>& to) {
  return convert_all<false>(numbers, from, dtype, to);
}

bool can_stay(SampleDtype from, SampleDtype to) noexcept {
  return with_type(from, [&](auto is) {
    return with_type(to, [](auto wanted) { return kStays<decltype(is), decltype(wanted)>; });
  });
}

bool convert_exactly(std::span<const std::byte> numbers, SampleDtype from, SampleDtype dtype,
                     std::vector<std::byte>& to) {
  return convert_all<true>(numbers, from, dtype, to);
}

}  // namespace ringfeed
