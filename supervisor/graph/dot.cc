#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "ringfeed/shm/quote.h"
#include "supervisor/graph/rails.h"
#include "supervisor/graph/words.h"
#include "supervisor/graph/writers.h"
#include "supervisor/os/text.h"

namespace ringfeed::graph {
namespace {

constexpr double kFull = 0.9;  // a queue that is shown as full
constexpr std::size_t kTitleColumns = 90;

constexpr std::string_view kLimits = ", color=\"#b00020\", penwidth=2.5, fillcolor=\"#fde7ea\"";

constexpr std::string_view kHead = R"(digraph ringfeed {
  graph [rankdir=TB, fontname="Helvetica,Arial,sans-serif", labelloc=t, labeljust=l, nodesep=0.4];
  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica,Arial,sans-serif",
        fontsize=12];
  edge [fontname="Helvetica,Arial,sans-serif", fontsize=10, color="#555555"];
)";

// One line of a label. In a quoted string Graphviz reads \N and the like, and &lt; as HTML does.
std::string label(const std::string& text) {
  std::string out;
  for (const char c : escaped(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
    if (c == '&') out += "amp;";
  }
  return out;
}

// `end`: "\n" in the middle, "\l" at the left.
std::string labels(const std::vector<std::string>& lines, std::string_view end) {
  std::string out;
  for (const std::string& line : lines) {
    if (!line.empty()) (out += label(line)) += end;
  }
  return out;
}

class DotWriter {
 public:
  explicit DotWriter(const Graph& graph) : graph_(graph) {}

  std::string write() {
    text_ = kHead;
    write_title();
    write_frames();
    for (const Queue& queue : graph_.queues) write_queue(queue);
    for (std::size_t i = 0; i < graph_.outputs.size(); ++i) write_output(i);
    return text_ += "}\n";
  }

 private:
  void write_title() {
    std::vector<std::string> said{fmt::format("feed {}: {}", graph_.feed, feed_words(graph_)),
                                  graph_.reason};
    if (graph_.seconds_covered > 0) {
      said.push_back(
          fmt::format("rates and shares of time over the last {:.1f} s", graph_.seconds_covered));
    }
    for (const std::string& sentence : bottleneck_words(graph_)) said.push_back(sentence);
    std::vector<std::string> lines;
    for (const std::string& text : said) {
      for (std::string& line : wrapped(escaped(text), kTitleColumns, 4)) lines.push_back(line);
    }
    text_ += fmt::format("  label=\"{}\";\n", labels(lines, "\\l"));
  }

  void write_frames() {
    std::map<std::vector<std::size_t>, std::vector<std::size_t>> frames;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      frames[graph_.nodes[i].processes].push_back(i);
    }
    std::size_t number = 0;
    for (const auto& [processes, nodes] : frames) {
      text_ += fmt::format(
          "  subgraph cluster_{} {{\n    label=\"{}\"; style=rounded; color=\"#888888\"; "
          "bgcolor=\"#f4f6f8\";\n",
          number++, label(process_words(graph_, processes)));
      for (const std::size_t node : nodes) write_node(node);
      text_ += "  }\n";
    }
  }

  void write_node(std::size_t index) {
    const Node& node = graph_.nodes[index];
    text_ += fmt::format("    n{} [label=\"{}\"{}];\n", index,
                         labels({node.name, fmt::format("{}, {}", node.kind, lanes_words(node)),
                                 load_words(node), node.progress, mark_words(node.limits)},
                                "\\n"),
                         node.limits ? kLimits : "");
  }

  void write_queue(const Queue& queue) {
    const std::string_view look =
        graph_.running && queue.fill_share() >= kFull ? ", color=\"#b35900\", penwidth=2.5" : "";
    text_ += fmt::format("  n{} -> n{} [label=\"{}\"{}{}];\n", queue.from, queue.to,
                         labels({queue.port, queue_words(graph_, queue)}, "\\l"), look,
                         queue.back ? ", style=dashed, constraint=false" : "");
  }

  void write_output(std::size_t index) {
    const Output& output = graph_.outputs[index];
    text_ += fmt::format(
        "  o{} [label=\"{}\", style=filled, fillcolor=\"#e6f2ea\"{}];\n", index,
        labels({output_name(output), output_words(graph_, output), mark_words(output.limits)},
               "\\n"),
        output.limits ? kLimits : "");
    if (output.from) {
      text_ += fmt::format("  n{} -> o{} [label=\"{}\"];\n", *output.from, index,
                           labels({output.port, slots_words(graph_, output)}, "\\l"));
    }
    for (std::size_t i = 0; i < output.groups.size(); ++i) {
      const ConsumerGroup& group = output.groups[i];
      std::vector<std::string> lines{"consumer group " + group.name, group_words(graph_, group)};
      for (const Trainer& trainer : group.trainers) {
        lines.push_back(fmt::format("trainer {}: pid {}{}", trainer.member, trainer.pid,
                                    trainer.client.empty() ? "" : ", " + trainer.client));
      }
      text_ += fmt::format("  g{0}_{1} [label=\"{2}\", shape=ellipse];\n  o{0} -> g{0}_{1};\n",
                           index, i, labels(lines, "\\n"));
    }
  }

  const Graph& graph_;
  std::string text_;
};

}  // namespace

std::string graph_dot(const Graph& graph) { return DotWriter(graph).write(); }

}  // namespace ringfeed::graph
