#include "supervisor/metrics/json.h"

#include <nlohmann/json.hpp>

#include "supervisor/graph/writers.h"

namespace ringfeed::graph {
namespace {

using Json = nlohmann::ordered_json;

Json processes_of(const Graph& graph) {
  Json all = Json::array();
  for (const Process& process : graph.processes) {
    Json one{{"name", process.name}};
    if (process.pid != 0) one["pid"] = process.pid;
    if (graph.running) one["restarts"] = process.restarts;
    all.push_back(std::move(one));
  }
  return all;
}

Json nodes_of(const Graph& graph) {
  Json all = Json::array();
  for (const Node& node : graph.nodes) {
    Json one{{"name", node.name}, {"stage", node.stage}, {"kind", node.kind}};
    if (!node.part.empty()) one["part"] = node.part;
    one["processes"] = Json::array();
    for (const std::size_t process : node.processes) {
      one["processes"].push_back(graph.processes[process].name);
    }
    one["lanes"] = node.lanes;
    one["lanes_max"] = node.lanes_max;
    if (!node.progress.empty()) one["progress"] = node.progress;
    if (graph.running) {
      one["records_in"] = node.records_in;
      one["records_out"] = node.records_out;
      one["limits"] = node.limits;
    }
    if (node.load) {
      one["busy_share"] = node.load->busy;
      one["starved_share"] = node.load->starved;
      one["blocked_share"] = node.load->blocked;
    }
    all.push_back(std::move(one));
  }
  return all;
}

Json queues_of(const Graph& graph) {
  Json all = Json::array();
  for (const Queue& queue : graph.queues) {
    Json one{{"from", graph.nodes[queue.from].name},
             {"port", queue.port},
             {"to", graph.nodes[queue.to].name},
             {"to_port", queue.to_port},
             {"back", queue.back},
             {"rings", queue.rings},
             {"capacity_records", queue.capacity_records},
             {"capacity_bytes", queue.capacity_bytes}};
    if (graph.running) {
      one["fill_records"] = queue.fill_records;
      one["fill_bytes"] = queue.fill_bytes;
      one["fill_share"] = queue.fill_share();
      one["dropped"] = queue.dropped;
      one["closed"] = queue.closed;
    }
    if (queue.records_per_s) one["records_per_s"] = *queue.records_per_s;
    if (queue.bytes_per_s) one["bytes_per_s"] = *queue.bytes_per_s;
    all.push_back(std::move(one));
  }
  return all;
}

Json groups_of(const Graph& graph, const Output& output) {
  Json all = Json::array();
  for (const ConsumerGroup& group : output.groups) {
    Json one{{"name", group.name},
             {"kind", group.kind},
             {"world", group.world},
             {"policy", group.policy}};
    if (graph.running) {
      one["lag"] = group.lag;
      one["skipped"] = group.skipped;
      one["trainers"] = Json::array();
      for (const Trainer& trainer : group.trainers) {
        one["trainers"].push_back(
            {{"member", trainer.member}, {"pid", trainer.pid}, {"client", trainer.client}});
      }
    }
    all.push_back(std::move(one));
  }
  return all;
}

Json outputs_of(const Graph& graph) {
  Json all = Json::array();
  for (const Output& output : graph.outputs) {
    Json one{{"alias", output.alias}};
    if (output.from) {
      one["from"] = graph.nodes[*output.from].name;
      one["port"] = output.port;
    }
    one["rows_max"] = output.rows_max;
    one["slot_bytes"] = output.slot_bytes;
    one["slots"] = output.slots;
    one["keep_newest"] = output.keep_newest;
    if (graph.running) {
      one["slots_used"] = output.slots_used;
      one["batches"] = output.batches;
      one["limits"] = output.limits;
    }
    if (output.batches_per_s) one["batches_per_s"] = *output.batches_per_s;
    one["groups"] = groups_of(graph, output);
    all.push_back(std::move(one));
  }
  return all;
}

Json bottlenecks_of(const Graph& graph) {
  Json all = Json::array();
  for (const Bottleneck& found : graph.bottlenecks) {
    Json one{{"output", found.output}, {"kind", found.kind}};
    if (found.node) one["node"] = graph.nodes[*found.node].name;
    one["sentence"] = found.sentence;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

Json graph_object(const Graph& graph) {
  Json out{
      {"json_version", metrics::kJsonVersion}, {"feed", graph.feed}, {"running", graph.running}};
  if (graph.running) {
    out["state"] = graph.state;
    if (!graph.reason.empty()) out["reason"] = graph.reason;
    out["supervisor_pid"] = graph.supervisor_pid;
    out["uptime_ms"] = graph.uptime_ms;
    out["config_file"] = graph.config_file;
    out["seconds_covered"] = graph.seconds_covered;
  }
  out["memory_bytes"] = graph.memory_bytes;
  out["processes"] = processes_of(graph);
  out["nodes"] = nodes_of(graph);
  out["queues"] = queues_of(graph);
  out["outputs"] = outputs_of(graph);
  if (graph.running) {
    out["bottlenecks"] = bottlenecks_of(graph);
  } else {
    out["memory"] = Json::array();
    for (const MemoryPart& part : graph.memory) {
      out["memory"].push_back({{"part", part.part}, {"bytes", part.bytes}});
    }
  }
  return out;
}

std::string graph_json(const Graph& graph, int indent) {
  return metrics::json_text(graph_object(graph), indent) + "\n";
}

}  // namespace ringfeed::graph
