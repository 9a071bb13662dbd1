// The rows of a table as samples: a column is a field, null is a field that is missing. A part has
// the row groups that begin in it. The cursor of an item is the number of the next row of the file.
//
// Where the table has nothing but text (CSV), a field of a declared type is read as that. Of the
// others the rows that are decoded first tell whether a column is one of truth values, of whole
// numbers, of numbers or of text: a death decodes the same rows first.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "workers/io/arrow_readers.h"
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

// Of a cell in a message.
constexpr std::size_t kShownBytes = 60;

struct WantedColumn {
  WantedField field;
  std::optional<std::size_t> place;  // among the chosen columns; none: the table lacks it
};

// ---- tables of text

// What a cell stands for; an empty one for nothing. These are read as nothing, too, by whatever
// reads tables.
constexpr std::array<std::string_view, 9> kNothings = {"NA",   "N/A",  "n/a",  "#N/A", "#NA",
                                                       "NULL", "null", "None", "<NA>"};
constexpr std::array<std::string_view, 3> kTrue = {"true", "True", "TRUE"};
constexpr std::array<std::string_view, 3> kFalse = {"false", "False", "FALSE"};

bool is_one_of(std::span<const std::string_view> words, std::string_view text) {
  return std::ranges::find(words, text) != words.end();
}

std::string_view text_of(const TableValue& value) {
  return {reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()};
}

