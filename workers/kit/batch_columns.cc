#include "workers/kit/batch_columns.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <string>
#include <utility>

#include "workers/kit/batch_schema.h"

namespace ringfeed {
namespace {

// The lengths that vary, at most (TensorSpec.shape); text takes two.
constexpr std::size_t kRaggedMax = 16;
// Arrays that a trainer maps, at most (kTensorsMax of pyclient/src/client.h).
constexpr std::size_t kArraysMax = 64;

}  // namespace

BatchColumns::BatchColumns(std::span<const BatchField> fields, std::uint64_t rows_max, bool lineage)
    : rows(rows_max) {
  SlotLayout layout;
  for (const BatchField& field : fields) {
    BatchColumn column{.name = field.name,
                       .dtype = dtype_named(field.dtype).value_or(SampleDtype::kBytes),
                       .shape = field.shape};
    if (is_array(column.dtype)) {
      column.row_bytes = array_bytes(column.dtype, column.shape).value_or(0);
      column.at = layout.place(rows * column.row_bytes);
    } else {
      column.bytes_max = field.bytes_max;
      column.at = layout.place(column.bytes_max);
      column.offsets_at = layout.place(8 * (rows + 1));
      ++texts;
    }
    all.push_back(std::move(column));
  }
  if (lineage) lineage_at = layout.place(16 * rows);
  end = layout.end();
}

std::vector<Problem> batch_column_problems(std::span<const BatchField> fields, bool has_batch_size,
                                           bool lineage) {
  std::vector<Problem> problems;
  if (!has_batch_size) {
    problems.push_back({"batch_size", "batch_size is not set; give the rows of a batch"});
  }
  if (fields.empty()) {
    problems.push_back({"fields",
                        "there are no fields; add fields { name: \"...\" dtype: \"...\" } for each "
                        "array of a batch"});
  }
  std::size_t texts = 0;
  std::set<std::string> names;
  if (lineage) names.insert("lineage");
  const auto take = [&](const std::string& path, const std::string& name) {
    if (names.insert(name).second) return;
    problems.push_back({path, fmt::format("two arrays of a batch would be named '{}'", name)});
  };
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const BatchField& field = fields[i];
    const std::string path = fmt::format("fields[{}]", i);
    const std::optional<SampleDtype> dtype = dtype_named(field.dtype);
    if (field.name.empty()) problems.push_back({path, "it has no name; add name: \"...\""});
    take(path + ".name", field.name);
    if (!dtype) {
      problems.push_back(
          {path + ".dtype",
           fmt::format("{}; give one as NumPy names it, such as float32 or int64, "
                       "or text or bytes",
                       field.dtype.empty() ? "it has no dtype"
                                           : fmt::format("dtype is \"{}\"", field.dtype))});
      continue;
    }
    if (!is_array(*dtype)) {
      ++texts;
      take(path + ".name", field.name + "_offsets");
    }
    if (!is_array(*dtype) && !field.shape.empty()) {
      problems.push_back({path + ".shape", "text and bytes have no shape; leave it out"});
    }
    // Where rows end are numbers of 32 bits on their way to trainers.
    if (!is_array(*dtype) && field.bytes_max > std::numeric_limits<std::uint32_t>::max()) {
      problems.push_back({path + ".bytes_max", "a batch has less than 4 GiB of a text"});
    }
    if (field.shape.size() > sample::kDimsMax || !array_bytes(*dtype, field.shape)) {
      problems.push_back({path + ".shape",
                          "no sample is as large; it has at most 8 dimensions and "
                          "4 GiB"});
    }
  }
  if (names.size() > kArraysMax) {
    problems.push_back(
        {"fields", fmt::format("they are {} arrays (text and bytes are two, and lineage is one); a "
                               "batch has at most {}: put several into one array of a `shape`, in "
                               "a stage in Python",
                               names.size(), kArraysMax)});
  }
  if (2 * texts > kRaggedMax) {
    problems.push_back(
        {"fields", fmt::format("{} of them are text or bytes; a batch has at most {} of these",
                               texts, kRaggedMax / 2)});
  }
  return problems;
}

void describe_columns(const BatchColumns& columns, BatchSchema& schema) {
  constexpr std::int64_t kRows = -1;
  std::vector<RaggedArray> arrays;
  std::int64_t ragged = -2;
  for (const BatchColumn& column : columns.all) {
    if (is_array(column.dtype)) {
      std::vector<std::int64_t> shape = {kRows};
      shape.insert(shape.end(), column.shape.begin(), column.shape.end());
      arrays.push_back({column.name, std::string(dtype_name(column.dtype)), std::move(shape),
                        columns.rows * column.row_bytes, column.at});
      continue;
    }
    arrays.push_back({column.name, "uint8", {ragged--}, column.bytes_max, column.at});
    arrays.push_back(
        {column.name + "_offsets", "int64", {ragged--}, 8 * (columns.rows + 1), column.offsets_at});
  }
  if (columns.lineage_at) {
    arrays.push_back({"lineage", "uint64", {kRows, 2}, 16 * columns.rows, *columns.lineage_at});
  }
  describe_batch(arrays, columns.rows, columns.end, schema);
}

}  // namespace ringfeed
