// Any bytes as a kept index of a tar's chunks. Its checksum is put right, which mutations alone
// would never do.
//
// Holds: an index that is read has chunks inside its tar only; kept again it is found, says the
// same and is as long.
#include <libdeflate.h>

#include <cstring>
#include <vector>

#include "tests/fuzz/input.h"
#include "workers/lc0/chunk_index.h"

using namespace ringfeed;
using namespace ringfeed::formats;

namespace {

constexpr std::size_t kChecksumAt = 12;
constexpr std::size_t kChecksummedFrom = 16;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  if (size != 0) std::memcpy(file.data(), data, size);
  if (size >= 64) {
    const std::uint32_t sum =
        ::libdeflate_crc32(0, file.data() + kChecksummedFrom, size - kChecksummedFrom);
    std::memcpy(file.data() + kChecksumAt, &sum, sizeof sum);
  }
  static const fuzz::Directory directory;
  const Result<KeptChunkIndex> kept = read_chunk_index(directory.put("index", file));
  if (!kept) return 0;
  for (const Chunk& chunk : kept->index.chunks) {
    RF_HOLDS(chunk.data_offset + chunk.data_bytes <= kept->identity.tar_bytes, chunk.data_offset,
             chunk.data_bytes, kept->identity.tar_bytes);
  }
  RF_HOLDS(save_chunk_index(directory.path(), kept->identity, kept->index), size);
  const std::optional<ChunkIndex> again = load_chunk_index(directory.path(), kept->identity);
  RF_HOLDS(again && again->chunks == kept->index.chunks &&
               again->problem_count == kept->index.problem_count,
           kept->index.chunks.size());
  const std::string name = chunk_index_path(directory.path(), kept->identity.path);
  const Result<KeptChunkIndex> twice = read_chunk_index(name);
  RF_HOLDS(twice.ok() && twice->identity == kept->identity, size);
  RF_HOLDS(std::filesystem::file_size(name) == size, size);
  std::filesystem::remove(name);
  return 0;
}
