// Writes batches of parallel text straight into the slots of the feed.
//
//   input    batch_plans  which sentences of which files make a batch, a record each
//   output   batches      id, src_tokens, src_lengths, prev_output_tokens, target, ntokens,
//                         nsentences, position, and on demand src_lang_id, tgt_lang_id, direction
//   arena    whether a batch is owed for a plan that was set aside (8 bytes), its position (64)
//   at end   nothing is left over
//   skips    sentences that do not lie where the index says (skipped_out_of_bounds), of files that
//            cannot be opened (skipped_unreadable) or have another number of sentences than planned
//            (skipped_changed; both are tried again for every batch), longer than planned
//            (skipped_too_large)
//
// Every record becomes exactly one batch, whatever is wrong with it: batch s of the feed goes to
// rank (s - 1) mod world_size, so a batch that was missing would shift all ranks against each
// other. What is skipped is missing in its batch, down to none at all; a record that is no plan
// (plans_damaged) becomes a batch of no rows with a position of zeros, and one that has been set
// aside a batch of no rows at its place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/bitext/bitext_collate.h"
#include "workers/io/token_file.h"
#include "workers/kit/batch_schema.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

StageType bitext_collator_type();

class BitextCollator final : public Stage {
 public:
  // Of `position`, in this order.
  enum Position : std::size_t {
    kEpoch,
    kBatch,
    kBatches,
    kKind,
    kGeneration,
    kWorldSize,
    kChainEpoch,
    kChainPass,
    kPositions
  };
  using BatchPosition = std::array<std::uint64_t, kPositions>;

  struct State {
    explicit State(StateLayout& layout) : owed(layout.word()), position(layout.words(kPositions)) {}
    Word owed;
    Words position;
  };
  // Where the arrays lie in a slot; those that the configuration does not ask for: kNone.
  struct Slot {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    explicit Slot(const StageView& stage);
    formats::BitextPadding padding;
    formats::BitextCapacity capacity;
    std::uint64_t id;
    std::uint64_t source;
    std::uint64_t source_lengths;
    std::uint64_t previous;
    std::uint64_t target;
    std::uint64_t ntokens;
    std::uint64_t nsentences;
    std::uint64_t position;
    std::uint64_t source_lang_id = kNone;
    std::uint64_t target_lang_id = kNone;
    std::uint64_t direction = kNone;
    std::uint64_t end = 0;
    std::vector<RaggedArray> arrays;  // as listed above
  };

  explicit BitextCollator(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  // The plan's batch has no rows, and is published by the next step.
  void forget(Step& step, const Record& record) noexcept override;

 private:
  using SharedFile = std::shared_ptr<const formats::TokenFile>;
  // A pair of files, by the number of the part; empty: not open.
  struct Files {
    std::string source_path;
    std::string target_path;
    SharedFile source;
    SharedFile target;
    std::uint64_t used = 0;  // the plan that used it last
  };
  // Why a part's rows are left out.
  struct Missing {
    std::size_t part;
    SkipReason* why;
    std::string path;
    std::string text;
  };

  void publish_empty(Step& step, std::byte* slot, const BatchPosition& position) noexcept;
  void publish(Step& step, std::byte* slot, const BatchPosition& position, std::uint64_t rows,
               std::uint32_t source_width, std::uint32_t target_width) noexcept;
  void find_files(const formats::BatchPlan& plan) noexcept;
  bool open(const formats::BatchPlan& plan, std::size_t part, Files& files) noexcept;
  void make_room() noexcept;
  void count_skips(Step& step, const formats::BatchPlan& plan) noexcept;
  template <typename Token>
  [[nodiscard]] formats::BitextArrays<Token> arrays(std::byte* slot) const noexcept;

  bool compact_;
  Slot slot_;
  State state_;
  InPort in_;
  Counter rows_;
  Counter batches_;
  Counter tokens_;
  Counter padding_;
  SkipReason out_of_bounds_;
  SkipReason unreadable_;
  SkipReason changed_;
  SkipReason too_large_;
  SkipReason no_symbol_;
  SkipReason damaged_;
  std::size_t files_max_;
  std::unordered_map<std::uint32_t, Files> files_;  // by part number
  std::uint64_t plans_ = 0;                         // of this process; tells the oldest files
  formats::BitextCollate collate_;

  // Of the plan at hand, by part.
  std::vector<formats::BitextFiles> at_hand_;
  std::vector<Missing> missing_;
};

}  // namespace ringfeed
