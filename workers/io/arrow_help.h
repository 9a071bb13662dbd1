// What the readers that use Apache Arrow have in common. Only they include it.
#pragma once

#include <arrow/memory_pool.h>
#include <parquet/properties.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ringfeed::formats {

// Read from the file at once, of each column.
inline constexpr std::int64_t kParquetReadBytes = 256 * 1024;
// A damaged length must not take all memory: beyond this, a file gets three times what it says that
// a row group holds, and no file gets more than kArrowMemoryBytesMax.
inline constexpr std::int64_t kArrowMemoryBytes = 512LL << 20;
inline constexpr std::int64_t kArrowMemoryBytesMax = 16LL << 30;
inline constexpr std::int32_t kThriftStringBytesMax = 64 << 20;

// What Arrow throws and what is thrown here, as text.
template <typename Function>
std::string fault_of(Function&& function) noexcept {
  try {
    function();
    return {};
  } catch (const std::exception& error) {
    return error.what() == nullptr || *error.what() == '\0' ? "unknown error" : error.what();
  } catch (...) {
    return "unknown error";
  }
}

struct ArrowDamage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Settings with a limit to the memory that is taken by them; what other files of the process take
// does not count. `pools` must outlive what is read with them.
inline parquet::ReaderProperties parquet_properties(
    std::vector<std::unique_ptr<arrow::MemoryPool>>& pools, std::int64_t bytes_max) {
  pools.push_back(std::make_unique<arrow::ProxyMemoryPool>(arrow::default_memory_pool()));
  pools.push_back(std::make_unique<arrow::CappedMemoryPool>(pools.back().get(), bytes_max));
  parquet::ReaderProperties properties(pools.back().get());
  properties.enable_buffered_stream();
  properties.set_buffer_size(kParquetReadBytes);
  properties.set_page_checksum_verification(true);
  properties.set_thrift_string_size_limit(kThriftStringBytesMax);
  return properties;
}

}  // namespace ringfeed::formats
