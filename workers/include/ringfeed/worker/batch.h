// The batches that a plug-in's stage makes: which arrays they have, and where these lie in a slot.
//
//   BatchLayout layout;
//   layout.rows_max = 64;
//   const std::uint64_t ids = layout.add("ids", SampleDtype::kInt64, {kAllRows});  // int64 [rows]
//   layout.add("tokens", SampleDtype::kInt32, {kAllRows, 512});                    // [rows, 512]
//   layout.add("text", SampleDtype::kUint8, {varying_length(0)}, 1 << 20);  // length 0 of publish_batch()
//
// The stage writes at these offsets into what Step::open_batch() gives it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/sample.h"

namespace ringfeed {

// Sizes of a shape that are not fixed: the rows of the batch, only as first; length i of `ragged`
// of Step::publish_batch(), i below 16.
inline constexpr std::int64_t kAllRows = -1;
constexpr std::int64_t varying_length(std::uint32_t i) noexcept { return -2 - std::int64_t{i}; }

struct BatchTensor {
  std::string name;  // by which trainers ask for it; 1 to 64 of A-Z a-z 0-9 _
  SampleDtype dtype = SampleDtype::kUint8;
  std::vector<std::int64_t> shape;  // row-major; at most 8
  std::uint64_t bytes = 0;          // of the largest
  std::uint64_t offset = 0;         // from the start of the slot
};

struct BatchLayout {
  std::uint32_t rows_max = 0;  // of a full batch; set it before add()
  std::vector<BatchTensor> tensors;
  std::uint64_t bytes = 0;  // of a batch with the largest of each

  // Behind what is there, at the next multiple of 64; returns the offset. `bytes_max`: of an array
  // with lengths that vary; of any other they follow from its shape.
  std::uint64_t add(std::string name, SampleDtype dtype, std::vector<std::int64_t> shape,
                    std::uint64_t bytes_max = 0) {
    const std::uint64_t offset = shm::align_up(bytes, 64);
    if (bytes_max == 0) {
      bytes_max = dtype_bytes(dtype);
      for (const std::int64_t size : shape) {
        bytes_max *= size == kAllRows ? rows_max : static_cast<std::uint64_t>(size < 0 ? 0 : size);
      }
    }
    tensors.push_back({std::move(name), dtype, std::move(shape), bytes_max, offset});
    bytes = offset + bytes_max;
    return offset;
  }
};

}  // namespace ringfeed
