#include "workers/samples/batch_fit.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <span>
#include <string_view>

#include "workers/samples/numbers.h"

namespace ringfeed {
namespace {

std::string axes_text(std::span<const std::uint32_t> shape) {
  std::string text;
  for (const std::uint32_t size : shape)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

// As JSON has an array of this shape, somewhere in which there is a 0.
void put_empty(std::span<const std::uint32_t> shape, std::vector<std::byte>& to) {
  to.push_back(std::byte{'['});
  for (std::uint32_t i = 0; i < shape.front(); ++i) {
    if (i != 0) to.push_back(std::byte{','});
    put_empty(shape.subspan(1), to);
  }
  to.push_back(std::byte{']'});
}

}  // namespace

// What a source took for an array because it has no element is text in JSON where its neighbours
// are.
bool convert_field(SampleField& field, SampleDtype dtype, std::vector<std::byte>& to) noexcept {
  if (!is_array(dtype)) {
    const std::string_view text(reinterpret_cast<const char*>(field.data.data()),
                                field.data.size());
    if (is_array(field.dtype)) {
      if (dtype != SampleDtype::kText || field.shape.empty() || !field.data.empty()) return false;
      to.clear();
      put_empty(field.shape, to);
      field.shape = {};
      field.data = to;
    } else if (dtype == SampleDtype::kText && !simdjson::validate_utf8(text)) {
      return false;
    }
  } else {
    if (!is_array(field.dtype) || !convert_exactly(field.data, field.dtype, dtype, to)) {
      return false;
    }
    field.data = to;
  }
  field.dtype = dtype;
  return true;
}

std::string misfit_text(Misfit misfit, const std::optional<SampleField>& found,
                        const BatchColumn& column) {
  switch (misfit) {
    case Misfit::kNone:
      break;
    case Misfit::kMissingField:
      return fmt::format("it has no field '{}'", column.name);
    case Misfit::kWrongType:
      return fmt::format(
          "field '{}' is {}, not {}{}: say dtype: \"{}\" of it in the source", column.name,
          dtype_name(found->dtype), dtype_name(column.dtype),
          can_stay(found->dtype, column.dtype) ? ", which does not hold its value as it is" : "",
          dtype_name(column.dtype));
    case Misfit::kWrongShape:
      return fmt::format("field '{}' has shape {}, not {}", column.name, axes_text(found->shape),
                         axes_text(column.shape));
    case Misfit::kTooLarge:
      return fmt::format("field '{}' has {} bytes, a batch has room for {}: raise bytes_max",
                         column.name, found->data.size(), column.bytes_max);
  }
  return {};
}

}  // namespace ringfeed
