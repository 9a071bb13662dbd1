// Rows of a table as stages pass them on: a few columns, each in one piece, without a library for
// tables. Little-endian, 8-byte aligned; made by RowBatchWriter, looked at by RowBatch, which
// trusts nothing.
//
//   offset  size            field
//        0  8               first_row     of the file
//        8  4 x 6           rows, columns, file, epoch, path bytes, reserved (0)
//       32  16 x columns    kind (4), flags (4), offset from the record's start (8)
//           path bytes      path of the file, up to a multiple of 8
//           columns         kText: u32 [rows + 1] where each value begins, then the bytes
//                           kInteger: i64 [rows]; kNumber: f64 [rows], NaN where there is no value
//                           with kHasMissing (not kNumber) first u8 [rows]: 1 where there is one
//                           kAbsent, kMissing: nothing
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ringfeed::formats {

enum class ColumnKind : std::uint32_t {
  kAbsent = 0,   // the file has no such column
  kMissing = 1,  // it has, without a single value
  kText = 2,
  kInteger = 3,
  kNumber = 4,
};

struct RowBatchHead {
  std::uint64_t first_row;
  std::uint32_t rows;
  std::uint32_t columns;
  std::uint32_t file;   // number of the file among those of the source
  std::uint32_t epoch;  // from 0
  std::uint32_t path_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(RowBatchHead) == 32);

// A record of rows. The bytes must outlive it.
class RowBatch {
 public:
  // False: it is no such record, or one of its parts lies outside of it.
  [[nodiscard]] bool read(std::span<const std::byte> record);

  [[nodiscard]] const RowBatchHead& head() const noexcept { return head_; }
  [[nodiscard]] std::uint32_t rows() const noexcept { return head_.rows; }
  [[nodiscard]] std::string_view path() const noexcept { return path_; }
  // kAbsent also of a column that the record does not have.
  [[nodiscard]] ColumnKind kind(std::uint32_t column) const noexcept {
    return column < columns_.size() ? columns_[column].kind : ColumnKind::kAbsent;
  }

  // Of a row below rows(). Text of a column of another kind is none.
  [[nodiscard]] std::optional<std::string_view> text(std::uint32_t column,
                                                     std::uint32_t row) const noexcept {
    if (kind(column) != ColumnKind::kText || !has(columns_[column], row)) return std::nullopt;
    const Column& at = columns_[column];
    const std::uint32_t begin = load<std::uint32_t>(at.values + 4 * std::size_t{row});
    const std::uint32_t end = load<std::uint32_t>(at.values + 4 * (std::size_t{row} + 1));
    return std::string_view(reinterpret_cast<const char*>(at.bytes) + begin, end - begin);
  }
  // NaN: none. An integer is converted.
  [[nodiscard]] double number(std::uint32_t column, std::uint32_t row) const noexcept {
    switch (kind(column)) {
      case ColumnKind::kNumber:
        return load<double>(columns_[column].values + 8 * std::size_t{row});
      case ColumnKind::kInteger:
        if (!has(columns_[column], row)) return std::nan("");
        return static_cast<double>(
            load<std::int64_t>(columns_[column].values + 8 * std::size_t{row}));
      default:
        return std::nan("");
    }
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::uint32_t column,
                                                    std::uint32_t row) const noexcept {
    if (kind(column) != ColumnKind::kInteger || !has(columns_[column], row)) return std::nullopt;
    return load<std::int64_t>(columns_[column].values + 8 * std::size_t{row});
  }

 private:
  struct Column {
    ColumnKind kind = ColumnKind::kAbsent;
    const std::byte* given = nullptr;  // nullptr: every row has a value
    const std::byte* values = nullptr;
    const std::byte* bytes = nullptr;  // of kText
  };
  template <typename T>
  static T load(const std::byte* at) noexcept {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static bool has(const Column& column, std::uint32_t row) noexcept {
    return column.given == nullptr || column.given[row] != std::byte{0};
  }
  [[nodiscard]] bool read_column(std::span<const std::byte> record, std::uint32_t number);

  RowBatchHead head_{};
  std::string_view path_;
  std::vector<Column> columns_;
};

// Writes a record into room that the caller has: first how large it will be, then each column.
class RowBatchWriter {
 public:
  // What one column takes: `text_bytes` of all its values together.
  [[nodiscard]] static std::uint64_t column_bytes(ColumnKind kind, bool has_missing,
                                                  std::uint32_t rows,
                                                  std::uint64_t text_bytes) noexcept;
  // What comes before the columns.
  [[nodiscard]] static std::uint64_t head_bytes(std::uint32_t columns,
                                                std::size_t path_bytes) noexcept;

  // `out` is 8-byte aligned and has room for it all (RF_CHECK).
  RowBatchWriter(std::span<std::byte> out, const RowBatchHead& head,
                 std::string_view path) noexcept;
  // The next column; `given` is written by the caller where it is not empty, and so are `values`
  // and, once it has said by offsets[rows] how many, the bytes.
  struct Column {
    std::span<std::uint8_t> given;
    std::span<std::uint32_t> offsets;  // of kText: rows + 1
    std::span<std::int64_t> integers;
    std::span<double> numbers;
    std::byte* text = nullptr;
  };
  [[nodiscard]] Column add(ColumnKind kind, bool has_missing, std::uint64_t text_bytes) noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return used_; }

 private:
  std::span<std::byte> out_;
  std::uint32_t rows_;
  std::uint32_t columns_;
  std::uint32_t added_ = 0;
  std::uint64_t used_;
};

}  // namespace ringfeed::formats
