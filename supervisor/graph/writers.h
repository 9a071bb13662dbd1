// A graph in the forms that `ringfeed graph` writes. Names are whatever somebody has chosen: each
// form escapes them in its own way, so that none can be more than a name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "supervisor/graph/graph.h"

namespace ringfeed::graph {

// A drawing of 80 columns for people; box drawing characters if `utf8`, else ASCII alone.
[[nodiscard]] std::string graph_text(const Graph& graph, bool utf8);

// For Graphviz: processes are clusters.
[[nodiscard]] std::string graph_dot(const Graph& graph);

// For programs; docs/reference/json.md describes it. What is not known is left out.
[[nodiscard]] nlohmann::ordered_json graph_object(const Graph& graph);
[[nodiscard]] std::string graph_json(const Graph& graph, int indent);

// What Graphviz makes of it. Throws Error: kNotFound without the program `dot`, with what to
// install; kTimeout if it does not end in time; kIo with its own words if it fails.
[[nodiscard]] std::string graph_svg(const Graph& graph);

}  // namespace ringfeed::graph
