// Writes token sequences as batches straight into the slots of the feed.
//
//   input    sequences   packed token sequences, ends of epochs (passed over) and of batches
//                        (EXACT)
//   output   batches     input_ids int64 [B, L] and what else docs/pipelines/chess.md lists
//   arena    of the batch under way (kit/batch_writer.h), samples seen (8 bytes)
//   at end   the last batch is published with the rows it has, unless drop_remainder (rows_dropped)
//   skips    a record that is no sequence, or is longer than a row (sequences_skipped)
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/chess/token_arrays.h"
#include "workers/kit/batch_writer.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

StageType sequence_batcher_type();

class SequenceBatcher final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : batch(layout), seen(layout.word()) {}
    BatchWriter::State batch;
    Word seen;
  };
  // All arrays that a batch may have.
  enum class Name : std::uint8_t {
    kInputIds,
    kBoardTargetIds,
    kMoveTargetIds,
    kMoveMask,
    kThinkingMoveMask,
    kWlPositions,
    kDPositions,
    kWlTargets,
    kDTargets,
    kWdlValid,
    kBlockId,
    kFirstIsNotBest,
    kContinueVarMask,
    kNewVariationMask,
    kEndVarMaxDepthMask,
    kEndThinkMaxVarMask,
    kVariationEpoch,
    kLineage,
    kCount,
  };
  struct Field {
    const char* name;
    const char* dtype;
    std::uint32_t element_bytes;
    std::uint32_t elements;  // of a row; 0: one, and the array has one dimension
    std::uint64_t offset = 0;
    [[nodiscard]] std::uint64_t row_bytes() const noexcept {
      return std::uint64_t{element_bytes} * (elements == 0 ? 1 : elements);
    }
  };
  // Which arrays a configuration asks for, and where they lie in a slot.
  struct Arrays {
    explicit Arrays(const StageView& stage);
    std::uint32_t length;
    bool compact;
    bool variations;
    std::vector<Field> fields;
    std::array<std::int8_t, static_cast<std::size_t>(Name::kCount)> numbers;  // -1: not there
    std::uint64_t end = 0;
  };
  // Rows that one call writes at most, so that a death does not cost more than these.
  static constexpr std::uint32_t kRowsPerStep = 32;

  explicit SequenceBatcher(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  template <typename Row>
  void write_row(std::byte* slot, std::uint64_t row) const noexcept;
  // The row's elements of an array; nullptr: the batch does not have it.
  template <typename T>
  T* at(std::byte* slot, Name name, std::uint64_t row) const noexcept;

  SequenceBatcherConfig own_;
  Arrays arrays_;
  State state_;
  BatchWriter batches_;
  InPort in_;
  Counter tokens_;
  Counter elsewhere_;
  SkipReason skipped_;
  formats::TokenSequence sequence_;
};

}  // namespace ringfeed
