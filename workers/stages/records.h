// What travels between the Lc0 stages. All little-endian; strings are not terminated.
//
//   files    bytes: a path. user: kFileRecord or kScanCompleteRecord (no path)
//   sources  SourceRecord, its ChunkPlaces, the path. user: kFileRecord; or kScanCompleteRecord,
//   empty tasks    TaskRecord, the path (inside the pool: which chunk a reading lane shall read)
//   rejects  RejectRecord (inside the pool: a chunk that cannot be used)
//   chunks   ChunkRecord, then the packed frames (formats/packed_frame.h) one after the other
//   frames   one packed frame; tag = identity of the chunk, index of the frame in it
#pragma once

#include <cstdint>

namespace ringfeed {

inline constexpr std::uint64_t kFileRecord = 0;
inline constexpr std::uint64_t kScanCompleteRecord = 1;

// One chunk of a source, as the pool keeps it.
struct ChunkPlace {
  std::uint64_t offset;  // of its bytes in the file
  std::uint64_t bytes;   // as stored
  std::uint32_t frames;  // claimed by the gzip trailer or by the size; verified when it is read
  std::uint16_t uses;    // how often it was drawn; saturates
  std::uint16_t flags;   // kChunk...
};
static_assert(sizeof(ChunkPlace) == 24);
inline constexpr std::uint16_t kChunkGzip = 1;     // to be inflated; else records as they are
inline constexpr std::uint16_t kChunkDropped = 2;  // was found unusable, or its file was replaced

struct SourceRecord {
  std::uint64_t first_chunk;  // index in the file of the first chunk here: a huge tar comes in
                              // several sources
  std::uint32_t chunk_count;
  std::uint32_t path_bytes;
};
static_assert(sizeof(SourceRecord) == 16);

struct TaskRecord {
  std::uint64_t global_index;  // number of the chunk in the pool
  std::uint64_t identity;      // of the chunk: from file name and index, the same in every run
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint32_t frames;
  std::uint16_t uses;  // before this draw
  std::uint16_t flags;
  std::uint32_t path_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(TaskRecord) == 48);

struct RejectRecord {
  std::uint64_t global_index;
};

struct ChunkRecord {
  std::uint64_t identity;
  std::uint32_t frame_count;
  std::uint16_t uses;
  std::uint16_t reserved;
};
static_assert(sizeof(ChunkRecord) == 16);

}  // namespace ringfeed
