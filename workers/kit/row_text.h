// A row of a batch as text, where nothing more is known than its arrays.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ringfeed/worker/batch_view.h"

namespace ringfeed {

// A line for each array that has rows: its first numbers, or the text that it is.
//
//   id       17
//   vector   17 0.5 -1
//   text     "review 17: fine" (15 bytes)
//
// Text is an array of bytes X beside an array X_offsets (kit/batch_columns.h). Offsets that
// contradict the bytes are said to, and not followed.
[[nodiscard]] std::string row_text(const BatchView& batch, std::uint64_t row);

// In quotation marks, escaped, and cut where it is long: "\"word word …\" (70312 bytes)".
[[nodiscard]] std::string cut_text(std::string_view text);

}  // namespace ringfeed
