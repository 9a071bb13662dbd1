// Finds the token files of parallel text: which there are for each direction and each of its
// shards, how many sentences they have, and which tokens stand before them.
//
//   output   bitext    BitextDirection, one for each direction and shard: all directions of shard
//                      0, then those that have a shard 1, and so on
//   arena    whether directories have been looked into (8 bytes), records output so far (8); of
//            each direction its shards and the ids of its tokens (24)
//   at end   after the last record, whatever `epochs` says; on drain at once
//   waits    for directories and dictionaries that are not there yet, in an endless run; a finite
//            one ends without them
//   skips    a direction in a shard whose files cannot be opened (skipped_unreadable), are none or
//            contradict themselves (skipped_damaged), or are of different length (skipped_unequal):
//            its record has no parts then, so that shards keep their numbers; directions and shards
//            without files (directions_missing)
//
// Which directions there are, how many shards each has and what its tokens are is decided once: who
// goes on after a death does so by what the arena says.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/bitext/bitext_files.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

class BitextDirection;

StageType bitext_source_type();

class BitextSource final : public Stage {
 public:
  struct State {
    State(StateLayout& layout, std::uint64_t pairs);
    Word laid;   // the plan has been made
    Word next;   // record
    Place plan;  // PlanHead, and a PlanEntry for each pair of the configuration
  };

  explicit BitextSource(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  [[nodiscard]] int poll_ms() const noexcept override { return 250; }

 private:
  struct PlanHead {
    std::uint32_t tags[kBitextTags.size()];
    std::uint32_t source_symbols;
    std::uint32_t target_symbols;
    std::uint32_t reserved;
  };
  struct PlanEntry {
    std::uint32_t shards;         // 0: it is left out
    std::uint32_t encoder_token;  // formats::kNoToken: none
    std::uint32_t decoder_token;
    std::uint32_t source_lang_id;
    std::uint32_t target_lang_id;
    std::uint32_t reserved;
  };
  struct Plan {
    PlanHead head{};
    std::vector<PlanEntry> entries;
  };
  struct Task {
    std::uint32_t pair = 0;
    std::uint32_t shard = 0;
  };
  // A record, and what is to be counted with it.
  struct Made {
    std::string bytes;
    std::uint64_t sentences = 0;
    SkipReason* skip = nullptr;
    std::string place;
    std::string text;
  };

  StepStatus lay(Step& step) noexcept;
  void take_plan(Plan plan);
  [[nodiscard]] Made make(const Task& task, std::uint64_t bytes_max);
  void add_part(Made& made, const BitextFold& fold, BitextDirection& to);
  StepStatus wait(const Problem& problem) noexcept;

  StageContext context_;
  std::vector<BitextPair> pairs_;
  State state_;
  OutPort out_;
  bool waits_;  // the run is endless

  Counter directions_;
  Counter sentences_;
  Counter directions_missing_;
  SkipReason unreadable_;
  SkipReason damaged_;
  SkipReason unequal_;
  Occasions missing_;
  Occasions waiting_;

  bool laid_ = false;
  Plan plan_;
  std::vector<std::uint32_t> numbers_;  // of the directions, by pair
  std::uint32_t count_ = 0;             // of the directions
  std::vector<Task> tasks_;             // by record
  std::optional<BitextListing> listing_;
  // The record that did not fit, so that its files need not be opened again.
  std::optional<Made> made_;
  std::uint64_t made_number_ = 0;
};

}  // namespace ringfeed
