#include "supervisor/graph/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "supervisor/os/text.h"

namespace ringfeed::graph {
namespace {

std::string counted(std::uint64_t count, std::string_view thing, std::string_view things) {
  return fmt::format("{} {}", count, count == 1 ? thing : things);
}

std::string rate(double value) {
  if (value >= 1e6) return fmt::format("{:.1f} M/s", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f} k/s", value / 1e3);
  return fmt::format("{:.1f} /s", value);
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

}  // namespace

std::string lanes_words(const Node& node) {
  if (node.lanes_max > node.lanes) {
    return fmt::format("{} of {} lanes", node.lanes, node.lanes_max);
  }
  return counted(node.lanes, "lane", "lanes");
}

std::string load_words(const Node& node) {
  if (!node.load) return {};
  return fmt::format("busy {}, starved {}, blocked {}", percent(node.load->busy),
                     percent(node.load->starved), percent(node.load->blocked));
}

std::string process_words(const Graph& graph, const std::vector<std::size_t>& frame) {
  if (frame.empty()) return "no process";
  const Process& first = graph.processes[frame.front()];
  if (frame.size() > 1) {
    return fmt::format("processes {} to {}, one for each lane", first.name,
                       graph.processes[frame.back()].name);
  }
  std::string text = "process " + first.name;
  if (graph.running) text += first.pid == 0 ? ", none now" : fmt::format(", pid {}", first.pid);
  if (first.restarts != 0) text += ", " + counted(first.restarts, "restart", "restarts");
  return text;
}

std::string queue_words(const Graph& graph, const Queue& queue) {
  if (!graph.running) {
    return fmt::format("{}, {}", counted(queue.capacity_records, "record", "records"),
                       shown_bytes(queue.capacity_bytes));
  }
  // Few large records fill a queue as well as many small ones.
  const bool by_bytes =
      static_cast<double>(queue.fill_records) * static_cast<double>(queue.capacity_bytes) <
      static_cast<double>(queue.fill_bytes) * static_cast<double>(queue.capacity_records);
  std::string text =
      by_bytes ? fmt::format("{} of {}", shown_bytes(queue.fill_bytes),
                             shown_bytes(queue.capacity_bytes))
               : fmt::format("{} of {} records", queue.fill_records, queue.capacity_records);
  if (queue.records_per_s) text += ", " + rate(*queue.records_per_s);
  if (queue.dropped != 0) text += fmt::format(", {} dropped", queue.dropped);
  if (queue.closed) text += ", closed";
  return text;
}

std::string slots_words(const Graph& graph, const Output& output) {
  if (!graph.running) return counted(output.slots, "slot", "slots");
  std::string text = fmt::format("{} of {} slots", output.slots_used, output.slots);
  if (output.batches_per_s) text += fmt::format(", {:.1f} batches/s", *output.batches_per_s);
  return text;
}

std::string output_name(const Output& output) {
  return output.alias.empty() ? "batches" : fmt::format("output '{}'", output.alias);
}

std::string output_words(const Graph& graph, const Output& output) {
  std::string text = fmt::format("{}, {} each", counted(output.rows_max, "row", "rows"),
                                 shown_bytes(output.slot_bytes));
  if (output.rows_max > 1) text = "up to " + text;
  if (output.keep_newest) text += ", the newest are kept";
  if (graph.running) text += ", " + counted(output.batches, "batch so far", "batches so far");
  return text;
}

std::string group_words(const Graph& graph, const ConsumerGroup& group) {
  std::string text = lower(group.kind);
  if (group.world != 0) text += fmt::format(" of {}", group.world);
  text += fmt::format(", policy {}", lower(group.policy));
  if (!graph.running) return text;
  text += ", " + counted(group.trainers.size(), "trainer", "trainers");
  text += ", " + counted(group.lag, "batch behind", "batches behind");
  if (group.skipped != 0) text += fmt::format(", {} lost", group.skipped);
  return text;
}

std::string feed_words(const Graph& graph) {
  const std::string memory = shown_bytes(graph.memory_bytes);
  if (!graph.running) {
    std::uint64_t lanes = 0;
    for (const Node& node : graph.nodes) lanes += node.lanes;
    return fmt::format("as configured, not running: {}, {}, {}", counted(lanes, "lane", "lanes"),
                       counted(graph.processes.size(), "process", "processes"), memory);
  }
  return fmt::format("{} for {}, process {}, {}", lower(graph.state), shown_time(graph.uptime_ms),
                     graph.supervisor_pid, memory);
}

std::string mark_words(bool limits) { return limits ? "bottleneck" : ""; }

std::vector<std::string> bottleneck_words(const Graph& graph) {
  std::vector<std::string> all;
  for (const Bottleneck& found : graph.bottlenecks) {
    all.push_back(found.output.empty()
                      ? found.sentence
                      : fmt::format("output {}: {}", found.output, found.sentence));
  }
  if (graph.running && all.empty()) all.emplace_back("what limits the feed is not measured yet");
  return all;
}

Graph with_texts(Graph graph, const std::function<std::string(const std::string&)>& change) {
  const auto each = [&change](std::string& text) { text = change(text); };
  for (std::string* text : {&graph.feed, &graph.state, &graph.reason, &graph.config_file}) {
    each(*text);
  }
  for (Process& process : graph.processes) each(process.name);
  for (Node& node : graph.nodes) {
    for (std::string* text : {&node.name, &node.stage, &node.part, &node.kind, &node.progress}) {
      each(*text);
    }
  }
  for (Queue& queue : graph.queues) {
    each(queue.port);
    each(queue.to_port);
  }
  for (Output& output : graph.outputs) {
    each(output.alias);
    each(output.port);
    for (ConsumerGroup& group : output.groups) {
      each(group.name);
      for (Trainer& trainer : group.trainers) each(trainer.client);
    }
  }
  for (Bottleneck& found : graph.bottlenecks) {
    each(found.output);
    each(found.sentence);
  }
  for (MemoryPart& part : graph.memory) each(part.part);
  return graph;
}

}  // namespace ringfeed::graph