std::string_view without_space(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

template <typename T>
bool put_number(std::string_view text, TableType type, TableValue& to) {
  T number{};
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool beyond = error == std::errc::result_out_of_range && std::is_floating_point_v<T>;
  if (stop != end || text.empty() || (error != std::errc() && !beyond)) return false;
  // from_chars leaves the number as it was: too large, or too small to be told from 0.
  if (beyond) number = static_cast<T>(std::strtod(std::string(text).c_str(), nullptr));
  const auto* const bytes = reinterpret_cast<const std::byte*>(&number);
  to.bytes.assign(bytes, bytes + sizeof number);
  to.type = type;
  return true;
}

// A whole number, as it is written.
bool is_whole(std::string_view cell) {
  if (cell.starts_with('+') || cell.starts_with('-')) cell.remove_prefix(1);
  return !cell.empty() && cell.find_first_not_of("0123456789") == std::string_view::npos;
}

// The value that a cell stands for; false: it is text. Of a cell that stands for nothing kNothing,
// of a whole number that no integer holds the nearest float64.
bool read_cell(TableValue& value) {
  const std::string cell(without_space(text_of(value)));
  if (cell.empty() || is_one_of(kNothings, cell)) {
    value.type = TableType::kNothing;
    value.bytes.clear();
    return true;
  }
  if (is_one_of(kTrue, cell) || is_one_of(kFalse, cell)) {
    value.type = TableType::kBool;
    value.bytes.assign(1, std::byte{is_one_of(kTrue, cell) ? std::uint8_t{1} : std::uint8_t{0}});
    return true;
  }
  return put_number<std::int64_t>(cell, TableType::kInt64, value) ||
         put_number<std::uint64_t>(cell, TableType::kUint64, value) ||
         put_number<double>(cell, TableType::kFloat64, value);
}

// What the cells of a column are, as far as they have been seen.
class CellType {
 public:
  void see(TableValue cell) {
    const bool whole = is_whole(without_space(text_of(cell)));
    if (!read_cell(cell)) {
      seen_ = Seen::kText;
      return;
    }
    switch (cell.type) {
      case TableType::kNothing:
        break;
      case TableType::kBool:
        seen_ = std::max(seen_, Seen::kBool);
        if (seen_ != Seen::kBool) seen_ = Seen::kText;
        break;
      case TableType::kFloat64:
        beyond_ |= whole;
        if (whole) {
          seen_ = seen_ == Seen::kBool ? Seen::kText : std::max(seen_, Seen::kWhole);
          break;
        }
        seen_ = seen_ == Seen::kBool ? Seen::kText : std::max(seen_, Seen::kReal);
        break;
      default:
        seen_ = seen_ == Seen::kBool ? Seen::kText : std::max(seen_, Seen::kWhole);
        break;
    }
  }
  // Whatever comes, it stays text.
  [[nodiscard]] bool is_settled() const noexcept { return seen_ == Seen::kText; }
  // A column without any value is text, and one of whole numbers that no integer holds: they are
  // names of something, more often than not.
  [[nodiscard]] bool is_text() const noexcept {
    return is_settled() || seen_ == Seen::kNothing || (beyond_ && seen_ == Seen::kWhole);
  }
  [[nodiscard]] bool is_real() const noexcept { return seen_ == Seen::kReal; }

 private:
  enum class Seen : std::uint8_t { kNothing, kBool, kWhole, kReal, kText };
  Seen seen_ = Seen::kNothing;
  bool beyond_ = false;  // a whole number that no integer holds
};

class TableSamples final : public SampleFile {
 public:
  TableSamples(std::unique_ptr<formats::TableFile> table, std::vector<WantedColumn> wanted,
               std::vector<std::size_t> groups, std::uint64_t row)
      : table_(std::move(table)),
        wanted_(std::move(wanted)),
        groups_(std::move(groups)),
        row_(row),
        as_text_(wanted_.size(), true),
        values_(wanted_.size()),
        converted_(wanted_.size()) {}

  Result<bool> next(Item& item) override {
    for (;;) {
      if (at_ == groups_.size()) return false;
      const RowGroup& group = table_->row_groups()[groups_[at_]];
      const bool counted = group.rows != formats::kRowsUnknown;
      const std::uint64_t end = counted ? group.first_row + group.rows : formats::kRowsUnknown;
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
        if (!counted || rows.error().code() != ErrorCode::kDamaged) return rows.error();
        row_ = std::max(row_, begin_);
        item = damaged(end, rows.error());
        return true;
      }
      decoded_ = *rows;
      if (begin_ == 0 && table_->is_text()) see_types();
      if (decoded_ == 0) close();
    }
  }

  [[nodiscard]] std::uint64_t checked() const override {
    return table_->in_doubt() ? 0 : ~std::uint64_t{0};
  }
  [[nodiscard]] std::uint64_t trailing_bytes() const override { return table_->trailing_bytes(); }
  [[nodiscard]] std::uint64_t lost() const override {
    std::uint64_t rows = 0;
    for (std::size_t i = at_; i < groups_.size(); ++i) {
      const RowGroup& group = table_->row_groups()[groups_[i]];
      if (group.rows == formats::kRowsUnknown) return 1;
      const std::uint64_t end = group.first_row + group.rows;
      rows += end - std::min(end, std::max(row_, group.first_row));
    }
    return std::max<std::uint64_t>(rows, 1);
  }

 private:
  void close() {
    open_ = false;
    ++at_;
  }

  // By the rows that have been decoded, which are the first of the table.
  void see_types() {
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (!wanted_[i].place || wanted_[i].field.dtype) continue;
      CellType type;
      for (std::uint64_t row = 0; row < decoded_ && !type.is_settled(); ++row) {
        if (!table_->row_fault(row).empty()) continue;
        table_->value(*wanted_[i].place, row, values_[i]);
        type.see(values_[i]);
      }
      as_text_[i] = type.is_text();
      if (type.is_real()) wanted_[i].field.dtype = SampleDtype::kFloat64;
    }
  }

  // Of a table of text. False: the cell cannot be what the column is.
  [[nodiscard]] bool read_as(std::size_t i, TableValue& value) const {
    const std::optional<SampleDtype>& dtype = wanted_[i].field.dtype;
    if (dtype ? !is_array(*dtype) : as_text_[i]) return true;
    if (!read_cell(value)) return false;
    if (dtype == SampleDtype::kBool && value.type == TableType::kInt64) {
      // 0 and 1.
      const bool is_truth = value.bytes[0] <= std::byte{1} &&
                            std::all_of(value.bytes.begin() + 1, value.bytes.end(),
                                        [](std::byte byte) { return byte == std::byte{0}; });
      if (!is_truth) return false;
      value.type = TableType::kBool;
      value.bytes.resize(1);
    }
    return true;
  }

  // The rest of the row group, up to row `end`.
  Item damaged(std::uint64_t end, const Error& error) {
    Item item{
        .place = row_,
        .cursor = end,
        .bytes = 0,
        .fault = SampleFault::kDamaged,
        .text = fmt::format("row group {} from row {} on: {}", groups_[at_], row_, error.message()),
        .lost = end == formats::kRowsUnknown ? 1 : std::max<std::uint64_t>(end - row_, 1)};
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
    if (std::string fault = table_->row_fault(row - begin_); !fault.empty()) {
      return refuse(SampleFault::kDamaged, std::move(fault));
    }
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
      if (table_->is_text() && wanted_[i].place) {
        const std::string cell(text_of(value).substr(0, kShownBytes));
        if (!read_as(i, value)) {
          return refuse(
              SampleFault::kWrongType,
              fmt::format("column '{}' has {} where {}: give the field the dtype text if "
                          "it is no number",
                          wanted.name, in_quotes(cell),
                          wanted.dtype ? fmt::format("{} is wanted", dtype_name(*wanted.dtype))
                                       : "the rows before have numbers"));
        }
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
  std::uint64_t row_;          // next
  std::vector<bool> as_text_;  // by wanted field, of a table of text without declared types
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

Result<std::unique_ptr<formats::TableFile>> read_table(const SampleSourceConfig& config,
                                                       SampleSourceConfig_Format format,
                                                       SamplePart part) {
  const Result<const formats::ArrowReaders*> readers = formats::arrow_readers();
  if (!readers) return readers.error();
  switch (format) {
    case SampleSourceConfig::ARROW:
      return (*readers)->arrow_table(std::move(part.fd));
    case SampleSourceConfig::CSV: {
      formats::CsvFormat csv{.has_names = config.csv_names(),
                             .row_bytes_max = config.line_bytes_max(),
                             .packing = part.packing,
                             .window_bytes_max = config.window_bytes_max()};
      if (config.has_csv_delimiter()) csv.delimiter = config.csv_delimiter().front();
      return (*readers)->csv_table(std::move(part.fd), csv);
    }
    default:
      return (*readers)->parquet_table(std::move(part.fd));
  }
}

// The names of a table's columns. One without a name, as the index is that pandas writes, has a
// number.
std::vector<std::string> named(const formats::TableFile& table) {
  std::vector<std::string> names = table.columns();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string number = fmt::format("f{}", i);
    if (names[i].empty() && std::ranges::find(names, number) == names.end()) {
      names[i] = std::move(number);
    }
  }
  return names;
}

Result<Opened> open_table(const SampleSourceConfig& config, SampleSourceConfig_Format format,
                          SamplePart part) {
  Result<std::unique_ptr<formats::TableFile>> table = read_table(config, format, std::move(part));
  if (!table) return table.error();
  const std::vector<std::string> columns = named(**table);
  // An empty file lacks nothing.
  if (columns.empty() && (*table)->row_groups().empty()) return Opened{std::move(*table), {}};
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

bool can_divide_table(const SampleSourceConfig& config, SampleSourceConfig_Format format,
                      shm::Fd fd) {
  if (format == SampleSourceConfig::CSV) return false;
  const Result<Opened> opened = open_table(config, format, SamplePart{.fd = std::move(fd)});
  if (!opened) return false;
  const std::vector<RowGroup>& groups = opened->table->row_groups();
  return std::ranges::none_of(
      groups, [](const RowGroup& group) { return group.rows == formats::kRowsUnknown; });
}

Result<std::unique_ptr<SampleFile>> open_table_samples(const SampleSourceConfig& config,
                                                       SampleSourceConfig_Format format,
                                                       SamplePart part) {
  const std::uint64_t begin = part.begin;
  const std::uint64_t end = part.end;
  const std::uint64_t file_bytes = part.file_bytes;
  const std::uint64_t cursor = part.cursor;
  Result<Opened> opened = open_table(config, format, std::move(part));
  if (!opened) return opened.error();
  const std::vector<RowGroup>& all = opened->table->row_groups();
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint64_t at = std::min(all[i].begin, std::max<std::uint64_t>(file_bytes, 1) - 1);
    if (at >= begin && at < end) groups.push_back(i);
  }
  return std::unique_ptr<SampleFile>(std::make_unique<TableSamples>(
      std::move(opened->table), std::move(opened->wanted), std::move(groups), cursor));
}

}  // namespace ringfeed
