// The rows of a table as samples: a column is a field, null is a field that is missing. A part has
// the row groups that begin in it. The cursor of an item is the number of the next row of the file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <string>

#include "workers/io/table_file.h"
#include "workers/samples/numbers.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {
namespace {

using formats::RowGroup;
using formats::TableType;
using formats::TableValue;

SampleDtype dtype_of(TableType type) noexcept {
  switch (type) {
    case TableType::kText:
      return SampleDtype::kText;
    case TableType::kBool:
      return SampleDtype::kBool;
    case TableType::kInt8:
      return SampleDtype::kInt8;
    case TableType::kInt16:
      return SampleDtype::kInt16;
    case TableType::kInt32:
      return SampleDtype::kInt32;
    case TableType::kInt64:
      return SampleDtype::kInt64;
    case TableType::kUint8:
      return SampleDtype::kUint8;
    case TableType::kUint16:
      return SampleDtype::kUint16;
    case TableType::kUint32:
      return SampleDtype::kUint32;
    case TableType::kUint64:
      return SampleDtype::kUint64;
    case TableType::kFloat16:
      return SampleDtype::kFloat16;
    case TableType::kFloat32:
      return SampleDtype::kFloat32;
    case TableType::kFloat64:
      return SampleDtype::kFloat64;
    case TableType::kNothing:
    case TableType::kBytes:
      break;
  }
  return SampleDtype::kBytes;
}

class ParquetSamples final : public SampleFile {
 public:
  // `wanted`: a field for each chosen column.
  ParquetSamples(std::unique_ptr<formats::TableFile> table, std::vector<WantedField> wanted,
                 bool needs_all, std::vector<std::size_t> groups, std::uint64_t row)
      : table_(std::move(table)),
        wanted_(std::move(wanted)),
        needs_all_(needs_all),
        groups_(std::move(groups)),
        row_(row),
        values_(wanted_.size()),
        converted_(wanted_.size()) {}

  Result<bool> next(Item& item) override {
    for (;;) {
      if (at_ == groups_.size()) return false;
      const RowGroup& group = table_->row_groups()[groups_[at_]];
      const std::uint64_t end = group.first_row + group.rows;
      if (row_ >= end) {  // before the row to begin with
        close();
        continue;
      }
      if (!open_) {
        if (Status opened = table_->open(groups_[at_]); !opened) {
          item = damaged(end, opened.error());
          return true;
        }
        open_ = true;
        begin_ = group.first_row;
        decoded_ = 0;
      }
      row_ = std::max(row_, begin_);
      if (row_ < begin_ + decoded_) {
        item = sample();
        return true;
      }
      begin_ += decoded_;
      const Result<std::uint64_t> rows = table_->decode();
      if (!rows) {
        row_ = std::max(row_, begin_);
        item = damaged(end, rows.error());
        return true;
      }
      decoded_ = *rows;
    }
  }

 private:
  void close() {
    open_ = false;
    ++at_;
  }

  // The rest of the row group, up to row `end`.
  Item damaged(std::uint64_t end, const Error& error) {
    Item item{.place = row_,
              .cursor = end,
              .bytes = 0,
              .fault = SampleFault::kDamaged,
              .text = fmt::format("row group {} from row {} on: {}", groups_[at_], row_,
                                  error.message())};
    row_ = end;
    close();
    return item;
  }

