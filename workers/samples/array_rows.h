// An array of NumPy's as rows of samples: what the first axis counts.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "workers/io/npy_file.h"

namespace ringfeed {

struct ArrayRows {
  SampleDtype dtype = SampleDtype::kBytes;
  std::vector<std::uint32_t> shape = {};  // of a row
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
};

// kDamaged: why it has no rows that a sample can hold.
[[nodiscard]] Result<ArrayRows> array_rows(const formats::NpyHead& head);

}  // namespace ringfeed
