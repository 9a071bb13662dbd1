// Any bytes as a Parquet file, read as a stage reads it: row group by row group, in small records,
// in one thread.
//
// Holds: a record is as large as next() has said and can be read back; groups end where the file
// says; the last group read a second time gives the same; memory stays below the reader's limit.
// The library that decodes the pages is Arrow's own build, in which the sanitizers see nothing but
// what it allocates.
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/io/parquet_file.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

constexpr RecordLimits kLimits{.bytes = 4096, .bytes_max = 16384, .rows = 64};
constexpr std::uint64_t kRowsMax = 4096;

// How many rows came out, and why no more did.
struct Group {
  std::uint64_t rows = 0;
  std::uint64_t too_large = 0;
  RowFile::Kind end = RowFile::Kind::kGroupEnd;
  friend bool operator==(const Group&, const Group&) = default;
};

Group read_group(RowFile& file, std::uint32_t number) {
  constexpr std::string_view kPath = "/data/a.parquet";
  Group group;
  file.seek(number, 0);
  while (group.rows < kRowsMax) {
    const RowFile::Next next = file.next(kLimits, kPath.size());
    if (next.kind == RowFile::Kind::kTooLarge) {
      RF_HOLDS(next.bytes > kLimits.bytes_max, next.bytes);
      ++group.too_large;
      ++group.rows;
      file.pass(1);
      continue;
    }
    if (next.kind != RowFile::Kind::kRows) {
      RF_HOLDS((next.kind == RowFile::Kind::kDamaged) == !next.text.empty(), next.text);
      group.end = next.kind;
      break;
    }
    RF_HOLDS(next.rows > 0 && next.rows <= kLimits.rows, next.rows);
    RF_HOLDS(next.bytes <= (next.rows == 1 ? kLimits.bytes_max : kLimits.bytes), next.bytes);
    std::vector<std::uint64_t> room((next.bytes + 7) / 8);
    const std::span<std::byte> out(reinterpret_cast<std::byte*>(room.data()), next.bytes);
    const RowBatchHead head{.first_row = group.rows,
                            .rows = 0,
                            .columns = 0,
                            .file = 0,
                            .epoch = 0,
                            .path_bytes = 0,
                            .reserved = 0};
    file.write(out, head, kPath);
    RowBatch batch;
    RF_HOLDS(batch.read(out) && batch.rows() == next.rows && batch.path() == kPath, next.rows);
    group.rows += next.rows;
    file.pass(next.rows);
  }
  RF_HOLDS(group.rows <= file.row_groups()[number], group.rows, file.row_groups()[number]);
  return group;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Directory directory;
  const std::string path = directory.put("a.parquet", fuzz::bytes_of(data, size));
  const std::vector<ColumnWish> wishes = {{"text", ColumnType::kText, true},
                                          {"integer", ColumnType::kNumber, true},
                                          {"number", ColumnType::kNumber, false},
                                          {"any", ColumnType::kAny, false}};
  const Result<std::unique_ptr<RowFile>> opened = open_parquet_file(path, wishes, 1);
  if (!opened) {
    RF_HOLDS(!opened.error().message().empty(), size);
    return 0;
  }
  RowFile& file = **opened;
  RF_HOLDS(file.columns().size() == wishes.size(), file.columns().size());
  static_cast<void>(file.column_names());
  const auto groups =
      static_cast<std::uint32_t>(std::min<std::size_t>(file.row_groups().size(), 4));
  Group last;
  for (std::uint32_t g = 0; g < groups; ++g) last = read_group(file, g);
  if (groups != 0) {
    const Group again = read_group(file, groups - 1);
    RF_HOLDS(again == last, again.rows, last.rows);
  }
  return 0;
}
