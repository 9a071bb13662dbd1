#include "supervisor/peek/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>

namespace ringfeed::peek {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

double value_of(Half half) {
  const unsigned exponent = half.bits >> 10 & 0x1f;
  const unsigned fraction = half.bits & 0x3ff;
  const double sign = (half.bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
}
double value_of(Brain brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain.bits) << 16);
}
template <typename T>
double value_of(T value) {
  return static_cast<double>(value);
}

template <typename T>
std::string text_of(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "1" : "0";
  } else if constexpr (std::is_integral_v<T>) {
    return fmt::to_string(+value);
  } else {
    return fmt::format("{:.5g}", value_of(value));
  }
}

template <typename T>
T item(const ObservedArray& array, std::uint64_t i) {
  T value;
  std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Two passes: the squares of large numbers that differ little would lose what they differ in.
template <typename T>
void take_range(const ObservedArray& array, Summary& summary) {
  std::uint64_t finite = 0;
  double sum = 0;
  T min{};
  T max{};
  for (std::uint64_t i = 0; i < summary.items; ++i) {
    const T one = item<T>(array, i);
    const double value = value_of(one);
    if (std::isnan(value)) {
      ++summary.nans;
    } else if (std::isinf(value)) {
      ++summary.infinities;
    } else {
      if (value == 0) ++summary.zeros;
      const auto below = [](T left, T right) {
        if constexpr (std::is_integral_v<T>) {
          return left < right;  // exact, also where a double is not
        } else {
          return value_of(left) < value_of(right);
        }
      };
      if (finite == 0 || below(one, min)) min = one;
      if (finite == 0 || below(max, one)) max = one;
      sum += value;
      ++finite;
    }
  }
  if (finite == 0) return;
  const double mean = sum / static_cast<double>(finite);
  double squares = 0;
  for (std::uint64_t i = 0; i < summary.items; ++i) {
    const double value = value_of(item<T>(array, i));
    if (std::isfinite(value)) squares += (value - mean) * (value - mean);
  }
  summary.range = {value_of(min), value_of(max),
                   mean,          std::sqrt(squares / static_cast<double>(finite)),
                   text_of(min),  text_of(max)};
}

template <typename T>
void take(const ObservedArray& array, std::size_t first, Summary& summary) {
  take_range<T>(array, summary);
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(first, summary.items); ++i) {
    summary.first.push_back(text_of(item<T>(array, i)));
  }
}

template <typename T>
void take_complex(const ObservedArray& array, std::size_t first, Summary& summary) {
  for (std::uint64_t i = 0; i < summary.items; ++i) {
    const auto one = item<std::complex<T>>(array, i);
    if (std::isnan(one.real()) || std::isnan(one.imag())) {
      ++summary.nans;
    } else if (std::isinf(one.real()) || std::isinf(one.imag())) {
      ++summary.infinities;
    } else if (one == std::complex<T>()) {
      ++summary.zeros;
    }
    if (i < first) summary.first.push_back(fmt::format("{:.5g}{:+.5g}j", one.real(), one.imag()));
  }
}

}  // namespace

Summary summarise(const ObservedArray& array, std::size_t first) {
  struct Kind {
    std::string_view dtype;
    std::size_t bytes;
    void (*take)(const ObservedArray&, std::size_t, Summary&);
  };
  static constexpr Kind kKinds[] = {{"bool", 1, &take<std::uint8_t>},
                                    {"int8", 1, &take<std::int8_t>},
                                    {"int16", 2, &take<std::int16_t>},
                                    {"int32", 4, &take<std::int32_t>},
                                    {"int64", 8, &take<std::int64_t>},
                                    {"uint8", 1, &take<std::uint8_t>},
                                    {"uint16", 2, &take<std::uint16_t>},
                                    {"uint32", 4, &take<std::uint32_t>},
                                    {"uint64", 8, &take<std::uint64_t>},
                                    {"float16", 2, &take<Half>},
                                    {"bfloat16", 2, &take<Brain>},
                                    {"float32", 4, &take<float>},
                                    {"float64", 8, &take<double>},
                                    {"complex64", 8, &take_complex<float>},
                                    {"complex128", 16, &take_complex<double>}};
  Summary summary;
  for (const Kind& kind : kKinds) {
    if (kind.dtype != array.dtype || kind.bytes != array.item_bytes) continue;
    summary.items = array.bytes.size() / kind.bytes;
    kind.take(array, first, summary);
    return summary;
  }
  // A type of a later version: its bytes alone can be counted.
  summary.items = array.bytes.size() / std::max<std::uint64_t>(array.item_bytes, 1);
  return summary;
}

}  // namespace ringfeed::peek
