// What travels between a source of rows and who reads them, by the record's `user`. Little-endian.
//
//   rows      RowBatch (io/row_batch.h); in all but kRowsRecord and kFilesRecord one without
//             rows and columns, which names file and epoch
//   requests  FileRequest: what a parquet_source shall read next (EXACT)
#pragma once

#include <cstdint>

namespace ringfeed {

// ---- rows
inline constexpr std::uint64_t kRowsRecord = 0;
// Of the file, behind the rows so far, some are lost; more may follow.
inline constexpr std::uint64_t kRowsGapRecord = 1;
inline constexpr std::uint64_t kFileEndRecord = 2;
// It cannot be read to its end. With EXACT nothing of it counts.
inline constexpr std::uint64_t kFileFailedRecord = 3;
// All files of the epoch have been output.
inline constexpr std::uint64_t kEpochEndRecord = 4;
// The first record with EXACT: FileList.
inline constexpr std::uint64_t kFilesRecord = 5;

struct FileList {
  std::uint32_t files;  // of this rank, numbered from 0 in sorted order
  std::uint32_t reserved;
};

// ---- requests
struct FileRequest {
  std::uint32_t file;
  std::uint32_t epoch;
};

}  // namespace ringfeed
