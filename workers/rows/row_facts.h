// What sources of rows and those that read them say to each other (ringfeed/worker/facts.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/worker/facts.h"
#include "workers/io/row_file.h"

namespace ringfeed {

namespace formats {
// Names; in brackets those that a file may lack.
inline std::string fact_text(const std::vector<ColumnWish>& columns) {
  std::string text;
  for (const ColumnWish& column : columns) {
    text += text.empty() ? "" : ", ";
    text += column.required ? column.name : "[" + column.name + "]";
  }
  return text;
}
}  // namespace formats

// ---- wishes

// The columns, in the order in which records are to have them.
inline constexpr Fact<std::vector<formats::ColumnWish>> kRowColumns{"rows.columns"};
// The reader says which file comes next, at its port "requests".
inline constexpr Fact<bool> kFilesOnRequest{"rows.files_on_request"};

// ---- facts

// The source can do that.
inline constexpr Fact<bool> kTakesFileRequests{"rows.takes_file_requests"};
// Rows may be dropped on the way.
inline constexpr Fact<bool> kRowsMayDrop{"rows.may_drop"};
// Epochs follow each other for as long as somebody reads, whatever the feed's `epochs`.
inline constexpr Fact<bool> kRowsRepeat{"rows.repeat"};
// Files are to be read in random order.
inline constexpr Fact<bool> kShuffleFiles{"rows.shuffle_files"};
// Which share of the files it is.
inline constexpr Fact<std::uint64_t> kRowsRank{"rows.rank"};

}  // namespace ringfeed
