#include "workers/io/parquet_table.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "workers/io/parquet_help.h"

namespace ringfeed::formats {
namespace {

constexpr std::int64_t kDecodeBytes = 4 << 20;
// Few, because a dictionary may make rows larger than the file says.
constexpr std::int64_t kDecodeRowsMax = 256;
constexpr std::size_t kDimsMax = 8;
// Schemas nest without end only if they are made for it.
constexpr std::size_t kDepthMax = 32;

using arrow::Array;
using arrow::Type;

// The type of one value, if it is a plain one; lists and the like are kNothing.
TableType plain_type(Type::type id) noexcept {
  switch (id) {
    case Type::BOOL:
      return TableType::kBool;
    case Type::INT8:
      return TableType::kInt8;
    case Type::INT16:
      return TableType::kInt16;
    case Type::INT32:
    case Type::DATE32:
    case Type::TIME32:
      return TableType::kInt32;
    case Type::INT64:
    case Type::DATE64:
    case Type::TIME64:
    case Type::TIMESTAMP:
    case Type::DURATION:
      return TableType::kInt64;
    case Type::UINT8:
      return TableType::kUint8;
    case Type::UINT16:
      return TableType::kUint16;
    case Type::UINT32:
      return TableType::kUint32;
    case Type::UINT64:
      return TableType::kUint64;
    case Type::HALF_FLOAT:
      return TableType::kFloat16;
    case Type::FLOAT:
      return TableType::kFloat32;
    case Type::DOUBLE:
      return TableType::kFloat64;
    default:
      return TableType::kNothing;
  }
}

// What stands behind extension types and dictionaries; `at` becomes the place in it.
const Array& plain(const Array& array, std::int64_t& at) {
  const Array* own = &array;
  for (;;) {
    if (own->type_id() == Type::EXTENSION) {
      own = static_cast<const arrow::ExtensionArray*>(own)->storage().get();
    } else if (own->type_id() == Type::DICTIONARY) {
      const auto* const coded = static_cast<const arrow::DictionaryArray*>(own);
      if (coded->IsNull(at)) return *own;
      const std::int64_t value = coded->GetValueIndex(at);
      if (value < 0 || value >= coded->dictionary()->length()) {
        throw ParquetDamage("a value lies outside of its dictionary");
      }
      at = value;
      own = coded->dictionary().get();
    } else {
      return *own;
    }
  }
}

struct Slice {
  const Array* values = nullptr;  // nullptr: it is no list
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
template <typename List>
Slice slice_of(const Array& array, std::int64_t at) {
  const auto& list = static_cast<const List&>(array);
  return {list.values().get(), list.value_offset(at), list.value_length(at)};
}
Slice list_at(const Array& array, std::int64_t at) {
  switch (array.type_id()) {
    case Type::LIST:
      return slice_of<arrow::ListArray>(array, at);
    case Type::LARGE_LIST:
      return slice_of<arrow::LargeListArray>(array, at);
    case Type::FIXED_SIZE_LIST:
      return slice_of<arrow::FixedSizeListArray>(array, at);
    default:
      return {};
  }
}

// The raw numbers [begin, begin + count) of a plain array, without looking for nulls.
void put_numbers(const Array& array, std::int64_t begin, std::int64_t count,
                 std::vector<std::byte>& to) {
  if (array.type_id() == Type::BOOL) {
    const auto& truths = static_cast<const arrow::BooleanArray&>(array);
    for (std::int64_t i = begin; i < begin + count; ++i) {
      to.push_back(truths.Value(i) ? std::byte{1} : std::byte{0});
    }
    return;
  }
  if (count == 0) return;
  const auto& flat = static_cast<const arrow::PrimitiveArray&>(array);
  const auto width = static_cast<std::int64_t>(
      static_cast<const arrow::FixedWidthType&>(*array.type()).bit_width() / 8);
  const auto* const from =
      reinterpret_cast<const std::byte*>(flat.values()->data()) + (array.offset() + begin) * width;
  to.insert(to.end(), from, from + count * width);
}

// A list of numbers, of any depth, as an array. False: it has nulls, is not of one shape, or holds
// something else.
bool put_array(const Slice& list, std::size_t depth, TableValue& to) {
  if (depth == kDimsMax || list.count > 0xffffffffLL) return false;
  const auto count = static_cast<std::uint32_t>(list.count);
  if (to.shape.size() == depth) {
    to.shape.push_back(count);
  } else if (to.shape[depth] != count) {
    return false;
  }
  const Array* values = list.values;
  while (values->type_id() == Type::EXTENSION) {
    values = static_cast<const arrow::ExtensionArray*>(values)->storage().get();
  }
  for (std::int64_t i = list.begin; values->null_count() != 0 && i < list.begin + list.count; ++i) {
    if (values->IsNull(i)) return false;
  }
  to.type = plain_type(values->type_id());
  if (to.type != TableType::kNothing) {
    put_numbers(*values, list.begin, list.count, to.bytes);
    return true;
  }
  for (std::int64_t i = list.begin; i < list.begin + list.count; ++i) {
    const Slice inner = list_at(*values, i);
    if (inner.values == nullptr || !put_array(inner, depth + 1, to)) return false;
  }
  if (list.count != 0) return to.type != TableType::kNothing;
  // Of an empty one the type says how deep it would be.
  const arrow::DataType* type = values->type().get();
  for (std::size_t deeper = depth + 1; to.type == TableType::kNothing; ++deeper) {
    const bool is_list = type->id() == Type::LIST || type->id() == Type::LARGE_LIST ||
                         type->id() == Type::FIXED_SIZE_LIST;
    if (!is_list || deeper == kDimsMax) return false;
    if (to.shape.size() == deeper) to.shape.push_back(0);
    type = type->field(0)->type().get();
    to.type = plain_type(type->id());
  }
  return true;
}

std::string_view text_of(const Array& array, std::int64_t at) {
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(at);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(at);
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(at);
    default:
      return static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(at);
  }
}

bool is_text(Type::type id) noexcept {
  return id == Type::STRING || id == Type::LARGE_STRING || id == Type::STRING_VIEW;
}
bool is_bytes(Type::type id) noexcept {
  return id == Type::BINARY || id == Type::LARGE_BINARY || id == Type::BINARY_VIEW ||
         id == Type::FIXED_SIZE_BINARY;
}

void put_quoted(std::string_view text, std::string& json) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  json += '"';
}

// What is wrong with it; empty: it has been put.
std::string put_json(const Array& given, std::int64_t at, std::size_t depth, std::string& json) {
  const Array& array = plain(given, at);
  if (depth == kDepthMax) return "it is nested too deep";
  if (array.IsNull(at) || array.type_id() == Type::NA) {
    json += "null";
    return {};
  }
  const Type::type id = array.type_id();
  if (is_text(id)) {
    put_quoted(text_of(array, at), json);
    return {};
  }
  if (is_bytes(id)) return "it has bytes inside of a list or map, which JSON cannot hold";
  if (id == Type::STRUCT) {
    const auto& parts = static_cast<const arrow::StructArray&>(array);
    json += '{';
    for (int i = 0; i < parts.num_fields(); ++i) {
      if (i != 0) json += ',';
      put_quoted(parts.type()->field(i)->name(), json);
      json += ':';
      if (std::string fault = put_json(*parts.field(i), at, depth + 1, json); !fault.empty()) {
        return fault;
      }
    }
    json += '}';
    return {};
  }
  // A map is a list of pairs.
  const Slice list = id == Type::MAP ? slice_of<arrow::ListArray>(array, at) : list_at(array, at);
  if (list.values != nullptr) {
    json += '[';
    for (std::int64_t i = 0; i < list.count; ++i) {
      if (i != 0) json += ',';
      std::string fault = put_json(*list.values, list.begin + i, depth + 1, json);
      if (!fault.empty()) return fault;
    }
    json += ']';
    return {};
  }
  const auto scalar = array.GetScalar(at);
  if (!scalar.ok()) return scalar.status().ToString();
  const std::string text = (*scalar)->ToString();
  const bool number = (plain_type(id) != TableType::kNothing) && id != Type::HALF_FLOAT;
  const bool whole_or_real = number && !arrow::is_temporal(id);
  const bool finite = whole_or_real && text.find_first_of("nN") == std::string::npos;
  if (finite || id == Type::BOOL) {
    json += text;
  } else if (whole_or_real) {
    json += "null";  // NaN and infinities, which JSON has not
  } else {
    put_quoted(text, json);
  }
  return {};
}

void put_value(const Array& given, std::int64_t at, TableValue& to) {
  to.type = TableType::kNothing;
  to.is_array = false;
  to.shape.clear();
  to.bytes.clear();
  to.fault.clear();
  if (given.IsNull(at)) return;
  const Array& array = plain(given, at);
  if (array.IsNull(at) || array.type_id() == Type::NA) return;
  const Type::type id = array.type_id();
  const auto put_text = [&](TableType type, std::string_view text) {
    to.type = type;
    const auto* const from = reinterpret_cast<const std::byte*>(text.data());
    to.bytes.assign(from, from + text.size());
  };
  if (plain_type(id) != TableType::kNothing) {
    to.type = plain_type(id);
    return put_numbers(array, at, 1, to.bytes);
  }
  if (is_text(id)) return put_text(TableType::kText, text_of(array, at));
  if (is_bytes(id)) return put_text(TableType::kBytes, text_of(array, at));
  const Slice list = list_at(array, at);
  if (list.values != nullptr) {
    to.is_array = true;
    if (put_array(list, 0, to)) return;
    to.is_array = false;
    to.shape.clear();
    to.bytes.clear();
  }
  std::string text;
  if (list.values != nullptr || id == Type::MAP || id == Type::STRUCT) {
    to.fault = put_json(array, at, 0, text);
  } else if (const auto scalar = array.GetScalar(at); scalar.ok()) {
    text = (*scalar)->ToString();
  } else {
    to.fault = scalar.status().ToString();
  }
  put_text(TableType::kText, text);
}

struct TableColumn {
  std::string name;
  std::vector<int> path;    // the number of the field, and of each member of a struct down to it
  std::vector<int> leaves;  // of the file
};

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.column_index >= 0) leaves.push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child, leaves);
}

