// A random order over a moving range of integers, each at most once per pass.
//
// The integers not yet drawn stand in an array in the arena; a draw takes a random one and moves
// the last into its place. The range moves up: new integers join the pass under way, those that
// fall below `lower` are passed over when they are drawn. Every integer that stays in the range is
// drawn exactly once before the pass is exhausted.
//
// Everything is words of the arena, changed by the step: a draw that is done again after a death
// draws the same. A new pass, or many new integers at once, are written to the other of two banks,
// which no word refers to, and one store of the bank's number switches.
#pragma once

#include <cstdint>
#include <optional>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class StreamShuffler {
 public:
  // Room for a range of up to `range_max` integers.
  StreamShuffler(StateLayout& layout, std::uint64_t range_max);

  // Starts a new pass over [lower, upper). RF_CHECK: upper - lower <= range_max.
  void reset(Step& step, std::uint64_t lower, std::uint64_t upper) const noexcept;
  // Moves the range up; integers from the old upper bound on join the pass.
  void move_up(Step& step, std::uint64_t lower, std::uint64_t upper) const noexcept;

  struct Draw {
    bool exhausted = false;  // nothing is left in this pass
    std::optional<std::uint64_t>
        value;  // none, and not exhausted: stale entries were removed, draw again
  };
  // Stores at most kEntriesPerDraw words.
  Draw next(Step& step) const noexcept;
  static constexpr std::uint32_t kStalePerDraw = 8;
  static constexpr std::uint32_t kEntriesPerDraw = kStalePerDraw + 2;

  [[nodiscard]] std::uint64_t lower(const Step& step) const noexcept { return step.load(lower_); }
  [[nodiscard]] std::uint64_t upper(const Step& step) const noexcept { return step.load(upper_); }
  [[nodiscard]] std::uint64_t remaining(const Step& step) const noexcept {
    return step.load(count_);
  }

 private:
  [[nodiscard]] const Words& bank(std::uint64_t number) const noexcept {
    return banks_[number & 1];
  }

  std::uint64_t range_max_;
  Word lower_;
  Word upper_;
  Word count_;
  Word bank_;
  Words banks_[2];
};

}  // namespace ringfeed
