// A chunk record taken apart, for the stages that look at whole games.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "workers/formats/packed_frame.h"
#include "workers/stages/records.h"

namespace ringfeed {

// Finds all frames of a chunk. False: the record contradicts itself, has frames of several
// versions, or has not all frames of its chunk (kChunkListed), of which no move could be told.
[[nodiscard]] bool open_whole_chunk(std::span<const std::byte> record, ChunkRecord& chunk,
                                    std::vector<formats::PackedFrameView>& frames) noexcept;

}  // namespace ringfeed
