// The lanes of a pool that weigh chunks (position_sampling): a task names one, what comes out is
// the weight of all its positions together, for the window.
//
//   weigh    tasks, from the window lane (records.h)
//   weights  WeightRecord, to the window lane, for each task one
//   skips    as chunk_files.h
//
// The game is kept for the use for which it is accepted, which is then a small read: in the store
// that the stage has, or for a while with the games weighed last (weighed_games.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/lc0/chunk_files.h"
#include "workers/lc0/packed_game.h"
#include "workers/lc0/weighed_games.h"

namespace ringfeed {

// The node "weigh" of a pool, with its threads.
[[nodiscard]] NodeSpec chunk_weigher_node(const ShufflingChunkPoolConfig& config);

class ChunkWeigher final : public Stage {
 public:
  explicit ChunkWeigher(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  // Below 0: it cannot be used; counted.
  // Nothing: no descriptor is to be had now.
  [[nodiscard]] std::optional<float> weigh(Step& step, const ChunkTask& task) noexcept;
  [[nodiscard]] std::optional<float> weigh_stored(const ChunkTask& task,
                                                  const StoreKey& key) noexcept;
  void keep(const ChunkTask& task, const ChunkFiles::Records& records,
            const StoreKey& key) noexcept;

  PositionSamplingConfig weights_;
  InPort in_;
  OutPort out_;
  Counter weighed_;
  Counter bytes_inflated_;
  ChunkFiles files_;
  std::shared_ptr<ChunkStore> store_;            // none: the stage has no store
  std::shared_ptr<WeighedGames> weighed_games_;  // none: it has one
  formats::GamePacker packer_;
  std::vector<std::byte> scratch_;
  std::vector<std::byte> packed_;    // frames of the game at hand
  std::vector<std::uint32_t> ends_;  // of each of them
};

}  // namespace ringfeed
