#include "workers/io/table_file.h"

#include <utility>

namespace ringfeed::formats {
namespace {

OpenTableFile& table_opener() noexcept {
  static OpenTableFile open;
  return open;
}

}  // namespace

void set_parquet_table_opener(OpenTableFile open) { table_opener() = std::move(open); }

const OpenTableFile& parquet_table_opener() noexcept { return table_opener(); }

}  // namespace ringfeed::formats
