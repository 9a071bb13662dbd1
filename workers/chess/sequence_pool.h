// Mixes samples: the part of chess_games and chess_variations that is named "pool".
//
//   input    sequences   packed token sequences (chess/token_sequence.h), ends of epochs
//   output   sequences   the same, in another order; ends of epochs for a variation_mixer alone, since
//                        lanes take samples in turn; tag: file and game, start and epoch of
//                        variations (the 16 bytes of lineage)
//   arena    list of places (8 bytes each), the places themselves; grows with the samples
//   at end   as at the end of an epoch: what is left goes out in random order; on drain it does not
//
// Each sample that arrives takes the place of a random earlier one, which goes out. At the end of
// an epoch all that are left go out before the next one begins, so that every sample of an epoch
// comes once in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/chess/sequence_facts.h"
#include "workers/kit/place_pool.h"

namespace ringfeed {

// Bytes of a queue of sequences of up to so many tokens: room for a few of the largest, and for
// hundreds of usual ones.
[[nodiscard]] std::uint64_t sequence_queue_bytes(std::uint64_t length_max) noexcept;
// The fewest that hold the largest of them.
[[nodiscard]] std::uint64_t sequence_queue_bytes_min(std::uint64_t length_max) noexcept;
// What a configuration says of that queue.
struct SequenceQueue {
  std::optional<std::uint64_t> bytes;
  bool exact = false;     // order: EXACT
  bool may_drop = false;  // overflow_behavior is not BLOCK
};
// What is wrong with the queue of a stage that outputs sequences of up to so many tokens: too
// small for one of them, or not to be relied on by whoever reads it.
[[nodiscard]] std::vector<Problem> sequence_queue_problems(const StageView& stage,
                                                           const SequenceQueue& queue,
                                                           std::uint64_t length_max);

// The output of the lanes that make sequences, in front of the pool.
[[nodiscard]] OutputSpec sequences_inside(std::uint32_t length_max);

// The part that reads `from` inside the stage and outputs the stage's `output`.
NodeSpec sequence_pool_node(std::string from, std::uint64_t pool_size, OutputSpec output);

class SequencePool final : public Stage {
 public:
  static constexpr std::uint32_t kStepsPerCommit = 64;

  struct State {
    State(StateLayout& layout, std::uint64_t pool_size)
        : count(layout.word()),
          places_bytes(layout.word()),
          list(layout.words(pool_size)),
          places(layout, places_bytes, usual_place_sizes(), kUsualPlaceAlignment, kStepsPerCommit) {
    }
    Word count;         // samples held
    Word places_bytes;  // bytes of the places made so far
    Words list;
    PlacePool places;
  };

  SequencePool(const StageContext& context, std::uint64_t pool_size);
  StepStatus step(Step& step) noexcept override;

 private:
  bool put_out(Step& step, std::uint64_t index) noexcept;
  StepStatus empty_one(Step& step, std::uint64_t count) noexcept;

  std::uint64_t pool_size_;
  bool tells_ends_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter held_;
};

}  // namespace ringfeed
