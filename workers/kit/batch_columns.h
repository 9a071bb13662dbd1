// The arrays of a batch as a configuration lists them (BatchFieldConfig), and where they lie in a
// slot: what stages have in common whose batches are made of samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"

namespace ringfeed {

// A field of a batch as a configuration writes it.
struct BatchField {
  std::string name;
  std::string dtype;
  std::vector<std::uint32_t> shape;  // of a row
  std::uint64_t bytes_max = 0;       // of text and bytes: of all rows together
};
// Of the field `fields` of a stage's settings.
template <typename Fields>
[[nodiscard]] std::vector<BatchField> batch_fields(const Fields& fields) {
  std::vector<BatchField> all;
  for (const auto& field : fields) {
    all.push_back({field.name(),
                   field.dtype(),
                   {field.shape().begin(), field.shape().end()},
                   field.bytes_max()});
  }
  return all;
}

// An array of a batch, and where it lies in the slot. Text and bytes are two: the bytes of all
// rows, and rows + 1 offsets.
struct BatchColumn {
  std::string name;
  SampleDtype dtype = SampleDtype::kBytes;
  std::vector<std::uint32_t> shape = {};  // of a row
  std::uint64_t row_bytes = 0;            // of an array
  std::uint64_t bytes_max = 0;            // of text and bytes: of all rows together
  std::uint64_t at = 0;
  std::uint64_t offsets_at = 0;
};

// A batch as it is configured. What is wrong with it is said by batch_column_problems().
struct BatchColumns {
  BatchColumns(std::span<const BatchField> fields, std::uint64_t rows_max, bool lineage);

  std::vector<BatchColumn> all;
  std::uint64_t rows;
  std::size_t texts = 0;
  std::optional<std::uint64_t> lineage_at = {};  // uint64 [rows, 2]
  std::uint64_t end = 0;
};

// Of the settings `batch_size`, `fields` and `lineage` of a stage.
[[nodiscard]] std::vector<Problem> batch_column_problems(std::span<const BatchField> fields,
                                                         bool has_batch_size, bool lineage);
void describe_columns(const BatchColumns& columns, BatchSchema& schema);

}  // namespace ringfeed
