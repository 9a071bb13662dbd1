#include "workers/lc0/chunk_frames.h"

#include <cstring>

namespace ringfeed {

bool open_whole_chunk(std::span<const std::byte> record, ChunkRecord& chunk,
                      std::vector<formats::PackedFrameView>& frames) noexcept {
  frames.clear();
  if (record.size() < sizeof chunk) return false;
  std::memcpy(&chunk, record.data(), sizeof chunk);
  std::size_t at = chunk_head_bytes(chunk);
  if ((chunk.flags & kChunkListed) != 0 || chunk.listed_count != chunk.frame_count ||
      at > record.size()) {
    return false;
  }
  while (at < record.size()) {
    const auto view = formats::view_packed(record.subspan(at));
    if (!view || view->version != formats::upgraded_version(view->origin)) return false;
    if (!frames.empty() && view->origin != frames[0].origin) return false;
    frames.push_back(*view);
    at += view->frame_bytes;
  }
  return frames.size() == chunk.frame_count;
}

}  // namespace ringfeed
