#include "workers/samples/json_number.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace ringfeed::json {
namespace {

constexpr std::uint64_t kTen = 10;

// The parts of a number as JSON writes it: digits with a point in between or not, and a power.
struct Decimal {
  bool negative = false;
  bool is_whole = true;  // neither point nor power
  std::string_view digits = {};
  std::string_view fraction = {};
  std::int64_t power = 0;  // beyond +-10^9 it stays there
};

std::string_view take_digits(std::string_view& text) {
  const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}
bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<Decimal> taken_apart(std::string_view text) {
  Decimal decimal;
  decimal.negative = take(text, '-');
  decimal.digits = take_digits(text);
  if (decimal.digits.empty() || (decimal.digits.front() == '0' && decimal.digits.size() != 1)) {
    return std::nullopt;
  }
  if (take(text, '.')) {
    decimal.is_whole = false;
    decimal.fraction = take_digits(text);
    if (decimal.fraction.empty()) return std::nullopt;
  }
  if (take(text, 'e') || take(text, 'E')) {
    decimal.is_whole = false;
    const bool below = take(text, '-');
    if (!below) (void)take(text, '+');
    const std::string_view digits = take_digits(text);
    if (digits.empty()) return std::nullopt;
    constexpr std::int64_t kMost = 1'000'000'000;
    for (const char digit : digits) {
      decimal.power = std::min(kMost, decimal.power * 10 + (digit - '0'));
    }
    if (below) decimal.power = -decimal.power;
  }
  return text.empty() ? std::optional(decimal) : std::nullopt;
}

// The amount, if it is a whole number of 64 bits.
std::optional<std::uint64_t> whole_amount(const Decimal& decimal) {
  std::uint64_t amount = 0;
  // Digits from the first to the last that is not 0, and the power of ten that is left behind them.
  std::int64_t power = decimal.power + static_cast<std::int64_t>(decimal.digits.size());
  std::int64_t zeros = 0;
  const auto add = [&](char digit) {
    --power;
    if (digit == '0') {
      ++zeros;
      return true;
    }
    for (; amount != 0 && zeros != 0; --zeros) {
      if (__builtin_mul_overflow(amount, kTen, &amount)) return false;
    }
    zeros = 0;
    return !__builtin_mul_overflow(amount, kTen, &amount) &&
           !__builtin_add_overflow(amount, static_cast<std::uint64_t>(digit - '0'), &amount);
  };
  for (const std::string_view digits : {decimal.digits, decimal.fraction}) {
    if (!std::ranges::all_of(digits, add)) return std::nullopt;
  }
  if (amount == 0) return amount;
  power += zeros;
  if (power < 0) return std::nullopt;
  for (; power != 0; --power) {
    if (__builtin_mul_overflow(amount, kTen, &amount)) return std::nullopt;
  }
  return amount;
}

// Of a number that is out of the range of doubles: is it too large, and not too small?
bool is_beyond(const Decimal& decimal) {
  std::int64_t power = decimal.power + static_cast<std::int64_t>(decimal.digits.size());
  for (const std::string_view digits : {decimal.digits, decimal.fraction}) {
    for (const char digit : digits) {
      if (digit != '0') return power > 0;
      --power;
    }
  }
  return false;
}

template <typename T>
bool put_in_range(std::uint64_t amount, bool negative, std::byte* to) {
  T value{};
  if (negative) {
    constexpr std::uint64_t kLeast = std::uint64_t{1} << 63;
    if (amount > kLeast) return false;
    const auto whole = static_cast<std::int64_t>(0 - amount);
    if (!std::in_range<T>(whole)) return false;
    value = static_cast<T>(whole);
  } else {
    if (!std::in_range<T>(amount)) return false;
    value = static_cast<T>(amount);
  }
  std::memcpy(to, &value, sizeof value);
  return true;
}
bool put_amount(std::uint64_t amount, bool negative, SampleDtype dtype, std::byte* to) {
  switch (dtype) {
    case SampleDtype::kInt64:
      return put_in_range<std::int64_t>(amount, negative, to);
    case SampleDtype::kUint64:
      return put_in_range<std::uint64_t>(amount, negative, to);
    default:  // behind kWholeMax the others hold none
      return false;
  }
}

}  // namespace

AnyNumber read_any_number(std::string_view text) {
  AnyNumber any;
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text = text.substr(0, end == std::string_view::npos ? 0 : end + 1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "NaN" || text == "Infinity" || text == "-Infinity") {
    any.kind = AnyNumber::Kind::kNotFinite;
    any.number.real = text == "NaN"        ? std::numeric_limits<double>::quiet_NaN()
                      : text == "Infinity" ? kInfinity
                                           : -kInfinity;
    return any;
  }
  const std::optional<Decimal> decimal = taken_apart(text);
  if (!decimal) return any;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), any.number.real);
  const bool out_of_range = error != std::errc() || std::isinf(any.number.real);
  (void)at;  // the whole text
  const bool beyond = out_of_range && is_beyond(*decimal);
  if (beyond) {
    any.number.real = decimal->negative ? -kInfinity : kInfinity;
  } else if (out_of_range) {
    any.number.real = decimal->negative ? -0.0 : 0.0;
  }
  any.kind = beyond ? AnyNumber::Kind::kBeyond : AnyNumber::Kind::kReal;
  if (!decimal->is_whole) return any;
  const std::optional<std::uint64_t> amount = whole_amount(*decimal);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  if (!amount) {
    any.kind = beyond ? AnyNumber::Kind::kBeyond : AnyNumber::Kind::kHuge;
  } else if (*amount < kMost || (decimal->negative && *amount == kMost)) {
    any.kind = AnyNumber::Kind::kWhole;
    any.number.is_whole = true;
    any.number.whole = static_cast<std::int64_t>(decimal->negative ? 0 - *amount : *amount);
    any.number.real = static_cast<double>(any.number.whole);
  } else if (!decimal->negative) {
    any.kind = AnyNumber::Kind::kLarge;
    any.large = *amount;
  } else {
    any.kind = AnyNumber::Kind::kHuge;
  }
  return any;
}

bool put_any_number(const AnyNumber& number, std::string_view text, SampleDtype dtype,
                    std::byte* to) {
  using Kind = AnyNumber::Kind;
  if (number.kind == Kind::kNone || number.kind == Kind::kBeyond) return false;
  if (put_number(number.number, dtype, to)) return true;
  if (number.kind == Kind::kLarge) return put_amount(number.large, false, dtype, to);
  if (number.kind != Kind::kReal || std::abs(number.number.real) < kWholeMax) return false;
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  const std::optional<Decimal> decimal = taken_apart(text.substr(0, end + 1));
  const std::optional<std::uint64_t> amount = decimal ? whole_amount(*decimal) : std::nullopt;
  // A double that is rounded up to 2^64 would not come back.
  constexpr double kAll = 18446744073709551616.0;
  const double real = std::abs(number.number.real);
  if (!amount || real >= kAll || static_cast<std::uint64_t>(real) != *amount) return false;
  return put_amount(*amount, decimal->negative, dtype, to);
}

}  // namespace ringfeed::json
