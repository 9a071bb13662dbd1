// The lanes of a pool or an extractor that read chunks: a task names one, what comes out is its
// packed frames.
//
//   tasks    from the window lane (records.h)
//   output   chunks   in the order of the tasks; only the positions that the unpacker behind it
//                     will take, if that is what reads the output (position_choice.h)
//   rejects  to the window lane: a chunk that cannot be used
//   skips    those of chunk_files.h; skipped_too_large (for the ring)
//
// With a store (lc0/chunk_store.h) a chunk is inflated once and kept, and later only the
// positions that are wanted are read; without one, what was just weighed is not inflated again
// (lc0/weighed_games.h). The file is looked at every time: what has vanished or was
// replaced is found out as without a store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/chunk_files.h"
#include "workers/lc0/chunk_store.h"
#include "workers/lc0/packed_game.h"
#include "workers/lc0/position_choice.h"
#include "workers/lc0/records.h"
#include "workers/lc0/weighed_games.h"

namespace ringfeed {

// What hands out tasks puts them out here.
[[nodiscard]] OutputSpec chunk_tasks_output();

// The node "read" of a stage, with `config`'s threads and queue. Its tasks come from the stage's
// node without a name.
template <typename Config>
[[nodiscard]] NodeSpec chunk_reader_node(const Config& config, const DataLoaderConfig& feed,
                                         const std::string& stage, std::uint64_t store_bytes,
                                         const std::string& store_directory);

// What its lanes and those of chunk_weigher.h count.
[[nodiscard]] std::vector<CounterSpec> chunk_reader_counters();

class ChunkReader final : public Stage {
 public:
  explicit ChunkReader(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  // Where the output's record is written.
  struct Output {
    std::span<std::byte> room;
    std::uint64_t used = 0;
  };
  // Each of them: kDone, or what step() returns at once.
  // From a game that was kept, a PackedGame or its like; nothing: it is damaged.
  template <typename Game>
  [[nodiscard]] std::optional<StepStatus> from_game(Step& step, const ChunkTask& task,
                                                    Game& game) noexcept;
  // Nothing: the file is to be read.
  [[nodiscard]] std::optional<StepStatus> from_kept(Step& step, const ChunkTask& task,
                                                    const StoreKey& key) noexcept;
  [[nodiscard]] StepStatus from_file(Step& step, const ChunkTask& task, int fd,
                                     const StoreKey& key) noexcept;
  StepStatus refuse(Step& step, const ChunkTask& task, const ChunkRefusal& refusal) noexcept;
  StepStatus refuse_large(Step& step, const ChunkTask& task, std::uint64_t frame_count) noexcept;

  // Chooses among the frames of a chunk; `chosen_` is then what the output gets.
  void choose(const ChunkTask& task, std::uint32_t frame_count) noexcept;
  [[nodiscard]] std::uint64_t room_for(std::uint64_t frames) const noexcept;
  [[nodiscard]] bool reserve(Step& step, std::uint64_t frames, Output& output) noexcept;
  void begin(const ChunkTask& task, std::uint32_t frame_count, Output& output) const noexcept;
  void finish(Step& step, const ChunkTask& task, const Output& output) noexcept;

  void tell_of_store(Step& step) noexcept;

  StageContext context_;
  InPort in_;
  OutPort out_;
  OutPort rejects_;
  Counter chunks_read_;
  Counter bytes_read_;
  Counter bytes_inflated_;
  Counter store_hits_;
  Counter store_misses_;
  Counter store_evicted_;
  Counter store_refused_;
  Counter store_bytes_;
  Counter store_games_;
  ChunkFiles chunk_files_;
  SkipReason too_large_;
  std::optional<PositionChoice> choice_;         // none: all positions
  std::shared_ptr<ChunkStore> store_;            // none: nothing is kept
  std::shared_ptr<WeighedGames> weighed_games_;  // none: there is a store, or nothing is weighed
  ChunkStore::Figures told_;
  formats::GamePacker packer_;
  std::vector<std::byte> scratch_;
  std::vector<std::uint32_t> chosen_;
  std::vector<float> weights_;
};

template <typename Config>
NodeSpec chunk_reader_node(const Config& config, const Links& links, std::uint64_t store_bytes,
                           const std::string& store_directory) {
  NodeSpec read;
  read.name = "read";
  read.lanes = config.threads();
  read.lanes_max = std::max(config.threads(), config.max_threads());
  read.state_version = 4;
  read.inputs = {{.port = "tasks", .from = ".tasks", .block = 1}};
  // Whole games are work enough for a commit, and memory enough for a queue; a few positions of
  // each are not: the lanes behind would be woken for every two of them.
  const bool few = links.output("output").said.find(kWantedPositions) != nullptr;
  read.steps_per_commit = few ? 32 : 1;
  OutputSpec chunks = output_spec(config, "chunks", 16 * kMiB, UnitRule::kFollow);
  if (few && !config.has_queue_capacity()) chunks.queue_capacity = 256;
  read.outputs = {chunks,
                  {.port = "rejects",
                   .record_type = "rejects",
                   .exported = false,
                   .queue_capacity = 256,
                   .queue_bytes = 64 * kKiB,
                   .overflow = DROP_NEW,
                   .units = UnitRule::kRecord}};
  if (store_directory.empty()) read.private_bytes = store_bytes;
  read.weight = 2;
  read.create = [](const StageContext& context) { return std::make_unique<ChunkReader>(context); };
  return read;
}

}  // namespace ringfeed
