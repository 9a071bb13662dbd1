#include "workers/chess/exact_turns.h"

#include <algorithm>

#include "workers/chess/sequence_records.h"

namespace ringfeed {

ExactTurns::State::State(StateLayout& layout, std::uint32_t workers)
    : turn(layout.word()),
      epoch(layout.word()),
      batch_rows(layout.word()),
      epoch_rows(layout.word()) {
  for (std::uint32_t i = 0; i < workers; ++i) done.push_back(layout.word());
}

void ExactTurns::sample(Step& step) noexcept {
  step.store(state_.epoch_rows, step.load(state_.epoch_rows) + 1);
  const std::uint64_t rows = step.load(state_.batch_rows) + 1;
  step.store(state_.batch_rows, rows % batch_size_);
  if (rows < batch_size_) return;
  std::uint64_t turn = step.load(state_.turn);
  do {
    turn = (turn + 1) % state_.done.size();
  } while (step.load(state_.done[turn]) != 0);
  step.store(state_.turn, turn);
}

ExactTurns::Then ExactTurns::worker_done(Step& step, OutPort out) noexcept {
  if (step.load(state_.batch_rows) != 0) {
    if (!step.put(out, {}, {.user = kBatchEndRecord})) return Then::kNoRoom;
    step.store(state_.batch_rows, 0);
  }
  const std::uint64_t worker = step.load(state_.turn);
  step.store(state_.done[worker], 1);
  for (std::uint64_t i = 1; i < state_.done.size(); ++i) {
    const std::uint64_t turn = (worker + i) % state_.done.size();
    if (step.load(state_.done[turn]) != 0) continue;
    step.store(state_.turn, turn);
    return Then::kNextWorker;
  }
  if (step.load(state_.epoch_rows) == 0) return Then::kNothing;
  step.store(state_.epoch, step.load(state_.epoch) + 1);
  step.store(state_.epoch_rows, 0);
  step.store(state_.turn, 0);
  for (const Word word : state_.done) step.store(word, 0);
  return Then::kNextEpoch;
}

}  // namespace ringfeed
