// A file of rows that is read from front to back, row group by row group, and comes out as row
// batches (row_batch.h). Stages know this; what knows a format, and the library for it, is behind
// it (arrow_readers.h).
//
// Where one record ends and the next begins follows from the rows alone, counted from the row that
// seek() went to: whoever goes on at the end of a record cuts the rest as it would have been cut.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/io/row_batch.h"

namespace ringfeed::formats {

// What a reader of rows can do with a column.
enum class ColumnType {
  kText,
  kNumber,  // integers too
  kAny,
};
struct ColumnWish {
  std::string name;
  ColumnType type = ColumnType::kAny;
  bool required = true;  // without it the file is of no use
};
// What a file has for it.
struct ColumnFound {
  bool there = false;
  bool fits = false;  // there, and of such a type
  std::string type;   // as it was found, for people
};

// Tells a file from what was at its path before.
struct FileVersion {
  std::uint64_t bytes = 0;
  std::uint64_t mtime_ns = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

template <typename Stat>
[[nodiscard]] FileVersion version_of(const Stat& info) noexcept {
  return {static_cast<std::uint64_t>(info.st_size),
          static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
              static_cast<std::uint64_t>(info.st_mtim.tv_nsec),
          static_cast<std::uint64_t>(info.st_ino)};
}

struct RecordLimits {
  std::uint64_t bytes = 0;      // a record of several rows has no more
  std::uint64_t bytes_max = 0;  // nor has one of a single row
  std::uint32_t rows = 0;
};

class RowFile {
 public:
  virtual ~RowFile() = default;

  [[nodiscard]] virtual const FileVersion& version() const noexcept = 0;
  // One for each wish. What does not fit is kAbsent in the records.
  [[nodiscard]] virtual const std::vector<ColumnFound>& columns() const noexcept = 0;
  [[nodiscard]] virtual std::vector<std::string> column_names() const = 0;  // all that there are
  // The rows of each row group.
  [[nodiscard]] virtual const std::vector<std::uint64_t>& row_groups() const noexcept = 0;

  // Goes to a row of a row group.
  virtual void seek(std::uint32_t row_group, std::uint64_t row) noexcept = 0;

  enum class Kind {
    kRows,
    kTooLarge,  // the next row does not fit into a record
    kDamaged,   // the row group cannot be read from here on
    kGroupEnd,
  };
  struct Next {
    Kind kind = Kind::kGroupEnd;
    std::uint32_t rows = 0;   // of the record
    std::uint64_t bytes = 0;  // that it takes, or the row that is too large would
    std::string text = {};    // what is wrong
  };
  // What the next record is; the same until pass() or seek().
  [[nodiscard]] virtual Next next(const RecordLimits& limits, std::size_t path_bytes) noexcept = 0;
  // Writes it, after a next() that gave kRows. `head` has everything but rows and columns.
  virtual void write(std::span<std::byte> out, RowBatchHead head,
                     std::string_view path) noexcept = 0;
  // Moves past that many rows.
  virtual void pass(std::uint32_t rows) noexcept = 0;
};

}  // namespace ringfeed::formats
