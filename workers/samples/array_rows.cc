#include "workers/samples/array_rows.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

namespace ringfeed {
namespace {

// The element type, if a sample has one like it.
std::optional<SampleDtype> dtype_of(std::string_view descr) {
  if (descr.size() < 3 || (descr[0] != '<' && descr[0] != '|')) return std::nullopt;
  const char kind = descr[1];
  const std::string_view bytes = descr.substr(2);
  for (std::size_t i = 0; i < kSampleDtypes.size(); ++i) {
    const auto dtype = static_cast<SampleDtype>(i);
    const std::string_view name = dtype_name(dtype);
    const char letter = name == "bool"                ? 'b'
                        : name.starts_with("int")     ? 'i'
                        : name.starts_with("uint")    ? 'u'
                        : name.starts_with("float")   ? 'f'
                        : name.starts_with("complex") ? 'c'
                                                      : '\0';
    if (letter == kind && bytes == std::to_string(dtype_bytes(dtype))) return dtype;
  }
  return std::nullopt;
}

}  // namespace

Result<ArrayRows> array_rows(const formats::NpyHead& head) {
  const auto refuse = [](std::string text) { return Error{ErrorCode::kDamaged, std::move(text)}; };
  ArrayRows array;
  const std::optional<SampleDtype> dtype = dtype_of(head.descr);
  if (!dtype) return refuse(fmt::format("its elements are {}, which no sample has", head.descr));
  array.dtype = *dtype;
  if (head.shape.empty()) return refuse("it is a single number and has no rows");
  if (head.fortran_order && head.shape.size() > 1) {
    return refuse("its rows are scattered over it (fortran_order): save it with order='C'");
  }
  if (head.shape.size() - 1 > sample::kDimsMax) {
    return refuse(fmt::format("it has {} axes, a sample at most {}", head.shape.size() - 1,
                              sample::kDimsMax));
  }
  for (std::size_t axis = 1; axis < head.shape.size(); ++axis) {
    if (head.shape[axis] > 0xffffffff) return refuse("its rows are larger than any sample");
    array.shape.push_back(static_cast<std::uint32_t>(head.shape[axis]));
  }
  const std::optional<std::uint64_t> row_bytes = array_bytes(*dtype, array.shape);
  if (!row_bytes) return refuse("its rows are larger than any sample");
  array.rows = head.shape.front();
  array.row_bytes = *row_bytes;
  return array;
}

}  // namespace ringfeed