  Item sample() {
    const std::uint64_t row = row_++;
    Item item{.place = row, .cursor = row_, .bytes = 0};
    const auto refuse = [&](SampleFault fault, std::string text) {
      item.fault = fault;
      item.text = std::move(text);
      return item;
    };
    fields_.clear();
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const WantedField& wanted = wanted_[i];
      TableValue& value = values_[i];
      table_->value(i, row - begin_, value);
      item.bytes += value.bytes.size();
      if (!value.fault.empty()) {
        return refuse(SampleFault::kWrongType,
                      fmt::format("column '{}': {}", wanted.name, value.fault));
      }
      if (value.type == TableType::kNothing) {
        if (!needs_all_) continue;
        return refuse(SampleFault::kMissingField, fmt::format("column '{}' is null", wanted.name));
      }
      const SampleDtype is = dtype_of(value.type);
      SampleField field{.name = wanted.as,
                        .dtype = wanted.dtype.value_or(is),
                        .shape = value.shape,
                        .data = value.bytes};
      bool fits = is_array(field.dtype) == is_array(is);
      if (fits && is_array(is) && field.dtype != is) {
        fits = convert_numbers(value.bytes, is, field.dtype, converted_[i]);
        field.data = converted_[i];
      }
      if (!fits) {
        return refuse(SampleFault::kWrongType,
                      fmt::format("column '{}' is {}, which cannot be {}", wanted.name,
                                  dtype_name(is), dtype_name(field.dtype)));
      }
      const std::string_view text(reinterpret_cast<const char*>(field.data.data()),
                                  field.data.size());
      if (field.dtype == SampleDtype::kText && !simdjson::validate_utf8(text)) {
        return refuse(SampleFault::kWrongType, fmt::format("column '{}' is no UTF-8", wanted.name));
      }
      fields_.push_back(field);
    }
    item.fields = fields_;
    return item;
  }

  std::unique_ptr<formats::TableFile> table_;
  std::vector<WantedField> wanted_;
  bool needs_all_;
  std::vector<std::size_t> groups_;  // of the part
  std::size_t at_ = 0;               // of these
  bool open_ = false;
  std::uint64_t begin_ = 0;  // the first of the rows that are decoded
  std::uint64_t decoded_ = 0;
  std::uint64_t row_;  // next
  // Of the row at hand, by wanted field.
  std::vector<TableValue> values_;
  std::vector<std::vector<std::byte>> converted_;
  std::vector<SampleField> fields_;
};

struct Opened {
  std::unique_ptr<formats::TableFile> table;
  std::vector<WantedField> wanted;  // by chosen column
  bool needs_all;
};
Result<Opened> open_table(const SampleSourceConfig& config, shm::Fd fd) {
  const formats::OpenTableFile& open = formats::parquet_table_opener();
  if (!open) {
    return Error{ErrorCode::kConfiguration,
                 "this program reads no Parquet files: set `format: PARQUET`"};
  }
  Result<std::unique_ptr<formats::TableFile>> table = open(std::move(fd));
  if (!table) return table.error();
  const std::vector<std::string>& columns = (*table)->columns();
  std::vector<WantedField> wanted = wanted_fields(config);
  const bool needs_all = !wanted.empty();
  std::vector<std::size_t> chosen;
  for (const WantedField& field : wanted) {
    const auto found = std::ranges::find(columns, field.name);
    if (found == columns.end()) {
      return Error{ErrorCode::kNotFound,
                   fmt::format("it has no column '{}'; it has {}", field.name,
                               fmt::to_string(fmt::join(columns, ", ")).substr(0, 500))};
    }
    chosen.push_back(static_cast<std::size_t>(found - columns.begin()));
  }
  for (std::size_t i = 0; !needs_all && i < columns.size(); ++i) {
    if (std::ranges::find(columns, columns[i]) - columns.begin() !=
        static_cast<std::ptrdiff_t>(i)) {
      return Error{ErrorCode::kDamaged, fmt::format("it has two columns '{}'", columns[i])};
    }
    wanted.push_back({.name = columns[i], .as = columns[i]});
    chosen.push_back(i);
  }
  (*table)->choose(std::move(chosen));
  return Opened{std::move(*table), std::move(wanted), needs_all};
}

}  // namespace

bool can_divide_parquet(const SampleSourceConfig& config, shm::Fd fd) {
  return static_cast<bool>(open_table(config, std::move(fd)));
}

Result<std::unique_ptr<SampleFile>> open_parquet(const SampleSourceConfig& config,
                                                 SamplePart part) {
  Result<Opened> opened = open_table(config, std::move(part.fd));
  if (!opened) return opened.error();
  const std::vector<RowGroup>& all = opened->table->row_groups();
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint64_t begin =
        std::min(all[i].begin, std::max<std::uint64_t>(part.file_bytes, 1) - 1);
    if (begin >= part.begin && begin < part.end) groups.push_back(i);
  }
  return std::unique_ptr<SampleFile>(
      std::make_unique<ParquetSamples>(std::move(opened->table), std::move(opened->wanted),
                                       opened->needs_all, std::move(groups), part.cursor));
}

}  // namespace ringfeed
