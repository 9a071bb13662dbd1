#include "workers/kit/row_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "ringfeed/shm/quote.h"

namespace ringfeed {
namespace {

constexpr std::size_t kShown = 12;
constexpr std::size_t kTextShown = 400;
constexpr std::string_view kOffsets = "_offsets";

double half(std::uint16_t bits) {
  const unsigned exponent = bits >> 10 & 0x1f;
  const unsigned fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
}

template <typename T>
std::string numbers(const BatchViewArray& array, std::uint64_t row, double (*value)(T) = nullptr) {
  const std::span<const T> items = array.row<T>(row);
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i) {
    if (i != 0) text += ' ';
    if (value != nullptr) {
      text += fmt::format("{:.5g}", value(items[i]));
    } else if constexpr (std::is_floating_point_v<T>) {
      text += fmt::format("{:.5g}", items[i]);
    } else {
      text += fmt::to_string(+items[i]);
    }
  }
  if (items.size() > kShown) text += fmt::format(" … ({} in all)", items.size());
  return text;
}

std::string shown_numbers(const BatchViewArray& array, std::uint64_t row) {
  const std::string& dtype = array.dtype;
  if (dtype == "float32") return numbers<float>(array, row);
  if (dtype == "float64") return numbers<double>(array, row);
  if (dtype == "float16") return numbers<std::uint16_t>(array, row, &half);
  if (dtype == "bfloat16") {
    return numbers<std::uint16_t>(array, row, [](std::uint16_t bits) {
      return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
    });
  }
  if (dtype == "int8") return numbers<std::int8_t>(array, row);
  if (dtype == "int16") return numbers<std::int16_t>(array, row);
  if (dtype == "int32") return numbers<std::int32_t>(array, row);
  if (dtype == "int64") return numbers<std::int64_t>(array, row);
  if (dtype == "uint8" || dtype == "bool") return numbers<std::uint8_t>(array, row);
  if (dtype == "uint16") return numbers<std::uint16_t>(array, row);
  if (dtype == "uint32") return numbers<std::uint32_t>(array, row);
  if (dtype == "uint64") return numbers<std::uint64_t>(array, row);
  return {};
}

// The bytes of a row; nullopt: offsets that contradict them.
std::optional<std::string_view> text_of(const BatchViewArray& bytes, const BatchViewArray& offsets,
                                        std::uint64_t row) {
  const std::span<const std::int64_t> at = offsets.all<std::int64_t>();
  if (row + 1 >= at.size()) return std::nullopt;
  const std::int64_t begin = at[row];
  const std::int64_t end = at[row + 1];
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > bytes.bytes.size()) {
    return std::nullopt;
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size())
      .substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

std::string cut_text(std::string_view text) {
  std::size_t shown = std::min(text.size(), kTextShown);
  // Not in the middle of a character.
  while (shown != text.size() && shown > 0 && (text[shown] & '\xc0') == '\x80') --shown;
  return fmt::format("{}{} ({} bytes)", in_quotes(text.substr(0, shown)),
                     shown == text.size() ? "" : " …", text.size());
}

std::string row_text(const BatchView& batch, std::uint64_t row) {
  std::size_t width = 0;
  for (const BatchViewArray& array : batch.arrays()) width = std::max(width, array.name.size());
  std::string text;
  for (const BatchViewArray& array : batch.arrays()) {
    std::string shown;
    const BatchViewArray* const offsets = batch.find(array.name + std::string(kOffsets));
    if (offsets != nullptr && array.dtype == "uint8" && array.shape.size() == 1) {
      const std::optional<std::string_view> bytes = text_of(array, *offsets, row);
      shown = bytes ? cut_text(*bytes) : "its offsets contradict its bytes";
    } else if (array.has_rows) {
      shown = shown_numbers(array, row);
    }
    if (shown.empty()) continue;
    text += fmt::format("{:<{}}  {}\n", escaped(array.name), width, shown);
  }
  return text;
}

}  // namespace ringfeed
