// Parquet files as tables (table_file.h), by way of Apache Arrow (arrow_readers.h).
//
//   numbers    integers, floats and booleans as they are; dates, times and time stamps as whole
//              numbers in their own unit
//   text       strings, enumerations, JSON; decimals as they are written
//   bytes      binary of any or of one length
//   arrays     lists of numbers, and lists of such lists if these are of one length
//   text, too  any other list or map: as JSON. Not with bytes in it
//   columns    a member of a struct, and of a struct in it, is a column of its own
//
// At any time about 4 MiB of rows are decoded, or one row.
#pragma once

#include "ringfeed/shm/file.h"
#include "workers/io/table_file.h"

namespace ringfeed::formats {

[[nodiscard]] Result<std::unique_ptr<TableFile>> open_parquet_table(shm::Fd fd);

}  // namespace ringfeed::formats
