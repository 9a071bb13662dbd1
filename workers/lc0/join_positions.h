// Makes one stream of frames out of several.
//
//   input[i]  frames  as many inputs as `input` names
//   output    frames
//
// ORDERED dispatch: one of each in turn, so the order does not depend on who is quick; an input
// that has ended is left out from then on. RELAXED: whatever is there.
#pragma once

#include <cstdint>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

StageType join_positions_type();

class JoinPositions final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : turn(layout.word()) {}
    Word turn;  // the input whose turn it is
  };
  explicit JoinPositions(const StageContext& context);
  StepStatus step(Step& step) noexcept override;

 private:
  State state_;
  bool ordered_;
  std::vector<InPort> inputs_;
  OutPort out_;
};

}  // namespace ringfeed
