// Decides which sentences of parallel text make an epoch, and hands out its batches.
//
//   input    bitext        what bitext_source has found, then its end
//   output   batch_plans   bitext/batch_plan.h, each a unit: one for each batch of the feed; tag:
//                          epoch and batch
//   arena    where it is; what has been found; weights; the plan of the epoch at hand and, once it
//            is made, that of the next one: 4 (or 8) bytes a sentence
//   at end   after `epochs` epochs; on drain as soon as all ranks have equally many batches
//   skips    sentences beyond the limits, or without a token (skipped_too_long, skipped_empty)
//
// A plan is made in threads of its own (plan_maker.h), in memory of the process: 12 (or 24) bytes a
// sentence until it is done. It is part of nothing until it has been copied into the arena, where
// a word says so: whoever dies before that makes it anew, and the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/worker/control.h"
#include "ringfeed/worker/stage.h"
#include "workers/bitext/batch_plan.h"
#include "workers/bitext/bitext_catalogue.h"
#include "workers/bitext/plan_maker.h"

namespace ringfeed {

class EpochPlannerControlRequest;
class EpochPlannerControlResponse;

StageType epoch_planner_type();

class EpochPlanner final : public Stage {
 public:
  // Of weights: those of the configuration, those in use, those to come, and those that come
  // instead of the two.
  static constexpr std::uint64_t kWeightsKept = 5;

  // A plan in the arena: the shards of the directions (u32), its sentences, the ends of its
  // batches, and their order, each from a multiple of 8 on.
  struct PlanWords {
    explicit PlanWords(StateLayout& layout)
        : epoch(layout.word()),
          offset(layout.word()),
          bytes(layout.word()),
          sentences(layout.word()),
          batches(layout.word()),
          wide(layout.word()),
          chain_epoch(layout.word()),
          chain_pass(layout.word()),
          weights(layout.word()) {}
    Word epoch;  // 0: none
    Word offset;
    Word bytes;
    Word sentences;
    Word batches;
    Word wide;  // 1: numbers have 64 bits
    Word chain_epoch;
    Word chain_pass;
    Word weights;  // version of the weights that it was made with
  };
  struct State {
    explicit State(StateLayout& layout)
        : control(layout),
          catalogue_bytes(layout.word()),
          complete(layout.word()),
          weights(layout.word()),
          chain_epoch(layout.word()),
          chain_pass(layout.word()),
          epoch(layout.word()),
          begin(layout.word()),
          next(layout.word()),
          firsts(layout.word()),
          updates_from(layout.word()),
          cut(layout.word()),
          cut_epoch(layout.word()),
          put(layout.word()),
          world(layout.word()),
          generation(layout.word()),
          seek(layout.word()),
          seek_epoch(layout.word()),
          seek_batch(layout.word()),
          seek_world(layout.word()),
          seek_updates_from(layout.word()),
          seek_cut(layout.word()),
          seek_cut_epoch(layout.word()),
          seek_chain_epoch(layout.word()),
          seek_chain_pass(layout.word()),
          current(layout.word()),
          weights_made(layout.word()),
          coming(layout.word()),
          coming_pass(layout.word()),
          coming_weights(layout.word()),
          stored(layout.word()),
          plans{PlanWords(layout), PlanWords(layout)},
          rest(layout.place(0)) {}
    ControlBox control;
    Word catalogue_bytes;  // of the messages that have come, at `rest`
    Word complete;         // 1: all have
    // The version of those of the epoch at hand: 1 is the configuration's (numbers that are none:
    // it has a method instead), larger ones have come by messages. They lie behind the messages.
    Word weights;
    Word chain_epoch;  // of the epoch at hand
    Word chain_pass;
    Word epoch;   // at hand
    Word begin;   // the batch with which it began
    Word next;    // batch, beyond the last one: stand-in
    Word firsts;  // stand-ins output at its begin
    // 1 + the batch from which updates are counted, where fairseq has resumed in the middle; 0:
    // none.
    Word updates_from;
    // 1 + the batch before which an epoch ends, this or a later one, by a change of weights; 0:
    // none.
    Word cut;
    Word cut_epoch;
    Word put;  // batches of the feed
    Word world;
    Word generation;
    Word seek;  // 1: to go on with, as soon as the world is in step:
    Word seek_epoch;
    Word seek_batch;
    Word seek_world;
    Word seek_updates_from;
    Word seek_cut;
    Word seek_cut_epoch;
    Word seek_chain_epoch;
    Word seek_chain_pass;
    Word current;       // which of the plans is that of the epoch at hand, if one is
    Word weights_made;  // the newest version that there has been
    // The epoch from which other weights hold, with which a chain begins; 0: none.
    Word coming;
    Word coming_pass;
    Word coming_weights;  // their version
    Word stored;          // of a plan that is being copied, in bytes
    PlanWords plans[2];
    Place rest;  // to the end of the arena; grows
  };

