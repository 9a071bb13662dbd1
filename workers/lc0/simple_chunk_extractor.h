// Gives every chunk of each source once, those of a source in random order: for validation.
//
//   input    sources  from the loader or a splitter
//   output   chunks   packed frames of a game; ChunkRecord tells that it is its first use
//   inside   tasks    to the reading lanes (chunk_reader.h); rejects, from them
//
// Sources are taken in the order in which they come, and the order inside of each follows from seed
// and file. A file that comes again (rewritten) is given again.
#pragma once

#include <cstdint>

#include "ringfeed/worker/stage.h"
#include "workers/kit/resumed_split.h"

namespace ringfeed {

StageType simple_chunk_extractor_type();

// The lane that hands out chunks.
class ChunkExtractor final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : split(layout), total(layout.word()) {}
    ResumedSplit split;  // chunks of the source at hand
    Word total;          // of all sources
  };
  explicit ChunkExtractor(const StageContext& context);
  StepStatus step(Step& step) noexcept override;
  void forget(Step& step, const Record& record) noexcept override;

 private:
  StageContext context_;
  State state_;
  InPort in_;
  InPort rejects_;
  OutPort tasks_;
  Counter sources_;
  Counter chunks_;
  Counter dropped_;
};

}  // namespace ringfeed
