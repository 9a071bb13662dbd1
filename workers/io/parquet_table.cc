#include "workers/io/parquet_table.h"

#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "workers/io/arrow_help.h"
#include "workers/io/arrow_values.h"

namespace ringfeed::formats {
namespace {

constexpr std::int64_t kDecodeBytes = 4 << 20;
// Few, because a dictionary may make rows larger than the file says.
constexpr std::int64_t kDecodeRowsMax = 256;

using arrow::Type;

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
      throw ArrowDamage(opened.status().ToString());
    }
    file_ = *opened;
    metadata_ =
        parquet::ParquetFileReader::Open(file_, parquet_properties(pools_, kArrowMemoryBytes))
            ->metadata();
    std::int64_t largest = 0;
    std::uint64_t before = 0;
    for (int i = 0; i < metadata_->num_row_groups(); ++i) {
      const auto group = metadata_->RowGroup(i);
      if (group->num_rows() < 0) throw ArrowDamage("a row group has a negative number of rows");
      const auto rows = static_cast<std::uint64_t>(group->num_rows());
      groups_.push_back({.begin = begin_of(*group), .first_row = before, .rows = rows});
      before += rows;
      largest = std::max(largest, group->total_byte_size());
    }
    const parquet::ReaderProperties properties = parquet_properties(
        pools_, std::min(kArrowMemoryBytes + 3 * std::min(largest, kArrowMemoryBytesMax),
                         kArrowMemoryBytesMax));
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_pre_buffer(false);
    auto reader = parquet::arrow::FileReader::Make(
        properties.memory_pool(), parquet::ParquetFileReader::Open(file_, properties, metadata_),
        arrow_properties);
    if (!reader.ok()) throw ArrowDamage(reader.status().ToString());
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
    for (const std::size_t column : chosen_) {
      places_.push_back(place_among(columns_[column].path, read));
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
      if (!batches.ok()) throw ArrowDamage(batches.status().ToString());
      batches_ = std::move(*batches);
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return {};
  }

  [[nodiscard]] Result<std::uint64_t> decode() override {
    const std::string fault = fault_of([&] {
      arrays_.clear();
      if (const auto got = batches_->ReadNext(&batch_); !got.ok()) {
        throw ArrowDamage(got.ToString());
      }
      const std::uint64_t rows =
          batch_ == nullptr ? 0 : static_cast<std::uint64_t>(batch_->num_rows());
      if (rows > left_ || (rows == 0 && left_ != 0)) {
        throw ArrowDamage("the row group has another number of rows than it claims");
      }
      left_ -= rows;
      if (rows == 0) return;
      // Not ValidateFull(): text that is no UTF-8 is a matter of its row.
      if (const auto sound = batch_->Validate(); !sound.ok()) {
        throw ArrowDamage(sound.ToString());
      }
      for (const std::vector<int>& places : places_)
        arrays_.push_back(find_column(*batch_, places));
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return batch_ == nullptr ? std::uint64_t{0} : static_cast<std::uint64_t>(batch_->num_rows());
  }

  void value(std::size_t column, std::uint64_t row, TableValue& to) const override {
    take_value(arrays_[column], row, to);
  }

 private:
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
  std::vector<FoundColumn> arrays_;  // of batch_, by chosen column
  std::uint64_t left_ = 0;           // rows of the row group that have not been decoded
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
