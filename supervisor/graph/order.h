// In which order the nodes of a graph are drawn.
#pragma once

#include <cstddef>
#include <vector>

namespace ringfeed::graph {

struct Link {
  std::size_t from = 0;
  std::size_t to = 0;
  bool back = false;  // is known to go back, so that no order follows from it
};

// All of `frames.size()` nodes: each after those that it reads from. Of those that may come next
// one of the same frame as the last is taken, then one that reads from the last, then the first.
// Where links make a circle, the first node of the fewest that wait only for nodes of their own
// `families` begins it.
[[nodiscard]] std::vector<std::size_t> drawing_order(const std::vector<std::size_t>& frames,
                                                     const std::vector<std::size_t>& families,
                                                     const std::vector<Link>& links);

}  // namespace ringfeed::graph
