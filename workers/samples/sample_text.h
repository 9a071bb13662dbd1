// A sample as people read it: a line for each field, with its type and what is in it. What is long
// is cut: text and bytes to their beginning, arrays to the first numbers and the range of all.
#pragma once

#include <string>
#include <vector>

#include "ringfeed/worker/sample.h"

namespace ringfeed {

// "id      int64       3"
// "text    text        "word word" (9 bytes)"
// "tokens  int32[4]    7 7 0 0"
// "pixels  uint8[3,2]  0 12 255 …, min 0, max 255"
[[nodiscard]] std::vector<std::string> sample_text(const SampleView& sample);

}  // namespace ringfeed
