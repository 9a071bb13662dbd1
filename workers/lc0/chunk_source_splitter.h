// Deals out the chunks of each source to several outputs: training and validation, say.
//
//   input    sources  from the loader
//   NAME     sources  an output for each `outputs`: the same file with the chunks that fell to it
//
// Where a chunk goes follows from its file's name, its number in the file and `key` alone, so every
// machine and every run has the same split, also when files are added.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/resumed_split.h"

namespace ringfeed {

StageType chunk_source_splitter_type();

// The output to which chunk number `index` of the file falls; `weights` has one of each output, at
// least one, all above 0.
[[nodiscard]] std::size_t split_of(std::uint64_t key, std::string_view sort_key,
                                   std::uint64_t index,
                                   const std::vector<std::uint64_t>& weights) noexcept;

class ChunkSourceSplitter final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout) {}
    ResumedSplit split;  // chunks of the source at hand
  };
  explicit ChunkSourceSplitter(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  State state_;
  InPort in_;
  std::uint64_t key_;
  std::vector<OutPort> outputs_;
  std::vector<std::uint64_t> weights_;
  std::vector<Counter> chunks_;
  std::vector<std::vector<std::uint32_t>> dealt_;  // by output: places in the source
};

}  // namespace ringfeed
