#include "workers/io/row_file.h"

#include <utility>

namespace ringfeed::formats {
namespace {

OpenRowFile& opener() noexcept {
  static OpenRowFile open;
  return open;
}

}  // namespace

void set_parquet_opener(OpenRowFile open) { opener() = std::move(open); }

const OpenRowFile& parquet_opener() noexcept { return opener(); }

}  // namespace ringfeed::formats
