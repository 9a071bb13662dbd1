// What travels inside of sample_source, from the lane that knows the files to those that read them.
//
//   parts    FilePart, the path: which part of which file is to be read
#pragma once

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

struct FilePart {
  std::uint64_t begin;       // lines that begin here or behind, and
  std::uint64_t end;         // before this; ~0: to the end
  std::uint64_t file_bytes;  // when the epoch came to it
  std::uint64_t epoch;       // from 1
  std::uint64_t version;     // of a copy in a cache (version_of), as it was begun; else 0
  std::uint32_t path_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(FilePart) == 48);

// RF_CHECK: the record is one.
inline FilePart file_part(const Record& record, std::string& path) {
  FilePart part{};
  RF_CHECK(record.bytes.size() >= sizeof part, record.bytes.size());
  std::memcpy(&part, record.bytes.data(), sizeof part);
  RF_CHECK(record.bytes.size() == sizeof part + part.path_bytes, part.path_bytes);
  path.assign(reinterpret_cast<const char*>(record.bytes.data()) + sizeof part, part.path_bytes);
  return part;
}

// Of a copy in a cache: the nanoseconds of its time are a digest of its version. The seconds are
// the store's, and need not be the same each time. Never 0.
inline std::uint64_t version_of(const struct stat& copy) noexcept {
  return static_cast<std::uint64_t>(copy.st_mtim.tv_nsec) + 1;
}

// Will the file be there, or can it be opened, a little later?
inline bool is_to_come(const Error& error) noexcept {
  return error.code() == ErrorCode::kBusy || error.code() == ErrorCode::kNoMemory;
}

// Says what a lane waits for; a lack of descriptors in the log too.
class FileWaits {
 public:
  void say(const StageContext& context, const std::string& path, const Error& error) {
    context.note(fmt::format("waiting for {}: {}", path, error.message()));
    if (error.code() != ErrorCode::kNoMemory || !starved_.speak()) return;
    context.warn(
        fmt::format("no_descriptor stage={} count={} path={}: {}; retrying until there is one",
                    context.stage, starved_.count(), path, error.message()));
  }

 private:
  Occasions starved_;
};

}  // namespace ringfeed
