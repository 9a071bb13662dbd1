// A chunk record taken apart, for the stages that look at whole games.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "workers/kit/stage_help.h"
#include "workers/lc0/packed_frame.h"
#include "workers/lc0/records.h"

namespace ringfeed {

// Finds all frames of a chunk. False: the record contradicts itself, has frames of several
// versions, or has not all frames of its chunk (kChunkListed), of which no move could be told.
[[nodiscard]] bool open_whole_chunk(std::span<const std::byte> record, ChunkRecord& chunk,
                                    std::vector<formats::PackedFrameView>& frames) noexcept;

// The one node of a stage between chunks and chunks, with `config`'s threads and queue.
template <typename TheStage, typename Config>
[[nodiscard]] NodeSpec whole_chunk_node(const Config& config) {
  NodeSpec node;
  node.lanes = config.threads();
  node.more_lanes = kMoreThreads;
  node.lanes_max = std::max(config.threads(), config.max_threads());
  node.inputs = {{.port = "input", .from = "", .block = 1}};
  node.outputs = {output_spec(config, "chunks", 16 * kMiB, UnitRule::kFollow)};
  node.weight = 0.3;
  // A whole game is work enough for a commit.
  node.steps_per_commit = 1;
  node.create = [](const StageContext& context) { return std::make_unique<TheStage>(context); };
  return node;
}

}  // namespace ringfeed
