#include "supervisor/graph/graph.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/graph/order.h"

namespace ringfeed::graph {
namespace {

constexpr double kWindowS = 10;  // the one that `ringfeed why` looks at

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string joined(std::string_view stage, std::string_view part) {
  std::string name(stage);
  if (!part.empty()) (name += '.') += part;
  return name;
}

// "read" of lane "pool.read.1" of stage "pool".
std::string part_of(std::string_view lane, std::string_view stage) {
  const std::size_t number = lane.rfind('.');
  if (number == std::string_view::npos || number <= stage.size()) return {};
  return std::string(lane.substr(stage.size() + 1, number - stage.size() - 1));
}

const WindowMetricsProto* window_of(const MetricsReply* metrics) {
  if (metrics == nullptr) return nullptr;
  for (const WindowMetricsProto& window : metrics->windows()) {
    if (window.seconds_wanted() == kWindowS && window.seconds_covered() > 0) return &window;
  }
  return nullptr;
}

class GraphMaker {
 public:
  GraphMaker(const StatusReply& status, const MetricsReply* metrics)
      : status_(status), metrics_(metrics), window_(window_of(metrics)) {}

  Graph make() {
    add_head();
    for (const StageStatus& stage : status_.stages()) add_stage(stage);
    for (const RingStatus& ring : status_.rings()) add_ring(ring);
    for (const FeedStatus& output : status_.outputs()) add_output(output);
    if (metrics_ != nullptr) {
      for (const BottleneckProto& found : metrics_->bottlenecks()) add_bottleneck(found);
    }
    put_in_order();
    return std::move(graph_);
  }

 private:
  void add_head() {
    graph_.feed = status_.feed();
    graph_.running = status_.has_state();
    if (graph_.running) graph_.state = StatusReply::State_Name(status_.state());
    graph_.reason = status_.reason();
    graph_.supervisor_pid = status_.supervisor_pid();
    graph_.uptime_ms = status_.uptime_ms();
    graph_.config_file = status_.config_file();
    graph_.memory_bytes = status_.memory_bytes();
    if (window_ != nullptr) graph_.seconds_covered = window_->seconds_covered();
  }

  std::size_t process_of(const StageStatus& stage, const LaneStatus& lane) {
    const std::string& name = lane.has_group() ? lane.group() : stage.group();
    const auto [at, added] = processes_.try_emplace(name, graph_.processes.size());
    if (added) graph_.processes.push_back({name});
    Process& process = graph_.processes[at->second];
    process.pid = std::max(process.pid, lane.pid());
    process.restarts = std::max(process.restarts, lane.restarts());
    return at->second;
  }

  void add_stage(const StageStatus& stage) {
    const std::size_t first = graph_.nodes.size();
    for (const LaneStatus& lane : stage.lanes()) {
      const std::string part = part_of(lane.name(), stage.name());
      const std::string name = joined(stage.name(), part);
      const auto [at, added] = nodes_.try_emplace(name, graph_.nodes.size());
      if (added) {
        Node& node = graph_.nodes.emplace_back();
        node.name = name;
        node.stage = stage.name();
        node.part = part;
        node.kind = stage.kind();
      }
      add_lane(lane, process_of(stage, lane), graph_.nodes[at->second]);
      lanes_[lane.name()] = {at->second, lane.state() == LaneStatus::SPARE};
    }
    if (graph_.nodes.size() > first) graph_.nodes[first].progress = stage.progress();
    add_loads(stage);
  }

  static void add_lane(const LaneStatus& lane, std::size_t process, Node& node) {
    ++node.lanes_max;
    if (lane.state() != LaneStatus::SPARE) ++node.lanes;
    node.records_in += lane.records_in();
    node.records_out += lane.records_out();
    if (std::ranges::count(node.processes, process) == 0) node.processes.push_back(process);
  }

  const StageMetricProto* metrics_of(const std::string& stage) const {
    if (window_ == nullptr) return nullptr;
    for (const StageMetricProto& metric : window_->metrics().stage_metrics()) {
      if (metric.name() == stage) return &metric;
    }
    return nullptr;
  }

  void add_loads(const StageStatus& stage) {
    const StageMetricProto* const metric = metrics_of(stage.name());
    if (metric == nullptr) return;
    for (const LoadMetricProto& load : metric->loads()) {
      const auto at =
          nodes_.find(joined(stage.name(), load.name() == "load" ? std::string() : load.name()));
      if (at == nodes_.end() || !load.has_busy_share()) continue;
      graph_.nodes[at->second].load = {load.busy_share(), load.starved_share(),
                                       load.blocked_share()};
    }
  }

  void add_ring(const RingStatus& ring) {
    const auto from = lanes_.find(ring.from());
    const auto to = lanes_.find(ring.to());
    if (from == lanes_.end() || to == lanes_.end()) return;
    const auto [at, added] = queues_.try_emplace({from->second.node, ring.port(), to->second.node},
                                                 graph_.queues.size());
    if (added) graph_.queues.push_back(new_queue(ring, from->second.node, to->second.node));
    Queue& queue = graph_.queues[at->second];
    queue.dropped += ring.drop_count();
    if (from->second.spare || to->second.spare) return;
    ++queue.rings;
    queue.capacity_records += ring.capacity_records();
    queue.capacity_bytes += ring.capacity_bytes();
    queue.fill_records += ring.fill_records();
    queue.fill_bytes += ring.fill_bytes();
    queue.closed = ring.closed() && (queue.closed || queue.rings == 1);
  }

