#include "supervisor/os/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ringfeed/shm/quote.h"
#include "supervisor/graph/rails.h"
#include "supervisor/graph/words.h"
#include "supervisor/graph/writers.h"

namespace ringfeed::graph {
namespace {

// For a terminal that shows ASCII alone.
std::string in_ascii(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x80 ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return out;
}

class TextWriter {
 public:
  TextWriter(const Graph& graph, bool utf8)
      : graph_(graph), glyphs_(glyphs(utf8)), rails_(glyphs_) {}

  std::string write() {
    rails_.say(fmt::format("feed {}: {}", graph_.feed, feed_words(graph_)));
    if (!graph_.reason.empty()) rails_.say(graph_.reason);
    if (graph_.seconds_covered > 0) {
      rails_.say(
          fmt::format("rates and shares of time over the last {:.1f} s", graph_.seconds_covered));
    }
    for (std::size_t node = 0; node < graph_.nodes.size(); ++node) write_node(node);
    if (frame_ != nullptr) rails_.close_frame();
    for (std::size_t output = 0; output < graph_.outputs.size(); ++output) write_output(output);
    for (const std::string& sentence : bottleneck_words(graph_)) {
      rails_.say(sentence);
    }
    write_memory();
    return rails_.take();
  }

 private:
  // The numbers of wires: queues first, then outputs.
  [[nodiscard]] std::size_t wire_of_output(std::size_t output) const {
    return graph_.queues.size() + output;
  }

  // "██████░░░░"
  [[nodiscard]] std::string bar(double share) const {
    if (!graph_.running) return {};
    constexpr int kCells = 8;
    // What is not empty, and what is not full, is seen to be so.
    int cells = static_cast<int>(std::lround(share * kCells));
    if (share > 0) cells = std::max(cells, 1);
    if (share < 1) cells = std::min(cells, kCells - 1);
    std::string text;
    for (int i = 0; i < kCells; ++i) text += i < cells ? glyphs_.full : glyphs_.empty;
    return text + " ";
  }

  [[nodiscard]] std::string mark(bool limits) const {
    return limits ? fmt::format("{} {}", glyphs_.mark, mark_words(limits)) : std::string();
  }

  void frame(const Node& node) {
    if (frame_ != nullptr && *frame_ == node.processes) return;
    if (frame_ != nullptr) rails_.close_frame();
    const bool again = std::ranges::count(seen_, node.processes) != 0;
    rails_.open_frame(process_words(graph_, node.processes) + (again ? " (again)" : ""));
    seen_.push_back(node.processes);
    frame_ = &node.processes;
  }

  void write_node(std::size_t index) {
    const Node& node = graph_.nodes[index];
    frame(node);
    std::vector<std::size_t> ending;
    std::vector<std::size_t> leaving;
    for (std::size_t q = 0; q < graph_.queues.size(); ++q) {
      const Queue& queue = graph_.queues[q];
      if (queue.back) continue;
      if (queue.to == index) ending.push_back(q);
      if (queue.from == index) leaving.push_back(q);
    }
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      if (graph_.outputs[o].from == index) leaving.push_back(wire_of_output(o));
    }
    rails_.begin(ending, !leaving.empty());
    rails_.mark(glyphs_.node, fmt::format("{}  {}, {}", node.name, node.kind, lanes_words(node)),
                mark(node.limits));
    if (const std::string load = load_words(node); !load.empty()) rails_.say(load);
    if (!node.progress.empty()) rails_.say(node.progress);
    for (const Queue& queue : graph_.queues) {
      if (queue.back && queue.from == index) rails_.say(queue_text(queue));
    }
    for (const std::size_t wire : leaving) rails_.leave(wire, wire_text(wire));
    rails_.end();
  }

  [[nodiscard]] std::string queue_text(const Queue& queue) const {
    return fmt::format("{} {}{} {} {}", queue.port, bar(queue.fill_share()),
                       queue_words(graph_, queue), queue.back ? glyphs_.back : glyphs_.to,
                       graph_.nodes[queue.to].name);
  }

  [[nodiscard]] std::string wire_text(std::size_t wire) const {
    if (wire < graph_.queues.size()) return queue_text(graph_.queues[wire]);
    const Output& output = graph_.outputs[wire - graph_.queues.size()];
    const double share =
        output.slots == 0 ? 0 : static_cast<double>(output.slots_used) / output.slots;
    return fmt::format("{} {}{} {} {}", output.port, bar(share), slots_words(graph_, output),
                       glyphs_.to, output_name(output));
  }

  void write_output(std::size_t index) {
    const Output& output = graph_.outputs[index];
    rails_.begin({wire_of_output(index)}, false);
    rails_.mark(glyphs_.output,
                fmt::format("{}: {}", output_name(output), output_words(graph_, output)),
                mark(output.limits));
    for (const ConsumerGroup& group : output.groups) {
      rails_.say(fmt::format("  consumer group {}: {}", group.name, group_words(graph_, group)));
      for (const Trainer& trainer : group.trainers) {
        rails_.say(fmt::format("    trainer {}: pid {}{}", trainer.member, trainer.pid,
                               trainer.client.empty() ? "" : ", " + trainer.client));
      }
    }
    if (output.groups.empty()) rails_.say("  no consumer group yet");
    rails_.end();
  }

  void write_memory() {
    if (graph_.memory.empty()) return;
    rails_.say("memory");
    std::size_t width = 0;
    for (const MemoryPart& part : graph_.memory) width = std::max(width, columns_of(part.part));
    constexpr std::size_t kWidest = 62;
    width = std::min(width, kWidest);
    for (const MemoryPart& part : graph_.memory) {
      rails_.say(fmt::format("  {:<{}}  {}", part.part, width, shown_bytes(part.bytes)));
    }
  }

  const Graph& graph_;
  const Glyphs& glyphs_;
  Rails rails_;
  const std::vector<std::size_t>* frame_ = nullptr;
  std::vector<std::vector<std::size_t>> seen_;
};

}  // namespace

std::string graph_text(const Graph& graph, bool utf8) {
  const Graph shown = with_texts(graph, [utf8](const std::string& text) {
    return utf8 ? escaped(text) : in_ascii(escaped(text));
  });
  return TextWriter(shown, utf8).write();
}

}  // namespace ringfeed::graph
