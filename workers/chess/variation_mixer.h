// Draws each sample from one of two inputs.
//
//   input       sequences   games; with them the mixer ends
//   variations  sequences   variations, which begin again and again; the number of times is written
//                           into each sample
//   output      sequences
//   arena       epoch of the variations, samples so far and variations among them; with EXACT for
//               each worker where its streams are
//   at end      of the variations: games alone follow, which is warned of with both ratios
//
// With `order: EXACT` it also outputs turns (row_records.h), by which it asks the stages before it
// for a sample each: whose random numbers come from the same streams as its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/chess/exact_reader.h"
#include "workers/chess/exact_turns.h"

namespace ringfeed {

StageType variation_mixer_type();

class VariationMixer final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout)
        : variation_epoch(layout.word()),
          epoch_variations(layout.word()),
          no_variations(layout.word()),
          samples(layout.word()),
          variations(layout.word()) {}
    Word variation_epoch;
    Word epoch_variations;  // 1: the epoch has had one
    // 1: an epoch had none, or the input has ended, and none is expected any more
    Word no_variations;
    Word samples;     // given so far
    Word variations;  // among them
  };
  explicit VariationMixer(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  StepStatus pass_on(Step& step, const Record& record, bool variation) noexcept;
  // "0.355 of the samples are variations, 0.700 are configured"
  [[nodiscard]] std::string ratios(const Step& step) const;
  // Games alone follow, for want of variations.
  void give_up_variations(Step& step, std::string_view why) noexcept;

  double ratio_;
  State state_;
  InPort games_in_;
  InPort variations_in_;
  OutPort out_;
  Counter games_;
  Counter variations_;
  Counter variation_epochs_;
  Counter games_instead_;
  std::string stage_;
  std::function<void(std::string_view)> warn_;
  std::function<void(std::string_view)> note_;
};

class ExactMixer final : public Stage {
 public:
  struct State {
    State(StateLayout& layout, std::uint32_t workers);
    struct Worker {
      explicit Worker(StateLayout& layout);
      Word python;
      Word numpy;
      Word variation_epoch;
      Word games_begun;
      Word variations_begun;
    };
    Word asked;  // kNobody, ...
    ExactTurns::State turns;
    std::vector<Worker> workers;
  };
  explicit ExactMixer(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  static constexpr std::uint64_t kNobody = 0;
  static constexpr std::uint64_t kVariation = 1;
  static constexpr std::uint64_t kVariationAgain = 2;  // the stream has begun again
  static constexpr std::uint64_t kGame = 3;
  StepStatus ask(Step& step, std::uint64_t whom, const RandomPlace& place);
  StepStatus take(Step& step, const Record& answer, std::uint64_t asked);

  StageContext context_;
  double ratio_;
  std::uint32_t rank_;
  State state_;
  ExactTurns turns_;
  InPort games_in_;
  InPort variations_in_;
  OutPort out_;
  OutPort game_turns_;
  OutPort variation_turns_;
  Counter games_;
  Counter variations_;
  Counter variation_epochs_;
  Counter games_instead_;
  std::vector<std::optional<RandomStreams>> random_;
};

}  // namespace ringfeed
