// Writes small Parquet files for tests, by way of Arrow.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed::testing {

// A column; its values as Arrow reads them from text. Types: string, large_string, string_view,
// dictionary (of strings), binary, bool, int8 to int64, uint8 to uint64, half, float, double,
// date32, timestamp, null, list (of int64; the value is its one element), struct (of one string),
// decimal.
struct MadeColumn {
  std::string name;
  std::string type;
  std::vector<std::optional<std::string>> values;
  bool nullable = true;
};

struct MadeFile {
  std::string compression = "snappy";
  std::int64_t rows_of_group = 1 << 20;
  std::int64_t page_bytes = 1 << 20;
  bool dictionary = true;
  std::string encoding = {};  // without a dictionary: delta, split; empty: plain
  bool new_pages = false;     // data pages of version 2
  bool checksums = false;

  friend void PrintTo(const MadeFile& file, std::ostream* out) {
    *out << file.compression << (file.dictionary ? " dictionary" : "")
         << (file.encoding.empty() ? "" : " ") << file.encoding << (file.new_pages ? " v2" : "");
  }
};

// Throws std::runtime_error.
void write_parquet(const std::string& path, const std::vector<MadeColumn>& columns,
                   const MadeFile& file = {});

// The compressions that this Arrow has.
std::vector<std::string> parquet_compressions();

}  // namespace ringfeed::testing
