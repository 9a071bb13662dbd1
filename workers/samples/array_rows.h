// An array of NumPy's as rows of samples: what the first axis counts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/worker/sample.h"
#include "workers/io/npy_file.h"
#include "workers/samples/sample_file.h"

namespace ringfeed {

// The elements of an array, or a member of its records.
struct ArrayColumn {
  enum class Kind : std::uint8_t {
    kNumbers,
    kText,   // UTF-32, filled up with zeros
    kBytes,  // filled up with zeros
    kRaw     // bytes as they are
  };
  std::string name = {};  // none: the elements themselves
  Kind kind = Kind::kNumbers;
  SampleDtype dtype = SampleDtype::kBytes;
  std::vector<std::uint32_t> shape = {};  // of a row
  std::uint64_t offset = 0;               // in an element
  std::uint64_t bytes = 0;                // of an element
  std::uint32_t swap_bytes = 0;           // of numbers in the other byte order, each; 0: in ours
};

struct ArrayRows {
  std::vector<ArrayColumn> columns = {};
  std::vector<std::uint64_t> axes = {};  // behind the first
  std::uint64_t rows = 0;
  std::uint64_t cells = 0;  // elements of a row
  std::uint64_t element_bytes = 0;
  std::uint64_t row_bytes = 0;
  bool columns_first = false;  // Fortran's order
};

// kUnsupported: why it has no rows that a sample can hold.
[[nodiscard]] Result<ArrayRows> array_rows(const formats::NpyHead& head);

// One cell of many rows, `cell` counted as Fortran does, to where C's order has it in these.
void put_cells(const ArrayRows& array, std::uint64_t cell, std::span<const std::byte> cells,
               std::span<std::byte> rows) noexcept;

// Rows of an array as fields.
class RowFields {
 public:
  RowFields() = default;
  // Of a plain array the first wanted field says the name and the type; of records, fields are
  // members of these names. `before`: of members, in front of their names in the samples. Nothing
  // wanted: all there are. kNotFound: a member is missing; kUnsupported: of another type.
  [[nodiscard]] static Result<RowFields> make(const ArrayRows& array, std::string_view name,
                                              const std::vector<WantedField>& wanted,
                                              std::string_view before);

  // Adds the fields of a row, C's order, to those that are there; they hold until the next call,
  // and as long as the row does. Nothing; or why they cannot be: the name of the field and what it
  // is.
  [[nodiscard]] std::string add(std::span<const std::byte> row, std::vector<SampleField>& fields);

 private:
  struct Part {
    ArrayColumn column;
    WantedField field;  // by default, if `absent`
    bool absent = false;
    std::vector<std::byte> gathered = {};
    std::vector<std::byte> converted = {};
  };
  std::vector<Part> parts_;
  std::uint64_t cells_ = 0;
  std::uint64_t element_bytes_ = 0;
};

}  // namespace ringfeed