  // `narrow_max`: as in PlanSettings.
  explicit EpochPlanner(const StageContext& context,
                        std::uint64_t narrow_max = PlanSettings().narrow_max);
  StepStatus step(Step& step) noexcept override;
  [[nodiscard]] const ControlBox* control_box() const noexcept override { return &state_.control; }
  void control(Step& step, const StageControlRequest& request,
               StageControlResponse& response) noexcept override;
  [[nodiscard]] int poll_ms() const noexcept override { return maker_.task() ? 1 : 50; }

 private:
  // Files of the plan at hand, by the number of their first sentence.
  struct Section {
    std::uint64_t first = 0;
    std::uint64_t first_of_direction = 0;
    std::uint32_t direction = 0;
    const BitextFiles* files = nullptr;
    std::uint32_t part = 0;  // of the batch plan numbered `used_in`
    std::uint64_t used_in = 0;
  };

  StepStatus gather(Step& step) noexcept;
  StepStatus begin_run(Step& step) noexcept;
  // Stores weights as a new version, in a place that those in use, those to come and version
  // `besides` do not have. 0: no room now.
  [[nodiscard]] std::uint64_t keep_weights(Step& step, const std::vector<double>& weights,
                                           std::uint64_t besides = 0) noexcept;
  void read_weights(const std::byte* state, std::uint64_t version);
  // Says once what keeps it from going on.
  void complain(const std::string& text) noexcept;
  // The first is the configuration's for good.
  static std::uint64_t place_of_weights(std::uint64_t version) noexcept {
    return version == 1 ? 0 : 1 + version % (kWeightsKept - 1);
  }
  [[nodiscard]] std::uint64_t weights_offset(std::uint64_t place) const noexcept;
  [[nodiscard]] std::uint64_t plans_offset() const noexcept;

  [[nodiscard]] const PlanWords& current(const Step& step) const noexcept {
    return state_.plans[step.load(state_.current)];
  }
  [[nodiscard]] const PlanWords& other(const Step& step) const noexcept {
    return state_.plans[1 - step.load(state_.current)];
  }
  // Is there a plan of the epoch at hand?
  [[nodiscard]] bool planned(const Step& step) const noexcept;
  [[nodiscard]] PlanTask task_of(const Step& step, std::uint64_t epoch) const noexcept;
  [[nodiscard]] bool is_of(const Step& step, const PlanWords& plan,
                           const PlanTask& task) const noexcept;
  // Goes on with making plans and storing them. kDone: something was stored; kNoRoom: the arena
  // cannot grow; kIdle: nothing to do.
  StepStatus attend_plans(Step& step) noexcept;
  StepStatus store_plan(Step& step) noexcept;
  void report(const MadePlan& plan);

  // Batches still to be passed over, so that the feed begins with from_batch.
  [[nodiscard]] std::uint64_t to_pass(const Step& step) const noexcept;
  StepStatus hand_out(Step& step) noexcept;
  StepStatus end_epoch(Step& step) noexcept;
  void carry_out_seek(Step& step) noexcept;
  void begin_epoch(Step& step, std::uint64_t epoch) noexcept;
  void begin_chain(Step& step) noexcept;
  void end_before(Step& step, std::uint64_t epoch, std::uint64_t batch, std::uint64_t version);
  // That of the epoch at hand.
  [[nodiscard]] std::uint64_t cut_of_epoch(const Step& step) const noexcept;

