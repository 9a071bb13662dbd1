#include "workers/io/arrow_table.h"

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "workers/io/arrow_help.h"
#include "workers/io/arrow_values.h"

namespace ringfeed::formats {
namespace {

using arrow::Type;

template <typename T>
T taken(arrow::Result<T> result) {
  if (!result.ok()) throw ArrowDamage(result.status().ToString());
  return std::move(*result);
}

struct Leaf {
  std::string name;
  std::vector<int> path;  // the number of the field, and of each member of a struct down to it
};

// Columns are the leaves of structs; lists and maps are leaves.
void add_columns(const arrow::Field& field, Leaf leaf, std::vector<Leaf>& columns) {
  leaf.name += field.name();
  if (field.type()->id() != Type::STRUCT || leaf.path.size() > kDepthMax) {
    columns.push_back(std::move(leaf));
    return;
  }
  leaf.name += '.';
  for (int i = 0; i < field.type()->num_fields(); ++i) {
    Leaf member = leaf;
    member.path.push_back(i);
    add_columns(*field.type()->field(i), std::move(member), columns);
  }
}

// Offsets and the like are looked at here: what reads the file believes them. Text that is no UTF-8
// is a matter of its row, so that of a column is looked at as bytes.
void require_sound(const arrow::RecordBatch& batch) {
  if (const auto sound = batch.Validate(); !sound.ok()) throw ArrowDamage(sound.ToString());
  for (int i = 0; i < batch.num_columns(); ++i) {
    std::shared_ptr<arrow::ArrayData> data = batch.column_data(i)->Copy();
    if (data->type->id() == Type::STRING) data->type = arrow::binary();
    if (data->type->id() == Type::LARGE_STRING) data->type = arrow::large_binary();
    if (data->type->id() == Type::STRING_VIEW) data->type = arrow::binary_view();
    const auto sound = arrow::MakeArray(data)->ValidateFull();
    if (!sound.ok()) {
      throw ArrowDamage(batch.schema()->field(i)->name() + ": " + sound.ToString());
    }
  }
}

// Of all such files of the process, and never destroyed: a thread of Arrow's, which reads for it,
// may give memory back after a file has been closed.
arrow::MemoryPool& pool() {
  static auto* const capped =
      new arrow::CappedMemoryPool(arrow::default_memory_pool(), kArrowMemoryBytesMax);
  return *capped;
}

class ArrowTable final : public TableFile {
 public:
  // Takes the descriptor.
  ArrowTable(int fd, bool stream, std::int64_t file_bytes)
      : is_stream_(stream), file_bytes_(file_bytes) {
    auto opened = arrow::io::ReadableFile::Open(fd, &pool());
    if (!opened.ok()) {
      ::close(fd);
      throw ArrowDamage(opened.status().ToString());
    }
    file_ = *opened;
    const std::shared_ptr<arrow::Schema> schema = open_reader({});
    fields_ = schema->num_fields();
    for (int i = 0; i < fields_; ++i) {
      add_columns(*schema->field(i), {.name = "", .path = {i}}, columns_);
    }
    for (const Leaf& column : columns_) names_.push_back(column.name);
    if (is_stream_) {
      groups_.push_back({.begin = 0, .first_row = 0, .rows = kRowsUnknown});
    } else {
      count_rows(*schema);
    }
  }

  [[nodiscard]] const std::vector<std::string>& columns() const noexcept override { return names_; }
  [[nodiscard]] const std::vector<RowGroup>& row_groups() const noexcept override {
    return groups_;
  }

  void choose(std::vector<std::size_t> columns) override {
    std::set<int> fields;
    std::set<std::vector<int>> read;  // a struct is read whole
    for (const std::size_t column : columns) fields.insert(columns_[column].path.front());
    for (const int field : fields) read.insert({field});
    for (const std::size_t column : columns) {
      std::vector<int> places = columns_[column].path;
      places.front() = place_among({places.front()}, read).front();
      places_.push_back(std::move(places));
    }
    chosen_.assign(fields.begin(), fields.end());
  }

