// Takes chunks apart into frames, all of them or a sample.
//
//   input    chunks   packed frames of one game
//   output   frames   one packed frame a record, in the order of the game; tag = identity of the
//                     chunk, index in it
//   arena    frames of the present chunk already output (8 bytes)
//   skips    a chunk record that contradicts itself (chunks_damaged)
//
// Which positions: position_choice.h.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/resumed_split.h"
#include "workers/lc0/position_choice.h"
#include "workers/lc0/records.h"

namespace ringfeed {

StageType chunk_unpacker_type();

class ChunkUnpacker final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout) {}
    ResumedSplit split;
  };

  explicit ChunkUnpacker(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  bool open_chunk(const Record& record) noexcept;

  StageContext context_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter frames_;
  Counter chunks_damaged_;
  PositionChoice choice_;
  // The chunk at the input's head: where its frames begin, and which are chosen.
  const std::byte* opened_ = nullptr;
  ChunkRecord chunk_{};
  std::vector<std::uint32_t> offsets_;
  std::vector<float> weights_;
  std::vector<std::uint32_t> chosen_;
};

}  // namespace ringfeed
