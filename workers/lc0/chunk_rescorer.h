// Gives games new targets (lc0/lc0_rescore.h): policy temperature and offset, plies_left,
// results where a blunder decided them, what version 7 has more.
//
//   input, output  chunks   whole games; what was version 5 or 6 goes out as version 7, other
//                           versions as they are
//   arena    none
//   skips    a chunk record that contradicts itself (chunks_damaged), one that does not fit the
//            output (skipped_too_large)
//
// Identity, use and the number of positions stay, and so does the choice that an unpacker makes.
#pragma once

#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_rescore.h"
#include "workers/lc0/records.h"

namespace ringfeed {

StageType chunk_rescorer_type();

class ChunkRescorer final : public Stage {
 public:
  explicit ChunkRescorer(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  StageContext context_;
  InPort in_;
  OutPort out_;
  Counter chunks_;
  Counter frames_;
  Counter plies_left_filled_;
  Counter chunks_deblundered_;
  Counter blunders_;
  Counter policies_kept_;
  Counter chunks_damaged_;
  SkipReason too_large_;
  formats::RescoreOptions options_;
  ChunkRecord chunk_{};
  std::vector<formats::PackedFrameView> views_;
  std::vector<formats::RecordTail> tails_;
  std::vector<std::uint32_t> policy_;
};

}  // namespace ringfeed
