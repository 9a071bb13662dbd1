// What every drawing of a graph says, in words.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "supervisor/graph/graph.h"

namespace ringfeed::graph {

// "1 lane", "2 of 4 lanes": it may be scaled to four.
[[nodiscard]] std::string lanes_words(const Node& node);
// "busy 90 %, starved 8 %, blocked 2 %"; "": not known.
[[nodiscard]] std::string load_words(const Node& node);
// "process read, pid 4711"; "processes read.0 to read.3, one for each lane".
[[nodiscard]] std::string process_words(const Graph& graph, const std::vector<std::size_t>& frame);
// "312 of 1024 records, 3.1 k/s"; not running: "1024 records, 32.0 MiB".
[[nodiscard]] std::string queue_words(const Graph& graph, const Queue& queue);
// The slots of an output, as a queue.
[[nodiscard]] std::string slots_words(const Graph& graph, const Output& output);
// "batches", "output 'train'".
[[nodiscard]] std::string output_name(const Output& output);
// "up to 256 rows, 1.2 MiB each, 8 slots".
[[nodiscard]] std::string output_words(const Graph& graph, const Output& output);
// "ranked of 4, policy BLOCK, 3 trainers, 2 batches behind".
[[nodiscard]] std::string group_words(const Graph& graph, const ConsumerGroup& group);
// "running for 12 s, process 4711, 1.2 GiB".
[[nodiscard]] std::string feed_words(const Graph& graph);
// "bottleneck", of what limits; else "".
[[nodiscard]] std::string mark_words(bool limits);
// Sentences of `why`, one for each output; what is not measured yet is said too.
[[nodiscard]] std::vector<std::string> bottleneck_words(const Graph& graph);

// The graph with every text in it changed.
[[nodiscard]] Graph with_texts(Graph graph,
                               const std::function<std::string(const std::string&)>& change);

}  // namespace ringfeed::graph
