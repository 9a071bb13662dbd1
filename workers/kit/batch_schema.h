// How the arrays of a batch are told to the trainers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/batch.pb.h"
#include "ringfeed/shm/layout.h"

namespace ringfeed {

// Lays arrays out in a slot, one behind the other, each at a cache line's begin.
class SlotLayout {
 public:
  static constexpr std::uint64_t kAlignment = 64;
  std::uint64_t place(std::uint64_t bytes) noexcept {
    const std::uint64_t offset = shm::align_up(end_, kAlignment);
    end_ = offset + bytes;
    return offset;
  }
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }

 private:
  std::uint64_t end_ = 0;
};

// An array with an entry for each row.
struct BatchArray {
  std::string name;
  std::string dtype;                    // as in TensorSpec
  std::vector<std::int64_t> row_shape;  // empty: a number for each row
  std::uint64_t row_bytes;
  std::uint64_t offset;  // in the slot
};

// An array whose lengths are not all those of a row.
struct RaggedArray {
  std::string name;
  std::string dtype;                // as in TensorSpec
  std::vector<std::int64_t> shape;  // likewise
  std::uint64_t bytes;              // of the largest
  std::uint64_t offset;             // in the slot
};

// `end`: bytes of a batch with the largest of each array.
inline void describe_batch(std::span<const RaggedArray> arrays, std::uint64_t rows_max,
                           std::uint64_t end, BatchSchema& schema) {
  for (const RaggedArray& array : arrays) {
    TensorSpec& tensor = *schema.add_tensors();
    tensor.set_name(array.name);
    tensor.set_dtype(array.dtype);
    for (const std::int64_t size : array.shape) tensor.add_shape(size);
    tensor.set_offset(array.offset);
    tensor.set_bytes(array.bytes);
  }
  schema.set_slot_bytes(shm::align_up(end, shm::kPageBytes));
  schema.set_rows_max(static_cast<std::uint32_t>(rows_max));
}
inline void describe_batch(std::span<const BatchArray> arrays, std::uint64_t batch_size,
                           std::uint64_t end, BatchSchema& schema) {
  std::vector<RaggedArray> all;
  for (const BatchArray& array : arrays) {
    std::vector<std::int64_t> shape = {-1};
    shape.insert(shape.end(), array.row_shape.begin(), array.row_shape.end());
    all.push_back(
        {array.name, array.dtype, std::move(shape), batch_size * array.row_bytes, array.offset});
  }
  describe_batch(std::span<const RaggedArray>(all), batch_size, end, schema);
}

}  // namespace ringfeed
