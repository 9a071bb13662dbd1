// The rows of a table as samples: a column is a field, null is a field that is missing. A part has
// the row groups that begin in it. The cursor of an item is the number of the next row of the file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <optional>
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

struct WantedColumn {
  WantedField field;
  std::optional<std::size_t> place;  // among the chosen columns; none: the table lacks it
};

class ParquetSamples final : public SampleFile {
 public:
  ParquetSamples(std::unique_ptr<formats::TableFile> table, std::vector<WantedColumn> wanted,
                 std::vector<std::size_t> groups, std::uint64_t row)
      : table_(std::move(table)),
        wanted_(std::move(wanted)),
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
      const WantedField& wanted = wanted_[i].field;
      TableValue& value = values_[i];
      value.type = TableType::kNothing;
      if (wanted_[i].place) table_->value(*wanted_[i].place, row - begin_, value);
      item.bytes += value.bytes.size();
      if (!value.fault.empty()) {
        return refuse(SampleFault::kWrongType,
                      fmt::format("column '{}': {}", wanted.name, value.fault));
      }
      if (value.type == TableType::kNothing) {
        if (wanted.default_value) fields_.push_back(wanted.by_default());
        if (!wanted.is_needed()) continue;
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
        const bool value_alone =
            is_array(field.dtype) && is_array(is) && can_become(is, field.dtype);
        return refuse(
            SampleFault::kWrongType,
            fmt::format("column '{}' is {}, which cannot be {}{}", wanted.name, dtype_name(is),
                        dtype_name(field.dtype), value_alone ? " in this row" : ""));
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
  std::vector<WantedColumn> wanted_;
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
  std::vector<WantedColumn> wanted;
};

// The place of a column. "NAME#2" is the second of several of one name. kUnsupported: which of them
// is meant is not said. kNotFound: there is none.
Result<std::size_t> place_of(const std::vector<std::string>& columns, std::string_view name) {
  const auto first = std::ranges::find(columns, name);
  if (first != columns.end()) {
    const auto count = std::ranges::count(columns, name);
    if (count == 1) return static_cast<std::size_t>(first - columns.begin());
    return Error{ErrorCode::kUnsupported,
                 fmt::format("it has {} columns '{}': say in `fields` which, as '{}#1' to '{}#{}'",
                             count, name, name, name, count)};
  }
  const std::size_t sign = name.rfind('#');
  std::size_t number = 0;
  if (sign != std::string_view::npos) {
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + sign + 1, end, number);
    if (error != std::errc() || stop != end) number = 0;
  }
  for (std::size_t i = 0; number != 0 && i < columns.size(); ++i) {
    if (columns[i] == name.substr(0, sign) && --number == 0) return i;
  }
  return Error{ErrorCode::kNotFound,
               fmt::format("it has no column '{}'; it has {}", name,
                           fmt::to_string(fmt::join(columns, ", ")).substr(0, 500))};
}

Result<Opened> open_table(const SampleSourceConfig& config, shm::Fd fd) {
  const formats::OpenTableFile& open = formats::parquet_table_opener();
  if (!open) {
    return Error{ErrorCode::kConfiguration,
                 "this program reads no Parquet files: set `format: PARQUET`"};
  }
  Result<std::unique_ptr<formats::TableFile>> table = open(std::move(fd));
  if (!table) return table.error();
  const std::vector<std::string>& columns = (*table)->columns();
  std::vector<WantedField> fields = wanted_fields(config);
  if (fields.empty()) {
    // A null of these is a field that is missing.
    for (const std::string& name : columns) {
      fields.push_back({.name = name, .as = name, .may_lack = true});
    }
  }
  std::vector<WantedColumn> wanted;
  std::vector<std::size_t> chosen;
  for (WantedField& field : fields) {
    const Result<std::size_t> place = place_of(columns, field.name);
    if (!place && (field.is_needed() || place.error().code() != ErrorCode::kNotFound)) {
      return place.error();
    }
    WantedColumn& column = wanted.emplace_back(WantedColumn{std::move(field), std::nullopt});
    if (!place) continue;
    column.place = chosen.size();
    chosen.push_back(*place);
  }
  (*table)->choose(std::move(chosen));
  return Opened{std::move(*table), std::move(wanted)};
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
  return std::unique_ptr<SampleFile>(std::make_unique<ParquetSamples>(
      std::move(opened->table), std::move(opened->wanted), std::move(groups), part.cursor));
}

}  // namespace ringfeed
