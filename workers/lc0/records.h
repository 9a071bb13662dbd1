// What travels between the Lc0 stages. All little-endian; strings are not terminated.
//
//   sources  SourceRecord, its ChunkPlaces, the path. user: kFileRecord; or kScanCompleteRecord,
//            empty
//   tasks    TaskRecord, the path (inside the pool: which chunk a reading lane shall read)
//   rejects  RejectRecord (inside the pool: a chunk that cannot be used)
//   weights  WeightRecord (inside the pool: what a chunk weighs)
//   chunks   ChunkRecord, then the packed frames (lc0/packed_frame.h) one after the other; or,
//            with kChunkListed, the numbers of those that are there (u32 each, up to a multiple of
//            16), then these
//   frames   one packed frame; tag = identity of the chunk, index of the frame in it
#pragma once

#include <cstdint>

#include "workers/files/file_records.h"

namespace ringfeed {

// One chunk of a source, as the pool keeps it.
struct ChunkPlace {
  std::uint64_t offset;     // of its bytes in the file
  std::uint32_t bytes;      // as stored; the largest number also for more
  std::uint32_t index = 0;  // among the chunks of the file
  std::uint32_t frames;     // claimed by the gzip trailer or by the size; verified when it is read
  std::uint16_t uses;       // how often it was drawn; saturates
  std::uint16_t flags;      // kChunk...
  float weight = 0;         // of all its positions, if it is known
  std::uint32_t weighed = 0;  // kWeight...
};
static_assert(sizeof(ChunkPlace) == 32);
inline constexpr std::uint32_t kWeightUnknown = 0;
inline constexpr std::uint32_t kWeightAsked = 1;
inline constexpr std::uint32_t kWeightKnown = 2;
inline constexpr std::uint16_t kChunkGzip = 1;     // to be inflated; else records as they are
inline constexpr std::uint16_t kChunkDropped = 2;  // was found unusable, or its file was replaced
inline constexpr std::uint16_t kChunkAway =
    4;  // its file could not be opened or read; looked at again

struct SourceRecord {
  std::uint64_t first_chunk;  // a huge tar comes in several sources: 0 in the first of them
  std::uint32_t chunk_count;  // may be 0, where a splitter has left none
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
  std::uint64_t window_lower;  // chunks of lower numbers have left the window
};
static_assert(sizeof(TaskRecord) == 56);

struct RejectRecord {
  std::uint64_t global_index;
  std::uint64_t away;  // 1: its file cannot be opened or read now, which may pass
};
static_assert(sizeof(RejectRecord) == 16);

struct WeightRecord {
  std::uint64_t global_index;
  float weight;  // below 0: the chunk cannot be used (kWeightAway: now)
  std::uint32_t reserved;
};
static_assert(sizeof(WeightRecord) == 16);
inline constexpr float kWeightAway = -2;

struct ChunkRecord {
  std::uint64_t identity;
  std::uint32_t frame_count;   // of the chunk
  std::uint16_t uses;          // before this one
  std::uint16_t flags;         // kChunkListed
  std::uint32_t listed_count;  // frames in the record; all of them unless kChunkListed
  std::uint32_t reserved;
};
// Only the frames that this use gives are there: the reader has made the unpacker's choice.
inline constexpr std::uint16_t kChunkListed = 1;

// Bytes before the first frame.
constexpr std::uint64_t chunk_head_bytes(const ChunkRecord& chunk) noexcept {
  const std::uint64_t list =
      (chunk.flags & kChunkListed) != 0 ? std::uint64_t{4} * chunk.listed_count : 0;
  return (sizeof chunk + list + 15) / 16 * 16;
}
static_assert(sizeof(ChunkRecord) == 24);

}  // namespace ringfeed
