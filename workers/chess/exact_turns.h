// Whose turn it is among the workers of the original: each makes whole batches in turn, and those
// that are done with their epoch are passed over.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class ExactTurns {
 public:
  struct State {
    State(StateLayout& layout, std::uint32_t workers);
    Word turn;
    Word epoch;
    Word batch_rows;  // of the batch under way
    Word epoch_rows;
    std::vector<Word> done;  // of each worker, with its epoch
  };
  ExactTurns(const State& state, std::uint32_t batch_size)
      : state_(state), batch_size_(batch_size) {}

  [[nodiscard]] std::uint32_t worker(const Step& step) const noexcept {
    return static_cast<std::uint32_t>(step.load(state_.turn));
  }
  [[nodiscard]] std::uint32_t epoch(const Step& step) const noexcept {
    return static_cast<std::uint32_t>(step.load(state_.epoch));
  }
  // A sample of the worker goes out.
  void sample(Step& step) noexcept;
  // The worker has no more. First the batch that it has begun is ended: `out` gets a
  // kBatchEndRecord.
  enum class Then : std::uint8_t {
    kNoRoom,
    kNextWorker,
    kNextEpoch,  // all are done; they begin again
    kNothing,    // all are done, without a single sample
  };
  Then worker_done(Step& step, OutPort out) noexcept;

 private:
  State state_;
  std::uint32_t batch_size_;
};

}  // namespace ringfeed
