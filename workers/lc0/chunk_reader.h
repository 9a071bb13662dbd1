// The lanes of a pool or an extractor that read chunks: a task names one, what comes out is its
// packed frames.
//
//   tasks    from the window lane (records.h)
//   output   chunks   in the order of the tasks; only the positions that the unpacker behind it
//                     will take, if that is what reads the output (position_choice.h)
//            frames   with the setting `frames`: as a chunk_unpacker puts them out; a game may take
//                     several steps, for which what was inflated is kept
//   arena    with `frames`: frames of the present chunk already output (8 bytes)
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
#include "workers/kit/resumed_split.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/chunk_files.h"
#include "workers/lc0/chunk_store.h"
#include "workers/lc0/lc0_facts.h"
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

// The record type of the stage's output, and what is said of its records.
template <typename Config>
void add_frames_output(const Config& config, std::vector<PortSpec>& outputs) {
  if (config.has_frames()) outputs.front().record_type = "frames";
}
template <typename Config>
void tell_of_frames(const Config& config, PortFacts& outputs) {
  if (config.has_frames()) {
    outputs["output"].set(kDealtInTurn, config.overflow_behavior() != BLOCK);
  }
}

// What its lanes and those of chunk_weigher.h count.
[[nodiscard]] std::vector<CounterSpec> chunk_reader_counters();

class ChunkReader final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout) {}
    ResumedSplit split;
  };

  explicit ChunkReader(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  // The chunk whose frames go out over several steps, as it came from its file. Its task's address
  // names it: the lane has the same record before it until that is consumed or set aside.
  struct AtHand {
    const std::byte* task = nullptr;  // its record; nullptr: none is at hand
    ChunkFiles::Records records = {};
  };

  // From a game that was kept; nothing: the file is to be read. Otherwise, as all of those that
  // follow: what step() returns at once.
  [[nodiscard]] std::optional<StepStatus> from_kept(Step& step, const ChunkTask& task,
                                                    const StoreKey& key) noexcept;
  [[nodiscard]] StepStatus from_file(Step& step, const ChunkTask& task, int fd,
                                     const StoreKey& key) noexcept;
  [[nodiscard]] StepStatus from_records(Step& step, const ChunkTask& task) noexcept;
  // From a Game (PackedGame and its like); nothing: it is damaged.
  template <typename Game>
  [[nodiscard]] std::optional<StepStatus> from_game(Step& step, const ChunkTask& task,
                                                    Game& game) noexcept;
  template <typename Game>
  [[nodiscard]] std::optional<StepStatus> put_chunk(Step& step, const ChunkTask& task,
                                                    Game& game) noexcept;
  template <typename Game>
  [[nodiscard]] std::optional<StepStatus> put_frames(Step& step, const ChunkTask& task,
                                                     Game& game) noexcept;
  StepStatus refuse(Step& step, const ChunkTask& task, const ChunkRefusal& refusal) noexcept;
  StepStatus refuse_large(Step& step, const ChunkTask& task, std::uint64_t frame_count) noexcept;

  // Has a part of the present chunk gone out already?
  [[nodiscard]] bool begun(const Step& step) const noexcept;
  // Is there room for what the task will probably give?
  [[nodiscard]] bool has_room(Step& step, const ChunkTask& task) noexcept;
  // Chooses among the frames of a chunk; `chosen_` is then what the output gets. False: damaged.
  template <typename Game>
  [[nodiscard]] bool choose(const ChunkTask& task, Game& game) noexcept;
  [[nodiscard]] std::uint64_t room_for(std::uint64_t frames) const noexcept;
  // Room for so many frames, or as much as a record can have; empty: none now.
  [[nodiscard]] std::span<std::byte> reserve(Step& step, std::uint64_t frames) noexcept;

  void keep(const ChunkTask& task, const StoreKey& key,
            const ChunkFiles::Records& records) noexcept;
  void tell_of_store(Step& step) noexcept;

  StageContext context_;
  std::optional<State> state_;  // none: whole chunks are output
  InPort in_;
  OutPort out_;
  OutPort rejects_;
  Counter frames_;
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
  SkipReason trailing_;
  std::optional<PositionChoice> choice_;         // none: all positions
  std::shared_ptr<ChunkStore> store_;            // none: nothing is kept
  std::shared_ptr<WeighedGames> weighed_games_;  // none: there is a store, or nothing is weighed
  ChunkStore::Figures told_;
  formats::GamePacker packer_;
  std::vector<std::byte> scratch_;
  std::vector<std::uint32_t> chosen_;
  std::vector<float> weights_;
  AtHand at_hand_;
};

template <typename Config>
NodeSpec chunk_reader_node(const Config& config, const Links& links, std::uint64_t store_bytes,
                           const std::string& store_directory) {
  NodeSpec read;
  read.name = "read";
  read.lanes = config.threads();
  read.more_lanes = kMoreThreads;
  read.lanes_max = std::max(config.threads(), config.max_threads());
  read.state_version = 5;
  read.inputs = {{.port = "tasks", .from = ".tasks", .block = 1}};
  // Whole games are work enough for a commit, and memory enough for a queue; a few positions of
  // each are not: the lanes behind would be woken for every two of them.
  bool few = links.output("output").said.find(kWantedPositions) != nullptr;
  OutputSpec output = output_spec(config, "chunks", 16 * kMiB, UnitRule::kFollow);
  if (config.has_frames()) {
    output = output_spec(config, "frames", 4 * kMiB, UnitRule::kFollow);
    if (!config.has_queue_capacity()) output.queue_capacity = 4096;
    few = !PositionChoice(wanted_positions(config.frames()), 0).all();
    StateLayout layout;
    (void)ChunkReader::State(layout);
    read.state_bytes = layout.bytes();
  } else if (few && !config.has_queue_capacity()) {
    output.queue_capacity = 256;
  }
  read.steps_per_commit = few ? 32 : 1;
  read.outputs = {output,
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