  Queue new_queue(const RingStatus& ring, std::size_t from, std::size_t to) const {
    Queue queue{.from = from, .port = ring.port(), .to = to, .to_port = ring.to_port()};
    queue.back = ring.back();
    const Node& node = graph_.nodes[from];
    // Its name in metrics: inside a stage, that of the part stands before it.
    const bool inside = node.stage == graph_.nodes[to].stage && !node.part.empty();
    if (const QueueMetricProto* const metric =
            queue_metric(node.stage, inside ? joined(node.part, ring.port()) : ring.port())) {
      queue.records_per_s = metric->put_per_s();
      queue.bytes_per_s = static_cast<double>(metric->put_bytes()) / graph_.seconds_covered;
    }
    return queue;
  }

  const QueueMetricProto* queue_metric(const std::string& stage, std::string_view name) const {
    const StageMetricProto* const metric = metrics_of(stage);
    if (metric == nullptr) return nullptr;
    for (const QueueMetricProto& queue : metric->output_queue_metrics()) {
      if (queue.name() == name && queue.has_put_per_s()) return &queue;
    }
    return nullptr;
  }

  void add_output(const FeedStatus& status) {
    Output& output = graph_.outputs.emplace_back();
    output.alias = status.alias();
    output.port = status.port();
    output.rows_max = status.schema().rows_max();
    output.slot_bytes = status.schema().slot_bytes();
    output.slots = status.slots();
    output.slots_used = status.slots_used();
    output.keep_newest = status.keep_newest();
    output.batches = status.batches_published();
    if (const auto at = nodes_.find(status.from()); at != nodes_.end()) {
      output.from = at->second;
      const std::string& stage = graph_.nodes[at->second].stage;
      if (const QueueMetricProto* const metric = queue_metric(stage, status.port())) {
        output.batches_per_s = metric->put_per_s();
      }
    }
    for (const ConsumerGroupStatus& group : status_.groups()) {
      if (group.output() == output.alias) add_group(group, output);
    }
  }

  void add_group(const ConsumerGroupStatus& status, Output& output) {
    ConsumerGroup& group = output.groups.emplace_back();
    group.name = status.name();
    group.kind = ConsumerGroupConfig::Kind_Name(status.kind());
    group.world = status.world();
    group.policy = ConsumerGroupConfig::Policy_Name(status.policy());
    group.lag = status.lag();
    group.skipped = status.skipped();
    for (const TrainerStatus& trainer : status_.trainers()) {
      if (trainer.group() != group.name || trainer.output() != output.alias) continue;
      group.trainers.push_back({trainer.member(), trainer.pid(), trainer.client()});
    }
  }

  void add_bottleneck(const BottleneckProto& found) {
    Bottleneck& bottleneck = graph_.bottlenecks.emplace_back();
    bottleneck.output = found.output();
    bottleneck.kind = BottleneckProto::Kind_Name(found.kind());
    bottleneck.sentence = found.sentence();
    if (found.kind() == BottleneckProto::TRAINERS) {
      for (Output& output : graph_.outputs) output.limits |= output.alias == found.output();
    }
    const auto at = nodes_.find(joined(found.stage(), found.part()));
    if (!found.has_stage() || at == nodes_.end()) return;
    bottleneck.node = at->second;
    graph_.nodes[at->second].limits = true;
  }

  void put_in_order() {
    std::vector<std::size_t> frames;
    std::vector<std::size_t> families;
    std::map<std::vector<std::size_t>, std::size_t> known_frames;
    std::map<std::string_view, std::size_t> known_families;
    for (const Node& node : graph_.nodes) {
      frames.push_back(known_frames.try_emplace(node.processes, known_frames.size()).first->second);
      families.push_back(
          known_families.try_emplace(node.stage, known_families.size()).first->second);
    }
    std::vector<Link> links;
    for (const Queue& queue : graph_.queues) links.push_back({queue.from, queue.to, queue.back});
    const std::vector<std::size_t> order = drawing_order(frames, families, links);
    std::vector<std::size_t> place(order.size());
    std::vector<Node> nodes;
    for (const std::size_t node : order) {
      place[node] = nodes.size();
      nodes.push_back(std::move(graph_.nodes[node]));
    }
    graph_.nodes = std::move(nodes);
    for (Queue& queue : graph_.queues) {
      queue.from = place[queue.from];
      queue.to = place[queue.to];
      queue.back = queue.to <= queue.from;
    }
    std::ranges::stable_sort(graph_.queues, {}, &Queue::from);
    for (Output& output : graph_.outputs) {
      if (output.from) output.from = place[*output.from];
    }
    for (Bottleneck& found : graph_.bottlenecks) {
      if (found.node) found.node = place[*found.node];
    }
  }

  struct LanePlace {
    std::size_t node = 0;
    bool spare = false;
  };
  using QueueKey = std::tuple<std::size_t, std::string, std::size_t>;

  const StatusReply& status_;
  const MetricsReply* metrics_;
  const WindowMetricsProto* window_;
  Graph graph_;
  std::map<std::string, std::size_t> processes_;
  std::map<std::string, std::size_t> nodes_;
  std::map<std::string, LanePlace> lanes_;
  std::map<QueueKey, std::size_t> queues_;
};

}  // namespace

double Queue::fill_share() const {
  return std::max(share(fill_records, capacity_records), share(fill_bytes, capacity_bytes));
}

Graph make_graph(const StatusReply& status, const MetricsReply* metrics) {
  return GraphMaker(status, metrics).make();
}

}  // namespace ringfeed::graph
