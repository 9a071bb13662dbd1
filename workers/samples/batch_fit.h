// A field of a sample as a column of a batch has it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "workers/kit/batch_columns.h"

namespace ringfeed {

// Why a sample is none of a batch.
enum class Misfit : std::uint8_t { kNone, kMissingField, kWrongType, kWrongShape, kTooLarge };

// Makes the field one of another type where that changes no value; `room` keeps its bytes.
[[nodiscard]] bool convert_field(SampleField& field, SampleDtype dtype,
                                 std::vector<std::byte>& room) noexcept;

// kNone: `fitted` is what goes into the column; its bytes are those of `found` or of `room`.
[[nodiscard]] inline Misfit fit(const std::optional<SampleField>& found, const BatchColumn& column,
                                std::vector<std::byte>& room, SampleField& fitted) noexcept {
  if (!found) return Misfit::kMissingField;
  fitted = *found;
  if (fitted.dtype != column.dtype && !convert_field(fitted, column.dtype, room)) {
    return Misfit::kWrongType;
  }
  if (is_array(column.dtype)) {
    return std::ranges::equal(fitted.shape, column.shape) ? Misfit::kNone : Misfit::kWrongShape;
  }
  return fitted.data.size() > column.bytes_max ? Misfit::kTooLarge : Misfit::kNone;
}
// What is wrong, and what to do.
[[nodiscard]] std::string misfit_text(Misfit misfit, const std::optional<SampleField>& found,
                                      const BatchColumn& column);

}  // namespace ringfeed
