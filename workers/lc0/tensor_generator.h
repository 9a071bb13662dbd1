// Writes frames as tensors straight into the slots of the feed.
//
//   input    frames   packed frames
//   output   batches  planes float32 [B,112,8,8], policy float32 [B,1858], values float32 [B,6,3],
//                     or what else is configured (lc0/lc0_tensors.h)
//   arena    of the batch under way (kit/batch_writer.h)
//   at end   the last batch is published with the rows it has, unless drop_remainder (rows then in
//            rows_dropped)
//   skips    a frame that cannot be expanded (frames_skipped), logged with the reason
#pragma once

#include "ringfeed/worker/stage.h"
#include "workers/kit/batch_writer.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_tensors.h"

namespace ringfeed {

StageType tensor_generator_type();

class TensorGenerator final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : batch(layout) {}
    BatchWriter::State batch;
  };
  // The tensors that a configuration asks for, and where they lie in a slot.
  struct Tensors {
    explicit Tensors(const TensorGeneratorConfig& config);
    formats::Lc0Options options;
    std::vector<formats::Lc0Field> fields;
    std::vector<std::uint64_t> offsets;  // of each field
    std::uint64_t end;
  };
  // Rows that one call writes at most, so that a death does not cost more than these.
  static constexpr std::uint32_t kRowsPerStep = 32;

  explicit TensorGenerator(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  std::uint64_t batch_size_;
  Tensors tensors_;
  BatchWriter batches_;
  InPort in_;
  SkipReason skipped_;
  formats::Lc0TensorWriter writer_;
};

}  // namespace ringfeed