  [[nodiscard]] bool is_over(const Step& step);
  // Whether it can be over because of a message.
  [[nodiscard]] bool is_stranded(const Step& step) const noexcept;
  [[nodiscard]] std::uint64_t used_batches(const Step& step) const noexcept;
  // What makes the plan of a task.
  [[nodiscard]] PlanSettings settings_of(const PlanTask& task) const;
  // The same, up to a change of weights.
  [[nodiscard]] std::uint64_t handed_out(const Step& step) const noexcept;
  [[nodiscard]] bool put(Step& step, formats::BatchKind kind, std::uint64_t batch) noexcept;
  void add_part(const Section& section);
  void look_at_plan(const Step& step);
  [[nodiscard]] std::uint64_t number_at(const Step& step, std::uint64_t offset,
                                        std::uint64_t index) const noexcept;
  // Sentences of a batch, by its place before the shuffle: from, up to.
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };
  [[nodiscard]] Range sentences_of(const Step& step, std::uint64_t frozen) const noexcept;
  [[nodiscard]] std::uint64_t sentences_from(const Step& step, std::uint64_t batch,
                                             std::uint64_t end) const noexcept;

  void seek(Step& step, const EpochPlannerControlRequest& request,
            EpochPlannerControlResponse& answer) noexcept;
  // Batches of an epoch, those that are dropped included; nullopt: its plan is not there.
  [[nodiscard]] std::optional<std::uint64_t> batches_of(const Step& step,
                                                        const PlanTask& task) const noexcept;
  void look(Step& step, const PlanTask& task, EpochPlannerControlResponse& answer) noexcept;
  void change_weights(Step& step, const EpochPlannerControlRequest& request,
                      EpochPlannerControlResponse& answer) noexcept;
  // Weights of a message in the order of the directions; what is wrong with them, or "".
  [[nodiscard]] std::string take_weights(
      const google::protobuf::RepeatedPtrField<SamplingWeight>& given,
      std::vector<double>& weights) const;

  StageContext context_;
  PlanSettings settings_;
  std::vector<std::uint32_t> update_freq_;
  bool epoch_remainder_;
  bool stand_in_first_;
  std::uint64_t last_epoch_;  // 0: none
  State state_;
  InPort in_;
  OutPort out_;
  Counter epochs_;
  Counter batches_;
  Counter stand_ins_;
  Counter messages_followed_;
  Counter plans_;
  Counter sentences_;
  Counter kept_;
  Counter too_long_;
  Counter empty_;
  Counter batches_dropped_;
  Counter sentences_dropped_;
  Counter repeated_;
  Counter epoch_;
  Counter epoch_batches_;
  Counter epoch_batch_;
  Counter plan_percent_;

  std::vector<double> weights_[kWeightsKept];  // by their places
  BitextCatalogue catalogue_;
  std::uint64_t catalogue_bytes_ = 0;  // in the arena
  PlanMaker maker_{catalogue_};
  std::unique_ptr<MadePlan> made_;  // is being copied:
  std::uint64_t made_offset_ = 0;   // to there
  std::uint64_t made_stored_ = 0;   // so many bytes of it
  std::uint64_t turn_ = 0;
  std::uint32_t percent_ = 0;
  std::string complaint_;
  std::optional<PlanTask> looked_for_;  // its plan is made before others
  std::chrono::steady_clock::time_point look_until_{};
  std::chrono::steady_clock::time_point again_at_{};  // after a plan that could not be made
  std::uint64_t empty_epochs_ = 0;                    // one behind the other

  // Of the plan at hand.
  std::uint64_t looked_at_ = 0;  // its place in the arena; 0: not yet
  std::vector<Section> sections_;
  std::uint64_t sentences_at_ = 0;
  std::uint64_t ends_at_ = 0;
  std::uint64_t order_at_ = 0;
  bool wide_ = false;
  std::uint64_t use_ = 0;
  std::vector<formats::BatchPlanPart> parts_;
  std::vector<formats::BatchPlanRow> rows_;
  std::string text_;
};

}  // namespace ringfeed
