// A field of a sample as a column of a batch has it.
#pragma once

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

// Converts the field where that changes no value. kNone: `fitted` is what goes into the column; its
// bytes are those of `found` or of `room`.
[[nodiscard]] Misfit fit(const std::optional<SampleField>& found, const BatchColumn& column,
                         std::vector<std::byte>& room, SampleField& fitted) noexcept;
// What is wrong, and what to do.
[[nodiscard]] std::string misfit_text(Misfit misfit, const std::optional<SampleField>& found,
                                      const BatchColumn& column);

}  // namespace ringfeed
