// What travels between the stages that name files and those that read them, by the record's `user`.
//
//   files    bytes: a path, not terminated. user: kFileRecord, or kScanCompleteRecord (no path)
#pragma once

#include <cstdint>

namespace ringfeed {

// A file is there: it is new, or has been written anew.
inline constexpr std::uint64_t kFileRecord = 0;
// All files that were there at the start have been named.
inline constexpr std::uint64_t kScanCompleteRecord = 1;

}  // namespace ringfeed
