// What reads the files that Apache Arrow knows: Parquet, Arrow's own, CSV. It is a library of its
// own, libringfeed_arrow.so, which is loaded when the first of such files is to be read: Arrow
// makes a process larger and its start slower.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"
#include "workers/io/byte_stream.h"
#include "workers/io/row_file.h"
#include "workers/io/table_file.h"

namespace ringfeed::formats {

// How the text of a table is written.
struct CsvFormat {
  std::optional<char> delimiter = {};  // none: as its first line shows
  bool has_names = true;               // the first row holds the names of the columns
  std::uint64_t row_bytes_max = std::uint64_t{64} << 20;
  Packing packing = Packing::kPlain;
  std::uint64_t window_bytes_max = ByteStream::kWindowBytesMax;
};

// Each takes an open file, but the first. Errors: kIo, kDamaged; kNotFound of the first alone;
// kUnsupported: it is well-formed, and of a kind that is not read.
struct ArrowReaders {
  // `threads`: that decode columns.
  Result<std::unique_ptr<RowFile>> (*parquet_rows)(const std::string& path,
                                                   const std::vector<ColumnWish>& wishes,
                                                   std::uint32_t threads);
  Result<std::unique_ptr<TableFile>> (*parquet_table)(shm::Fd fd);
  Result<std::unique_ptr<TableFile>> (*arrow_table)(shm::Fd fd);
  Result<std::unique_ptr<TableFile>> (*csv_table)(shm::Fd fd, const CsvFormat& format);
};

// kNotFound: the library is not there, or cannot be loaded, and what helps.
[[nodiscard]] Result<const ArrowReaders*> arrow_readers();
// Those of a program that is linked with them; nullptr: the library's.
void set_arrow_readers(const ArrowReaders* readers) noexcept;

}  // namespace ringfeed::formats
