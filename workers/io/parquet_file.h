// Parquet files as rows (row_file.h), by way of Apache Arrow (arrow_readers.h).
//
// Columns are decoded value by value from their pages, without arrays of Arrow in between. At any
// time there is of each column one page and the rows of about one record in memory, whatever the
// size of the file.
//
//   text      strings, enumerations, JSON; bytes without a logical type where anything fits
//   numbers   integers and booleans as kInteger (unsigned ones beyond 2^63 as kNumber), floats of
//             16, 32 and 64 bits as kNumber
//   others    dates, times and time stamps as kInteger in their own unit, where anything fits
//   null      a column that is nothing but null fits everything
//   not       decimals, intervals, and whatever is nested: lists, maps, structs
#pragma once

#include "workers/io/row_file.h"

namespace ringfeed::formats {

Result<std::unique_ptr<RowFile>> open_parquet_file(const std::string& path,
                                                   const std::vector<ColumnWish>& wishes,
                                                   std::uint32_t threads);

}  // namespace ringfeed::formats
