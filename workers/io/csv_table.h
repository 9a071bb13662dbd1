// Text with a row of cells in each line, CSV, as a table (table_file.h), by way of Apache Arrow.
//
//   columns  as the first row names them, or "0", "1" and so on
//   values   all text: an empty cell is empty text
//   quotes   a cell in double quotes holds delimiters, ends of lines, and quotes that are doubled
//   rows     one with another number of cells than there are columns is a fault of its own; lines
//            without anything are none
//
// A file is one row group whose rows nobody has counted. It is read from the beginning, about a
// megabyte at a time, or a row.
#pragma once

#include "workers/io/arrow_readers.h"

namespace ringfeed::formats {

[[nodiscard]] Result<std::unique_ptr<TableFile>> open_csv_table(shm::Fd fd,
                                                                const CsvFormat& format);

}  // namespace ringfeed::formats
