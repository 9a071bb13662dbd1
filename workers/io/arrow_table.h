// Files of Arrow's own (IPC) as tables (table_file.h): those with a table of contents, whose record
// batches are row groups, and streams, which are read from the beginning and are one. Values are as
// in parquet_table.h. Feather files of version 2 are such; those of version 1 are kUnsupported.
//
// At any time one record batch is in memory.
#pragma once

#include "ringfeed/shm/file.h"
#include "workers/io/table_file.h"

namespace ringfeed::formats {

[[nodiscard]] Result<std::unique_ptr<TableFile>> open_arrow_table(shm::Fd fd);

}  // namespace ringfeed::formats
