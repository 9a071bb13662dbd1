// What stages of samples tell each other (ringfeed/worker/facts.h).
#pragma once

#include <string>
#include <vector>

#include "ringfeed/worker/facts.h"
#include "workers/kit/batch_columns.h"

namespace ringfeed {

// The batch that a stage makes of samples as they are; those between it and the source pass the
// wish on.
struct BatchWish {
  std::string stage;
  std::vector<BatchColumn> columns;
};
inline std::string fact_text(const BatchWish&) { return {}; }  // the batch itself is shown
inline constexpr Fact<BatchWish> kBatchWish{"samples.batch"};

// Of a stage that changes no sample.
inline void pass_on_batch_wish(const Links& links, const std::string& input, PortFacts& inputs) {
  const BatchWish* const wish = links.output("output").said.find(kBatchWish);
  if (wish != nullptr) inputs[input].set(kBatchWish, *wish);
}

}  // namespace ringfeed
