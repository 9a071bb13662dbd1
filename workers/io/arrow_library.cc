#include "workers/io/arrow_library.h"

#include <string_view>

#include "workers/io/arrow_table.h"
#include "workers/io/csv_table.h"
#include "workers/io/parquet_file.h"
#include "workers/io/parquet_table.h"

namespace ringfeed::formats {

const ArrowReaders kArrowReaders{.parquet_rows = &open_parquet_file,
                                 .parquet_table = &open_parquet_table,
                                 .arrow_table = &open_arrow_table,
                                 .csv_table = &open_csv_table};

}  // namespace ringfeed::formats

// nullptr: what asks is of another version.
extern "C" __attribute__((visibility("default"))) const ringfeed::formats::ArrowReaders*
ringfeed_arrow_readers(const char* version) {
  return std::string_view(version) == RINGFEED_VERSION ? &ringfeed::formats::kArrowReaders
                                                       : nullptr;
}
