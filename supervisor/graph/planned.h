// The graph of a feed that a configuration would make.
#pragma once

#include "supervisor/graph/graph.h"
#include "supervisor/layout/feed_layout.h"

namespace ringfeed::graph {

// `config` has no problems, and `layout` is its own.
[[nodiscard]] Graph planned_graph(const DataLoaderConfig& config, const PipelinePlan& plan,
                                  const layout::FeedLayout& layout);

}  // namespace ringfeed::graph
