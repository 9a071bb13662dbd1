// A file of a table whose values come out one by one, of the types that they have in it: numbers,
// text, bytes, and lists of numbers as arrays. Stages know this; what knows a format, and the
// library for it, is behind it (arrow_readers.h). Row files (row_file.h) are quicker and know fewer
// types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed::formats {

enum class TableType : std::uint8_t {
  kNothing,  // null
  kText,
  kBytes,
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
};

struct TableValue {
  TableType type = TableType::kNothing;
  bool is_array = false;
  std::vector<std::uint32_t> shape = {};  // of an array
  std::vector<std::byte> bytes = {};      // little-endian; text is as the file has it
  std::string fault = {};                 // why it is of no type that there is; empty: it is
};

// A run of rows that is packed together, and can be read without the others.
struct RowGroup {
  std::uint64_t begin = 0;  // where it lies in the file
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;  // kRowsUnknown: it is the only one, and nobody has counted them
};
inline constexpr std::uint64_t kRowsUnknown = ~std::uint64_t{0};

class TableFile {
 public:
  virtual ~TableFile() = default;

  // All columns, in their order. A member of a struct is one: "struct.member". Several may have one
  // name.
  [[nodiscard]] virtual const std::vector<std::string>& columns() const noexcept = 0;
  [[nodiscard]] virtual const std::vector<RowGroup>& row_groups() const noexcept = 0;

  // The columns, by number, that are to be read. Once, before the first open().
  virtual void choose(std::vector<std::size_t> columns) = 0;
  // Goes to the begin of a row group. An error: it cannot be read (kDamaged).
  [[nodiscard]] virtual Status open(std::size_t row_group) = 0;
  // Decodes the next rows of the row group; 0: its end. How many it decodes at once follows from
  // the file and the chosen columns alone.
  [[nodiscard]] virtual Result<std::uint64_t> decode() = 0;
  // Of the rows that were decoded last, number `row` of these; `column` is a place in what was
  // chosen.
  virtual void value(std::size_t column, std::uint64_t row, TableValue& to) const = 0;

  // Are all values text, which may stand for numbers?
  [[nodiscard]] virtual bool is_text() const noexcept { return false; }
  // Of a row among those that were decoded last: why it has no values; empty: it has.
  [[nodiscard]] virtual std::string row_fault(std::uint64_t row) const {
    static_cast<void>(row);
    return {};
  }
  // Could what has been decoded still prove to be damaged? Until its end, of a packed file.
  [[nodiscard]] virtual bool in_doubt() const noexcept { return false; }
  // At the end: bytes of the file behind its last row that nothing is made of.
  [[nodiscard]] virtual std::uint64_t trailing_bytes() const noexcept { return 0; }
};

}  // namespace ringfeed::formats
