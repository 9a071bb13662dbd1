// Passes on the chunks whose records are as they should be, unchanged.
//
//   input, output  chunks   whole games
//   arena    none
//   rejects  a chunk with a flaw (lc0/lc0_validate.h): rejected_empty, rejected_input_format,
//            ...; the first flaw that is found counts
//   skips    a chunk record that contradicts itself (chunks_damaged), one that does not fit the
//            output (skipped_too_large)
#pragma once

#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_validate.h"
#include "workers/lc0/records.h"

namespace ringfeed {

StageType chunk_validator_type();

class ChunkValidator final : public Stage {
 public:
  explicit ChunkValidator(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  StageContext context_;
  InPort in_;
  OutPort out_;
  Counter chunks_;
  Counter frames_passed_;
  Counter chunks_damaged_;
  SkipReason too_large_;
  std::vector<SkipReason> rejected_;  // by flaw, without the first, kNone
  formats::Checks checks_;
  ChunkRecord chunk_{};
  std::vector<formats::PackedFrameView> frames_;
};

}  // namespace ringfeed
