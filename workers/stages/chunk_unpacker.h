// Takes chunks apart into frames, all of them or a sample.
//
//   input    chunks   packed frames of one game
//   output   frames   one packed frame a record, in the order of the game; tag = identity of the
//   chunk, index in it arena    frames of the present chunk already put out (8 bytes) skips    a
//   chunk record that contradicts itself (chunks_damaged)
//
// position_sampling_rate p: position i of a chunk has a fixed phase t in [0, 1), drawn from chunk
// and index. Use number u of the chunk covers [u p, (u + 1) p) of a circle of length 1 and gives
// the positions whose phase lies there. So the expected share is exactly p in every use, for every
// p, and each position comes once in every 1/p uses: no drift, and no state but the number of the
// use.
//
// position_count k: the positions are shuffled again and again, one shuffle after the other; use u
// gives items k u to k (u + 1) - 1 of that endless row. A use that spans two shuffles may give a
// position twice.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/runtime/stage.h"
#include "workers/stages/records.h"

namespace ringfeed {

StageType chunk_unpacker_type();

// The positions that use number `use` of a chunk of `frame_count` positions gives, ascending. `key`
// names seed and chunk.
void sample_by_rate(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use, double rate,
                    std::vector<std::uint32_t>& out);
void sample_by_count(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use,
                     std::uint32_t count, std::vector<std::uint32_t>& out);

class ChunkUnpacker final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : frames_put(layout.word()) {}
    Word frames_put;
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
  double rate_;
  std::uint32_t position_count_;
  // The chunk at the input's head: where its frames begin, and which are chosen.
  const std::byte* opened_ = nullptr;
  ChunkRecord chunk_{};
  std::vector<std::uint32_t> offsets_;
  std::vector<std::uint32_t> chosen_;
};

}  // namespace ringfeed
