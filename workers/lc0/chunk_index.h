// The chunks of a tar: where each lies, whether it is gzip, how long it says to be. Made once per
// tar, kept in a cache directory, so that neither a restart nor a second feed reads the tar's
// headers again.
//
// A cache file belongs to one state of one tar: canonical path, size and modification time, all
// three inside it. Its name is a hash of the path; anything in it that is damaged, foreign or old
// makes it count as absent. Writers make a file of their own and rename it, so readers see whole
// files and writers do not meet. The directory is a convenience: missing, full or read-only, it
// costs the time to read the headers and nothing else.
//
// Layout of a cache file, version 3 (little-endian):
//   offset  size  field            meaning
//        0     8  magic            "rfchunks"
//        8     4  version          3
//       12     4  checksum         CRC-32 of everything from byte 16 to the end
//       16     8  tar_bytes        size of the tar
//       24     8  mtime_ns         modification time of the tar, nanoseconds since 1970
//       32     8  problem_count    what the tar had that was not understood, when it was read
//       40     8  chunk_count
//       48     8  path_bytes
//       56     8  reserved         0
//       64        chunks           32 bytes each: Chunk
//     then        path             path_bytes, not ended by a NUL; the file ends here
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/io/tar.h"

namespace ringfeed::formats {

// One game in the tar.
struct Chunk {
  std::uint64_t data_offset;
  std::uint64_t data_bytes;
  // For gzip the claim of its trailer (modulo 2^32), to be verified when it is read; for raw
  // members data_bytes.
  std::uint64_t uncompressed_bytes;
  std::uint32_t is_gzip;  // 1 or 0
  std::uint32_t reserved;

  friend bool operator==(const Chunk&, const Chunk&) = default;
};
static_assert(sizeof(Chunk) == 32, "changes only with the table above and its version");

struct ChunkIndex {
  std::vector<Chunk> chunks;  // in file order
  std::uint64_t problem_count = 0;
  std::vector<TarProblem> problems;  // empty if the index comes from the cache: they have been
                                     // reported when it was made
  bool from_cache = false;
};

// One state of one tar.
struct TarIdentity {
  std::string path;  // canonical: absolute, no links
  std::uint64_t tar_bytes = 0;
  std::int64_t mtime_ns = 0;

  friend bool operator==(const TarIdentity&, const TarIdentity&) = default;
};

// The identity of the file behind `fd`, which was opened at `path`.
[[nodiscard]] Result<TarIdentity> identify_tar(int fd, const std::string& path) noexcept;

// Reads the headers of the tar behind `fd`. Problems in the tar are in the index; an error only if
// it is no regular file.
[[nodiscard]] Result<ChunkIndex> build_chunk_index(int fd) noexcept;

// The path of the cache file for a tar.
[[nodiscard]] std::string chunk_index_path(const std::string& cache_directory,
                                           const std::string& tar_path) noexcept;

// The index kept for this identity, or nothing: never made, of another state, damaged, of another
// version, unreadable.
[[nodiscard]] std::optional<ChunkIndex> load_chunk_index(const std::string& cache_directory,
                                                         const TarIdentity& identity) noexcept;

// A cache file by itself: whose index it is, and the index. kNotFound, kIo: it cannot be read;
// kDamaged: what is wrong with it.
struct KeptChunkIndex {
  TarIdentity identity;
  ChunkIndex index;
};
[[nodiscard]] Result<KeptChunkIndex> read_chunk_index(const std::string& cache_file) noexcept;

// Whether these first bytes of a file are those of a cache file.
[[nodiscard]] bool is_chunk_index(std::span<const std::byte> bytes) noexcept;

// Keeps the index. False if the directory does not let itself be written to; nothing half-written
// stays behind. Any number of threads and processes may save at once: the last rename stays.
bool save_chunk_index(const std::string& cache_directory, const TarIdentity& identity,
                      const ChunkIndex& index) noexcept;

// The index of the tar behind `fd`, from the cache or else made and kept. `cache_directory` may be
// empty: no cache. A tar that changes while it is read is not kept.
[[nodiscard]] Result<ChunkIndex> load_or_build_chunk_index(const std::string& cache_directory,
                                                           int fd,
                                                           const std::string& path) noexcept;

}  // namespace ringfeed::formats
