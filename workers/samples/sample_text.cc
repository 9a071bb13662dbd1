#include "workers/samples/sample_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <string_view>

#include "ringfeed/shm/quote.h"
#include "workers/samples/numbers.h"

namespace ringfeed {
namespace {

constexpr std::size_t kNumbersShown = 8;  // all of an array, or the first
constexpr std::size_t kTextBytesShown = 60;
constexpr std::size_t kBytesShown = 16;

// Element i, of type `T` in memory.
template <typename T>
T element(std::span<const std::byte> data, std::size_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof value, sizeof value);
  return value;
}

double from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::string shown(double value) { return fmt::format("{:.6g}", value); }
std::string shown(std::int64_t value) { return fmt::format("{}", value); }
std::string shown(std::uint64_t value) { return fmt::format("{}", value); }
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(std::complex<double> value) {
  return fmt::format("{:.6g}{:+.6g}j", value.real(), value.imag());
}

// The range of all of them, where they have an order: ", min 0, max 7, 3 of them NaN".
template <typename Value, typename At>
std::string range_text(std::size_t count, At&& at) {
  if constexpr (std::is_same_v<Value, std::complex<double>> || std::is_same_v<Value, bool>) {
    return {};
  } else {
    std::size_t numbers = 0;
    Value least{};
    Value most{};
    for (std::size_t i = 0; i < count; ++i) {
      const Value value = at(i);
      if constexpr (std::is_floating_point_v<Value>) {
        if (std::isnan(value)) continue;
      }
      least = numbers == 0 ? value : std::min(least, value);
      most = numbers == 0 ? value : std::max(most, value);
      ++numbers;
    }
    std::string text;
    if (numbers != 0) text = fmt::format(", min {}, max {}", shown(least), shown(most));
    if (numbers != count) text += fmt::format(", {} of them NaN", count - numbers);
    return text;
  }
}

// `at` gives element i as a Value, which shown() takes.
template <typename Value, typename At>
std::string array_text(std::size_t count, At&& at) {
  std::string text;
  for (std::size_t i = 0; i < std::min(count, kNumbersShown); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " ", shown(at(i)));
  }
  if (count <= kNumbersShown) return text;
  return text + " …" + range_text<Value>(count, at);
}

template <typename T, typename Value>
std::string numbers_text(std::span<const std::byte> data) {
  return array_text<Value>(data.size() / sizeof(T), [data](std::size_t i) {
    return static_cast<Value>(element<T>(data, i));
  });
}

std::string array_text(const SampleField& field) {
  const std::span<const std::byte> data = field.data;
  switch (field.dtype) {
    case SampleDtype::kBool:
      return array_text<bool>(data.size(),
                              [data](std::size_t i) { return data[i] != std::byte{0}; });
    case SampleDtype::kInt8:
      return numbers_text<std::int8_t, std::int64_t>(data);
    case SampleDtype::kInt16:
      return numbers_text<std::int16_t, std::int64_t>(data);
    case SampleDtype::kInt32:
      return numbers_text<std::int32_t, std::int64_t>(data);
    case SampleDtype::kInt64:
      return numbers_text<std::int64_t, std::int64_t>(data);
    case SampleDtype::kUint8:
      return numbers_text<std::uint8_t, std::uint64_t>(data);
    case SampleDtype::kUint16:
      return numbers_text<std::uint16_t, std::uint64_t>(data);
    case SampleDtype::kUint32:
      return numbers_text<std::uint32_t, std::uint64_t>(data);
    case SampleDtype::kUint64:
      return numbers_text<std::uint64_t, std::uint64_t>(data);
    case SampleDtype::kFloat16:
      return array_text<double>(data.size() / 2, [data](std::size_t i) {
        return from_half(element<std::uint16_t>(data, i));
      });
    case SampleDtype::kBfloat16:
      return array_text<double>(data.size() / 2, [data](std::size_t i) {
        return from_bfloat16(element<std::uint16_t>(data, i));
      });
    case SampleDtype::kFloat32:
      return numbers_text<float, double>(data);
    case SampleDtype::kFloat64:
      return numbers_text<double, double>(data);
    case SampleDtype::kComplex64:
      return array_text<std::complex<double>>(data.size() / 8, [data](std::size_t i) {
        return std::complex<double>(element<std::complex<float>>(data, i));
      });
    case SampleDtype::kComplex128:
      return numbers_text<std::complex<double>, std::complex<double>>(data);
    case SampleDtype::kBytes:
    case SampleDtype::kText:
      break;
  }
  return {};
}

std::string text_text(std::string_view text) {
  if (text.size() <= kTextBytesShown) return in_quotes(text);
  std::size_t cut = kTextBytesShown;
  // Not within a character: what continues one has the bits 10 in front.
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return fmt::format("{}… ({} bytes)", in_quotes(text.substr(0, cut)), text.size());
}

std::string bytes_text(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes.first(std::min(bytes.size(), kBytesShown))) {
    text += fmt::format("{:02x} ", static_cast<unsigned>(byte));
  }
  return fmt::format("{}{}({} bytes)", text, bytes.size() > kBytesShown ? "… " : "", bytes.size());
}

std::string value_text(const SampleField& field) {
  if (field.dtype == SampleDtype::kBytes) return bytes_text(field.data);
  if (field.dtype != SampleDtype::kText) return array_text(field);
  return text_text({reinterpret_cast<const char*>(field.data.data()), field.data.size()});
}

std::string type_text(const SampleField& field) {
  std::string text(dtype_name(field.dtype));
  for (std::size_t i = 0; i < field.shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "[" : ",", field.shape[i]);
  }
  return field.shape.empty() ? text : text + "]";
}

}  // namespace

std::vector<std::string> sample_text(const SampleView& sample) {
  std::vector<std::array<std::string, 3>> rows;
  std::size_t name_width = 0;
  std::size_t type_width = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const SampleField field = sample[i];
    rows.push_back({escaped(field.name), type_text(field), value_text(field)});
    name_width = std::max(name_width, rows.back()[0].size());
    type_width = std::max(type_width, rows.back()[1].size());
  }
  std::vector<std::string> lines;
  for (const auto& [name, type, value] : rows) {
    lines.push_back(fmt::format("{:<{}}  {:<{}}  {}", name, name_width, type, type_width, value));
    lines.back().erase(lines.back().find_last_not_of(' ') + 1);
  }
  return lines;
}

}  // namespace ringfeed