  [[nodiscard]] Status open(std::size_t row_group) override {
    const std::string fault = fault_of([&] {
      if (is_stream_ || !chosen_is_open_) open_reader(chosen_);
      chosen_is_open_ = true;
      group_ = row_group;
      given_ = false;
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return {};
  }

  [[nodiscard]] Result<std::uint64_t> decode() override {
    std::uint64_t rows = 0;
    const std::string fault = fault_of([&] {
      arrays_.clear();
      do {
        batch_ = next_batch();
        if (batch_ == nullptr) return;
      } while (batch_->num_rows() == 0);
      require_sound(*batch_);
      rows = static_cast<std::uint64_t>(batch_->num_rows());
      for (const std::vector<int>& places : places_)
        arrays_.push_back(find_column(*batch_, places));
    });
    if (!fault.empty()) return Error{ErrorCode::kDamaged, fault};
    return rows;
  }

  void value(std::size_t column, std::uint64_t row, TableValue& to) const override {
    take_value(arrays_[column], row, to);
  }

  [[nodiscard]] std::uint64_t trailing_bytes() const noexcept override { return trailing_bytes_; }

 private:
  // With these fields; none: all.
  std::shared_ptr<arrow::Schema> open_reader(std::vector<int> fields) {
    arrow::ipc::IpcReadOptions options;
    options.memory_pool = &pool();
    options.included_fields = std::move(fields);
    options.use_threads = false;
    if (is_stream_) {
      if (const auto sought = file_->Seek(0); !sought.ok()) throw ArrowDamage(sought.ToString());
      stream_ = taken(arrow::ipc::RecordBatchStreamReader::Open(
          std::static_pointer_cast<arrow::io::InputStream>(file_), options));
      return stream_->schema();
    }
    reader_ = taken(arrow::ipc::RecordBatchFileReader::Open(file_, options));
    return reader_->schema();
  }

  // Of each record batch the least that can be read of it.
  void count_rows(const arrow::Schema& schema) {
    const int batches = reader_->num_record_batches();
    int least = 0;
    while (least < fields_ && !arrow::is_primitive(schema.field(least)->type()->id())) ++least;
    if (fields_ != 0) open_reader({least < fields_ ? least : 0});
    std::uint64_t before = 0;
    for (int i = 0; i < batches; ++i) {
      const auto rows = static_cast<std::uint64_t>(taken(reader_->ReadRecordBatch(i))->num_rows());
      // Arrow does not say where they lie.
      const std::int64_t begin = file_bytes_ / batches * i;
      groups_.push_back(
          {.begin = static_cast<std::uint64_t>(begin), .first_row = before, .rows = rows});
      before += rows;
    }
  }

  std::shared_ptr<arrow::RecordBatch> next_batch() {
    if (!is_stream_) {
      if (std::exchange(given_, true)) return nullptr;
      std::shared_ptr<arrow::RecordBatch> batch =
          taken(reader_->ReadRecordBatch(static_cast<int>(group_)));
      if (static_cast<std::uint64_t>(batch->num_rows()) != groups_[group_].rows) {
        throw ArrowDamage("the record batch has another number of rows than before");
      }
      return batch;
    }
    std::shared_ptr<arrow::RecordBatch> batch;
    if (const auto got = stream_->ReadNext(&batch); !got.ok()) throw ArrowDamage(got.ToString());
    if (batch == nullptr) {
      const std::int64_t at = taken(file_->Tell());
      trailing_bytes_ = static_cast<std::uint64_t>(std::max<std::int64_t>(file_bytes_ - at, 0));
    }
    return batch;
  }

  bool is_stream_;
  std::int64_t file_bytes_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_;
  int fields_ = 0;
  std::vector<Leaf> columns_;
  std::vector<std::string> names_;  // of these
  std::vector<RowGroup> groups_;
  std::vector<int> chosen_;               // fields
  std::vector<std::vector<int>> places_;  // by chosen column, in a batch
  bool chosen_is_open_ = false;
  std::size_t group_ = 0;
  bool given_ = false;  // of a file: the record batch of group_
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<FoundColumn> arrays_;  // of batch_, by chosen column
  std::uint64_t trailing_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_arrow_table(shm::Fd fd) {
  std::array<char, 8> first{};
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || ::pread(fd.get(), first.data(), first.size(), 0) < 0) {
    return Error(ErrorCode::kIo, std::strerror(errno));
  }
  const std::string_view mark(first.data(), first.size());
  if (mark.starts_with("FEA1")) {
    return Error(ErrorCode::kUnsupported,
                 "it is a Feather file of version 1: write it again with version 2");
  }
  std::unique_ptr<TableFile> table;
  const int own = fd.release();
  const std::string fault = fault_of([&] {
    table = std::make_unique<ArrowTable>(own, !mark.starts_with("ARROW1"),
                                         static_cast<std::int64_t>(info.st_size));
  });
  if (!fault.empty()) return Error(ErrorCode::kDamaged, fault);
  return table;
}

}  // namespace ringfeed::formats
