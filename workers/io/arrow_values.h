// Values of Arrow's arrays as tables have them (table_file.h).
#pragma once

#include <arrow/record_batch.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "workers/io/table_file.h"

namespace ringfeed::formats {

// Schemas nest without end only if they are made for it.
inline constexpr std::size_t kDepthMax = 32;

struct FoundColumn {
  std::shared_ptr<arrow::Array> array;
  std::vector<std::shared_ptr<arrow::Array>> outer;  // structs that hold it
};

// A column of a batch by its places: in the batch, then in each struct down to it. Throws
// ArrowDamage: it is not there.
[[nodiscard]] FoundColumn find_column(const arrow::RecordBatch& batch,
                                      const std::vector<int>& places);
// The places of a column, given its path in the file: the number of its field and of each member
// of a struct down to it. A batch has those alone that are `read`, paths too, in their order.
[[nodiscard]] std::vector<int> place_among(const std::vector<int>& path,
                                           const std::set<std::vector<int>>& read);
// The value of a row.
void take_value(const FoundColumn& column, std::uint64_t row, TableValue& to);

}  // namespace ringfeed::formats