// Columns are the leaves of structs; lists and maps are leaves.
void add_columns(const parquet::arrow::SchemaField& field, TableColumn column,
                 std::vector<TableColumn>& columns) {
  column.name += field.field->name();
  if (field.field->type()->id() != Type::STRUCT || column.path.size() > kDepthMax) {
    add_leaves(field, column.leaves);
    columns.push_back(std::move(column));
    return;
  }
  column.name += '.';
  for (std::size_t i = 0; i < field.children.size(); ++i) {
    TableColumn member = column;
    member.path.push_back(static_cast<int>(i));
    add_columns(field.children[i], std::move(member), columns);
  }
}

class ParquetTable final : public TableFile {
 public:
  explicit ParquetTable(int fd) {
    auto opened = arrow::io::ReadableFile::Open(fd, arrow::default_memory_pool());
    if (!opened.ok()) {
      ::close(fd);
      throw ParquetDamage(opened.status().ToString());
    }
    file_ = *opened;
    metadata_ =
        parquet::ParquetFileReader::Open(file_, parquet_properties(pools_, kParquetMemoryBytes))
            ->metadata();
    std::int64_t largest = 0;
    std::uint64_t before = 0;
    for (int i = 0; i < metadata_->num_row_groups(); ++i) {
      const auto group = metadata_->RowGroup(i);
      if (group->num_rows() < 0) throw ParquetDamage("a row group has a negative number of rows");
      const auto rows = static_cast<std::uint64_t>(group->num_rows());
      groups_.push_back({.begin = begin_of(*group), .first_row = before, .rows = rows});
      before += rows;
      largest = std::max(largest, group->total_byte_size());
    }
    const parquet::ReaderProperties properties = parquet_properties(
        pools_, std::min(kParquetMemoryBytes + 3 * std::min(largest, kParquetMemoryBytesMax),
                         kParquetMemoryBytesMax));
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_pre_buffer(false);
    auto reader = parquet::arrow::FileReader::Make(
        properties.memory_pool(), parquet::ParquetFileReader::Open(file_, properties, metadata_),
        arrow_properties);
    if (!reader.ok()) throw ParquetDamage(reader.status().ToString());
    reader_ = std::move(*reader);
    const auto& fields = reader_->manifest().schema_fields;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      add_columns(fields[i], {.name = "", .path = {static_cast<int>(i)}, .leaves = {}}, columns_);
    }
    for (const TableColumn& column : columns_) names_.push_back(column.name);
  }

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept override { return names_; }
  [[nodiscard]] const std::vector<RowGroup>& row_groups() const noexcept override {
    return groups_;
  }

  void choose(std::vector<std::size_t> columns) override {
    chosen_ = std::move(columns);
    std::set<int> leaves;
    std::set<std::vector<int>> read;  // the paths of what is read, and of the structs that hold it
    for (const std::size_t column : chosen_) {
      const std::vector<int>& path = columns_[column].path;
      leaves.insert(columns_[column].leaves.begin(), columns_[column].leaves.end());
      for (std::size_t i = 1; i <= path.size(); ++i) {
        read.emplace(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    leaves_.assign(leaves.begin(), leaves.end());
    // A batch has those alone, in their order.
    for (const std::size_t column : chosen_) {
      std::vector<int>& places = places_.emplace_back();
      std::vector<int> path;
      for (const int number : columns_[column].path) {
        int place = 0;
        path.push_back(0);
        for (int before = 0; before < number; ++before) {
          path.back() = before;
          if (read.contains(path)) ++place;
        }
        path.back() = number;
        places.push_back(place);
      }
    }
  }

  [[nodiscard]] Status open(std::size_t row_group) override {
    batches_.reset();
    batch_.reset();
    left_ = groups_[row_group].rows;
    const std::string fault = fault_of([&] {
      const auto group = metadata_->RowGroup(static_cast<int>(row_group));
      std::int64_t bytes = 0;
      for (const int leaf : leaves_) {
        bytes += std::max<std::int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0);
      }
      const std::int64_t rows = std::max<std::int64_t>(group->num_rows(), 1);
      reader_->set_batch_size(std::clamp<std::int64_t>(
          kDecodeBytes / std::max<std::int64_t>(bytes / rows, 1), 1, kDecodeRowsMax));
      auto batches = reader_->GetRecordBatchReader({static_cast<int>(row_group)}, leaves_);
      if (!batches.ok()) throw ParquetDamage(batches.status().ToString());
      batches_ = std::move(*batches);
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return {};
  }

  [[nodiscard]] Result<std::uint64_t> decode() override {
    const std::string fault = fault_of([&] {
      arrays_.clear();
      if (const auto got = batches_->ReadNext(&batch_); !got.ok()) {
        throw ParquetDamage(got.ToString());
      }
      const std::uint64_t rows =
          batch_ == nullptr ? 0 : static_cast<std::uint64_t>(batch_->num_rows());
      if (rows > left_ || (rows == 0 && left_ != 0)) {
        throw ParquetDamage("the row group has another number of rows than it claims");
      }
      left_ -= rows;
      if (rows == 0) return;
      // Not ValidateFull(): text that is no UTF-8 is a matter of its row.
      if (const auto sound = batch_->Validate(); !sound.ok()) {
        throw ParquetDamage(sound.ToString());
      }
      for (const std::vector<int>& places : places_) arrays_.push_back(find(places));
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return batch_ == nullptr ? std::uint64_t{0} : static_cast<std::uint64_t>(batch_->num_rows());
  }

  void value(std::size_t column, std::uint64_t row, TableValue& to) const override {
    const auto at = static_cast<std::int64_t>(row);
    const std::string fault = fault_of([&] {
      const Found& found = arrays_[column];
      for (const auto& outer : found.outer) {
        if (outer->IsNull(at)) {
          to = {};
          return;
        }
      }
      put_value(*found.array, at, to);
    });
    if (!fault.empty()) to.fault = fault;
  }

 private:
  struct Found {
    std::shared_ptr<Array> array;
    std::vector<std::shared_ptr<Array>> outer;  // structs that hold it
  };

  // The first byte of its columns that the file names; damaged numbers are those of any place.
  static std::uint64_t begin_of(const parquet::RowGroupMetaData& group) {
    std::int64_t begin = 0;
    for (int i = 0; i < group.num_columns(); ++i) {
      const auto chunk = group.ColumnChunk(i);
      const std::int64_t data =
          chunk->has_dictionary_page()
              ? std::min(chunk->dictionary_page_offset(), chunk->data_page_offset())
              : chunk->data_page_offset();
      if (i == 0 || data < begin) begin = data;
    }
    return static_cast<std::uint64_t>(std::max<std::int64_t>(begin, 0));
  }

  [[nodiscard]] Found find(const std::vector<int>& places) const {
    if (places.front() >= batch_->num_columns()) throw ParquetDamage("a column cannot be found");
    Found found{.array = batch_->column(places.front()), .outer = {}};
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (found.array->type_id() != Type::STRUCT) throw ParquetDamage("a struct is none");
      const auto whole = std::static_pointer_cast<arrow::StructArray>(found.array);
      if (places[i] >= whole->num_fields()) throw ParquetDamage("a member cannot be found");
      found.outer.push_back(whole);
      found.array = whole->field(places[i]);
    }
    return found;
  }

  std::vector<std::unique_ptr<arrow::MemoryPool>> pools_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<TableColumn> columns_;
  std::vector<std::string> names_;  // of these
  std::vector<RowGroup> groups_;
  std::vector<std::size_t> chosen_;
  std::vector<std::vector<int>> places_;  // by chosen column: in a batch, as TableColumn::path
  std::vector<int> leaves_;               // of the chosen columns
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<Found> arrays_;  // of batch_, by chosen column
  std::uint64_t left_ = 0;     // rows of the row group that have not been decoded
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_parquet_table(shm::Fd fd) {
  std::unique_ptr<TableFile> table;
  const int own = fd.release();
  const std::string fault = fault_of([&] { table = std::make_unique<ParquetTable>(own); });
  if (!fault.empty()) return Error(ErrorCode::kDamaged, fault);
  return table;
}

}  // namespace ringfeed::formats
