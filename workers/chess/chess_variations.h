// Makes token sequences of positions with the lines that a search has looked at. With `order:
// BETTER` of two parts:
//
//   ""       lanes that make sequences of rows (chess/chess_variation.h)
//     input      rows        of Parquet files (row_records.h)
//     sequences  sequences   inside the stage
//     arena      rows of the record under way that are done (8 bytes)
//     skips      rows without variations (rows_without_variations), and with a fault, by reason
//   pool     mixes them: one lane (sequence_pool.h)
//     output     sequences   of the stage
//
// The order of lines and their depths follow from the feed's seed, the epoch, the file's name and
// the row's number. With `order: EXACT` the stage is one lane: exact_reader.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/chess/chess_variation.h"
#include "workers/io/row_batch.h"
#include "workers/kit/stage_help.h"

namespace ringfeed {

StageType chess_variations_type();

// What both orders do with a row: reads its JSON, and counts why it gives no sample.
class VariationRows {
 public:
  enum class Fate : std::uint8_t {
    kSample,
    kSkipped,
    kFault,  // EXACT: of the whole file
  };
  // `exact`: what the original could not bear ends the file.
  VariationRows(const StageContext& context, bool exact);
  Fate convert(Step& step, const formats::RowBatch& batch, std::uint32_t row,
               formats::VariationDraws& draws, formats::TokenSequence& out);
  // Of the last kFault.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  [[nodiscard]] std::uint32_t length_max() const noexcept { return length_max_; }

 private:
  bool exact_;
  formats::VariationOptions options_;
  std::uint32_t length_max_;
  Counter without_variations_;
  Counter tried_again_;
  SkipReason json_;
  SkipReason no_final_move_;
  SkipReason too_long_;
  SkipReason fen_;
  SkipReason visits_;
  SkipReason root_move_;
  SkipReason wdl_;
  SkipReason nodes_;
  SkipReason no_move_;
  std::vector<formats::Variation> variations_;
  std::string why_;
};

class ChessVariations final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : row(layout.word()) {}
    Word row;
  };
  explicit ChessVariations(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  StageContext context_;
  State state_;
  InPort in_;
  OutPort out_;
  Counter rows_;
  Counter sequences_;
  SkipReason damaged_;
  SkipReason too_large_;
  VariationRows variations_;
  formats::TokenSequence sequence_;
};

}  // namespace ringfeed
