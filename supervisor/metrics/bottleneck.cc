#include "supervisor/metrics/bottleneck.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "proto/config.pb.h"
#include "proto/metrics.pb.h"
#include "proto/plan.pb.h"

namespace ringfeed::metrics {
namespace {

// A lane that is busy for so much of the time waits for nobody.
constexpr double kBusy = 0.9;
// Waits for each other of stages that are about equally fast are shorter than this.
constexpr double kWaits = 0.05;
// A stage that is ready without a processor for so much of its busy time, and more than it waits
// for anything else, while so little of the machine is idle, would be faster on a larger one.
constexpr double kCoreWait = 0.25;
constexpr double kIdleShare = 0.1;
constexpr std::uint32_t kLanesMax = 64;
// Both ends of a queue wait for each other for so much of their time, and neither is nearly as busy
// as it could be: with more room there would be at least a quarter more.
constexpr double kQueueWaits = 0.1;
constexpr double kQueueBusy = 0.8;
constexpr std::uint64_t kQueueUseful = 64;  // records; what they may take is bounded by queue_bytes
constexpr std::uint64_t kSlotsUseful = 8;
constexpr std::uint64_t kQueueGrowth = 4;
constexpr double kLeavesOut = 0.5;
// Of the processors a feed gets so many from others who are after all of them.
constexpr double kFairShare = 0.25;
constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

std::string name_of(const NodeLoad& node) {
  return node.part.empty() ? node.stage : node.stage + "." + node.part;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// Busy, and neither on a processor nor in want of one: waits for a disk or the like.
double elsewhere(const NodeLoad& node) { return node.busy - node.cpu - node.core_wait; }

std::string lanes_text(std::uint32_t lanes) {
  return lanes == 1 ? std::string("its lane is") : fmt::format("its {} lanes are", lanes);
}

// A queue that is too small for its ends: number `input` of what `to` reads from.
struct SmallQueue {
  std::size_t to = kNobody;
  std::size_t input = 0;
};

bool wait_for_each_other(const NodeLoad& from, const NodeLoad& to) {
  return from.lanes != 0 && from.blocked >= kQueueWaits && to.starved >= kQueueWaits &&
         from.busy < kQueueBusy && to.busy < kQueueBusy;
}

// Which node limits the output; kNobody: its source waits for data.
class Walk {
 public:
  explicit Walk(std::span<const NodeLoad> nodes) : nodes_(nodes), met_(nodes.size(), false) {}

  void go(std::size_t i) {
    if (met_[i] || nodes_[i].lanes == 0) return;
    met_[i] = true;
    const NodeLoad& node = nodes_[i];
    if (busiest_ == kNobody || node.busy > nodes_[busiest_].busy) busiest_ = i;
    if (node.busy >= kBusy || node.starved <= node.blocked) {
      held_ = true;  // does not wait for its input
      return;
    }
    bool reads = false;
    for (std::size_t input = 0; input < node.reads_from.size(); ++input) {
      const std::size_t from = node.reads_from[input].from;
      // Another input or another reader may be what is waited for.
      if (node.reads_from.size() == 1 && nodes_[from].read_by == 1 && queue_.to == kNobody &&
          wait_for_each_other(nodes_[from], node)) {
        queue_ = {i, input};
      }
      if (met_[from] || nodes_[from].lanes == 0) continue;
      reads = true;
      go(from);
    }
    // A source that waits; what it outputs at times is no reason to look elsewhere.
    if (!reads && node.reads_from.empty()) source_ = i;
  }

  // The sources wait and nobody else holds anything up.
  [[nodiscard]] bool files() const { return source_ != kNobody && !held_; }
  [[nodiscard]] std::size_t source() const { return source_; }
  [[nodiscard]] std::size_t busiest() const { return busiest_; }
  [[nodiscard]] const SmallQueue& queue() const { return queue_; }

 private:
  std::span<const NodeLoad> nodes_;
  std::vector<bool> met_;
  std::size_t busiest_ = kNobody;
  std::size_t source_ = kNobody;
  SmallQueue queue_;
  bool held_ = false;
};

// Nodes whose work each batch of the output needs.
std::vector<std::size_t> needed_for(std::span<const NodeLoad> nodes, std::size_t last) {
  std::vector<std::size_t> needed{last};
  for (std::size_t at = 0; at < needed.size(); ++at) {
    const NodeLoad& node = nodes[needed[at]];
    if (node.redraws) continue;
    for (const auto& [from, records, bytes, record_bytes] : node.reads_from) {
      if (nodes[from].lanes != 0 && std::find(needed.begin(), needed.end(), from) == needed.end()) {
        needed.push_back(from);
      }
    }
  }
  return needed;
}

// How many times as many batches there are with `more` lanes more of node `limit`, and who limits
// then.
struct Gain {
  double factor = 1;
  std::string next;
};
Gain gain_of(std::span<const NodeLoad> nodes, const std::vector<std::size_t>& needed,
             std::size_t limit, std::uint32_t more, const MachineLoad& machine) {
  const NodeLoad& node = nodes[limit];
  Gain gain{static_cast<double>(node.lanes + more) / node.lanes, name_of(node)};
  for (const std::size_t i : needed) {
    if (i == limit || nodes[i].busy <= 0) continue;
    // The share of its time that a lane does not need now.
    const double factor = 1 / std::min(1.0, nodes[i].busy);
    if (factor < gain.factor) gain = {factor, name_of(nodes[i])};
  }
  if (machine.busy > 0) {
    const double room = std::max(machine.idle, kFairShare * machine.cores - machine.busy);
    const double factor = (machine.busy + room) / machine.busy;
    if (factor < gain.factor) gain = {std::max(1.0, factor), "machine"};
  }
  return gain;
}

std::string next_text(const std::string& next) {
  return next == "machine" ? "then the machine has no idle processor"
                           : fmt::format("then '{}' is as slow", next);
}

std::string how_to_scale(const std::string& feed, const NodeLoad& node, std::uint32_t lanes) {
  if (lanes <= node.lanes_max)
    return fmt::format("`ringfeed scale {} {} {}`", feed, node.stage, lanes);
  std::string text = node.more_lanes;
  const std::string number = fmt::to_string(lanes);
  constexpr std::string_view kNumber = "{}";
  for (std::size_t at = 0; (at = text.find(kNumber, at)) != std::string::npos;) {
    text.replace(at, kNumber.size(), number);
  }
  return text;
}

std::string doing(const NodeLoad& node) {
  std::string text =
      fmt::format("{} busy {} of the time", lanes_text(node.lanes), percent(node.busy));
  if (node.busy > 0 && elsewhere(node) > 0.3 * node.busy) {
    text +=
        fmt::format(" (computing {}, the rest waiting for files or similar)", percent(node.cpu));
  }
  return text;
}

// What bounds a queue.
struct Bound {
  std::string_view setting;
  std::string of;  // what has it
  std::uint64_t now = 0;
  std::uint64_t useful = 0;
};

void say_queue(const std::string& stage, const Bound& bound, const std::string& waits, double gain,
               const OutputLoad& output, BottleneckProto& found) {
  found.set_kind(BottleneckProto::QUEUE);
  found.set_stage(stage);
  found.set_setting(std::string(bound.setting));
  found.set_setting_now(bound.now);
  found.set_setting_useful(bound.useful);
  const std::string rate = output.batches_per_s > 0
                               ? fmt::format(" ({:.1f} to {:.1f} batches/s)", output.batches_per_s,
                                             output.batches_per_s * gain)
                               : "";
  found.set_sentence(fmt::format(
      "{}; with more room there would be up to {:.1f} times as much{}: set {}: {} (it is {}) of {}",
      waits, gain, rate, bound.setting, bound.useful, bound.now, bound.of));
}

void say_queue(std::span<const NodeLoad> nodes, const SmallQueue& queue, const OutputLoad& output,
               BottleneckProto& found) {
  const NodeLoad& to = nodes[queue.to];
  const NodeEdge& edge = to.reads_from[queue.input];
  const NodeLoad& from = nodes[edge.from];
  const double gain = 1 / std::max({from.busy, to.busy, 1e-3});
  const bool by_bytes =
      edge.record_bytes > 0 &&
      static_cast<double>(edge.bytes) < static_cast<double>(edge.records) * edge.record_bytes;
  const std::string waits = fmt::format(
      "the queue between '{}' and '{}' is too small: '{}' waits for room in it {} of the time, and "
      "'{}' for records {}",
      name_of(from), name_of(to), name_of(from), percent(from.blocked), name_of(to),
      percent(to.starved));
  Bound bound{by_bytes ? "queue_bytes" : "queue_capacity", fmt::format("stage '{}'", from.stage),
              by_bytes ? edge.bytes : edge.records};
  bound.useful =
      by_bytes ? kQueueGrowth * bound.now : std::max(kQueueUseful, kQueueGrowth * bound.now);
  say_queue(from.stage, bound, waits, gain, output, found);
}

void say_stage(std::span<const NodeLoad> nodes, const std::vector<std::size_t>& needed,
               std::size_t limit, const MachineLoad& machine, const OutputLoad& output,
               BottleneckProto& found) {
  const NodeLoad& node = nodes[limit];
  const double now = output.batches_per_s;
  found.set_kind(BottleneckProto::STAGE);
  const std::string who =
      fmt::format("stage '{}' is the bottleneck: {}", name_of(node), doing(node));
  if (node.more_lanes.empty() && node.lanes_max <= node.lanes) {
    found.set_sentence(
        fmt::format("{}. {}", who,
                    node.if_slow.empty() ? "Its work cannot be shared among lanes" : node.if_slow));
    return;
  }
  const Gain one = gain_of(nodes, needed, limit, 1, machine);
  std::uint32_t more = 1;
  while (node.lanes + more < kLanesMax &&
         gain_of(nodes, needed, limit, more, machine).next == name_of(node)) {
    ++more;
  }
  const Gain best = gain_of(nodes, needed, limit, more, machine);
  found.set_batches_per_s_next(now * one.factor);
  found.set_lanes_useful(node.lanes + more);
  found.set_batches_per_s_useful(now * best.factor);
  found.set_next(best.next);
  if (one.factor < 1 + kWaits) {
    found.set_lanes_useful(node.lanes);
    found.set_batches_per_s_useful(now);
    found.set_sentence(fmt::format(
        "{}; another lane would gain almost nothing: {}", who,
        one.next == "machine" ? "no processor is idle" : fmt::format("'{}' is as slow", one.next)));
    return;
  }
  const std::string rate =
      now > 0 ? fmt::format(" ({:.1f} to {:.1f} batches/s)", now, now * one.factor) : "";
  std::string then;
  if (one.next != name_of(node)) {
    then = ", " + next_text(one.next);
  } else if (best.next != name_of(node)) {
    then = fmt::format(", {} lanes up to {:.1f} times, {}", node.lanes + more, best.factor,
                       next_text(best.next));
  }
  found.set_sentence(fmt::format("{}. Another lane would bring about {:.1f} times as much{}{}: {}",
                                 who, one.factor, rate, then,
                                 how_to_scale(output.feed, node, node.lanes + 1)));
}

// The stage that makes batches waits for free slots.
void say_trainers(std::span<const NodeLoad> nodes, const std::vector<std::size_t>& needed,
                  const MachineLoad& machine, const OutputLoad& output, BottleneckProto& found) {
  const NodeLoad& last = nodes[output.node];
  found.set_kind(BottleneckProto::TRAINERS);
  double busiest = 0;
  std::string slowest;
  for (const std::size_t i : needed) {
    if (nodes[i].busy <= busiest) continue;
    busiest = nodes[i].busy;
    slowest = name_of(nodes[i]);
  }
  double factor = busiest > 0 ? 1 / busiest : 1;
  if (machine.busy > 0 && factor > (machine.busy + machine.idle) / machine.busy) {
    factor = (machine.busy + machine.idle) / machine.busy;
    slowest.clear();
  }
  std::string could;
  if (factor > 1 + kWaits && output.batches_per_s > 0) {
    could = fmt::format("; the feed could deliver up to {:.1f} batches/s instead of {:.1f}, {}",
                        output.batches_per_s * factor, output.batches_per_s,
                        slowest.empty() ? "with the processors that are idle"
                                        : fmt::format("as fast as '{}'", slowest));
  }
  found.set_sentence(
      output.trainers == 0
          ? fmt::format("no trainer takes batches: '{}' waits for a free slot {} of the time",
                        name_of(last), percent(last.blocked))
          : fmt::format("the trainers are the bottleneck{}: '{}' waits for a free slot {} of the "
                        "time{}{}",
                        output.held_up_by.empty() ? std::string()
                                                  : fmt::format(" (group {})", output.held_up_by),
                        name_of(last), percent(last.blocked), could, output.idle));
}

// A stage that works on request waits to be asked.
void say_requests(const NodeLoad& node, const OutputLoad& output, BottleneckProto& found) {
  const std::string waits = fmt::format("'{}' waits {} of the time to be asked for a batch",
                                        name_of(node), percent(node.starved));
  if (output.trainers_wait < kQueueWaits) {
    found.set_kind(BottleneckProto::TRAINERS);
    found.set_sentence(fmt::format("the trainers are the bottleneck: {}", waits));
    return;
  }
  found.set_kind(BottleneckProto::QUEUE);
  found.set_stage(node.stage);
  found.set_sentence(fmt::format(
      "batches are asked for too late: the trainers wait for one {} of the time, and {}: "
      "{}",
      percent(output.trainers_wait), waits, node.on_request));
}

void say_slots(const NodeLoad& last, const OutputLoad& output, BottleneckProto& found) {
  const double gain = 1 / std::max({last.busy, 1 - output.trainers_wait, 1e-3});
  const std::string waits = fmt::format(
      "the slots are too few: the trainers wait for a batch {} of the time, and '{}' for a free "
      "slot {}",
      percent(output.trainers_wait), name_of(last), percent(last.blocked));
  const Bound bound{output.slots_given ? "slots" : "queue_capacity",
                    output.slots_given ? "feed_output" : fmt::format("stage '{}'", last.stage),
                    output.slots, std::max(kSlotsUseful, kQueueGrowth * output.slots)};
  say_queue(last.stage, bound, waits, gain, output, found);
}

}  // namespace

void find_bottleneck(std::span<const NodeLoad> nodes, const MachineLoad& machine,
                     const OutputLoad& output, BottleneckProto& found) {
  if (!output.alias.empty()) found.set_output(output.alias);
  found.set_batches_per_s(output.batches_per_s);
  found.set_cores(machine.cores);
  found.set_cores_busy(machine.busy);
  found.set_cores_idle(machine.idle);
  for (const NodeLoad& node : nodes) {
    LaneShareProto& share = *found.add_shares();
    share.set_name(name_of(node));
    share.set_lanes(node.lanes);
    share.set_busy(node.busy);
    share.set_starved(node.starved);
    share.set_blocked(node.blocked);
    share.set_cpu(node.cpu);
    share.set_core_wait(node.core_wait);
  }
  const NodeLoad& last = nodes[output.node];
  const double seen = last.busy + last.starved + last.blocked;
  if (last.lanes == 0 || seen <= 0) {
    found.set_kind(BottleneckProto::UNKNOWN);
    found.set_sentence(last.lanes == 0 ? "no lane that makes batches is working"
                                       : "nothing has been measured yet: ask again in a second");
    return;
  }
  const std::vector<std::size_t> needed = needed_for(nodes, output.node);
  const auto loses =
      std::ranges::max_element(needed, {}, [&](std::size_t i) { return nodes[i].left_out; });
  if (nodes[*loses].left_out > kLeavesOut) {
    const NodeLoad& node = nodes[*loses];
    found.set_kind(BottleneckProto::LEAVES_OUT);
    found.set_stage(node.stage);
    found.set_left_out(node.left_out);
    found.set_sentence(fmt::format("stage '{}' leaves out {} of what it gets: {}", node.stage,
                                   percent(node.left_out), node.what_left_out));
    return;
  }
  if (output.trainers != 0 && output.trainers_wait >= kQueueWaits && last.blocked >= kQueueWaits &&
      last.busy < kQueueBusy && output.slots != 0) {
    return say_slots(last, output, found);
  }
  if (last.busy < kBusy && last.blocked > last.starved && last.blocked > kWaits) {
    return say_trainers(nodes, needed, machine, output, found);
  }
  const auto silent =
      std::ranges::find_if(needed, [&](std::size_t i) { return nodes[i].gives_nothing; });
  if (silent != needed.end()) {
    const NodeLoad& node = nodes[*silent];
    found.set_kind(BottleneckProto::GIVES_NOTHING);
    found.set_stage(node.stage);
    found.set_sentence(
        fmt::format("stage '{}' {}", name_of(node),
                    node.reason.empty() ? "outputs nothing of what it has" : node.reason));
    return;
  }
  Walk walk(nodes);
  walk.go(output.node);
  if (walk.files()) {
    const NodeLoad& source = nodes[walk.source()];
    if (!source.on_request.empty()) return say_requests(source, output, found);
    found.set_kind(BottleneckProto::FILES);
    found.set_stage(source.stage);
    found.set_sentence(
        fmt::format("there are no new files: '{}' has nothing to output {} of the time, and the "
                    "stages after it wait",
                    name_of(source), percent(source.starved)));
    return;
  }
  if (walk.queue().to != kNobody) return say_queue(nodes, walk.queue(), output, found);
  const std::size_t limit = walk.busiest();
  const NodeLoad& node = nodes[limit];
  found.set_stage(node.stage);
  if (!node.part.empty()) found.set_part(node.part);
  found.set_lanes(node.lanes);
  found.set_lanes_max(node.lanes_max);
  if (node.busy > 0 && node.core_wait > kCoreWait * node.busy && node.core_wait > elsewhere(node) &&
      machine.idle < kIdleShare * machine.cores) {
    found.set_kind(BottleneckProto::MACHINE);
    found.set_sentence(
        fmt::format("the machine is the bottleneck: none of its {:g} processors is idle, and the "
                    "feed has {:.1f} of them; the lanes of '{}', the slowest stage, are ready but "
                    "without a processor {} of the time",
                    machine.cores, machine.busy, name_of(node), percent(node.core_wait)));
    return;
  }
  say_stage(nodes, needed, limit, machine, output, found);
}

namespace {

NodeEdge edge_of(const FeedFacts& facts, const layout::InputPlan& input, const Look& begin,
                 const Look& end) {
  NodeEdge edge{.from = input.from_node};
  if (input.rings.empty()) return edge;
  const std::uint32_t ring = input.rings.front();
  edge.records = facts.layout.rings[ring].geometry.records_max;
  edge.bytes = facts.layout.rings[ring].geometry.capacity_bytes;
  for (std::size_t port = 0; port < facts.shape.ports.size(); ++port) {
    if (std::ranges::find(facts.shape.ports[port].rings, ring) ==
        facts.shape.ports[port].rings.end()) {
      continue;
    }
    const std::uint64_t put = end.ports[port].put - begin.ports[port].put;
    const std::uint64_t bytes = end.ports[port].put_bytes - begin.ports[port].put_bytes;
    if (put != 0) edge.record_bytes = static_cast<double>(bytes) / static_cast<double>(put);
  }
  return edge;
}

}  // namespace

std::vector<NodeLoad> node_loads(const FeedFacts& facts, const Look& begin, const Look& end) {
  std::vector<NodeLoad> loads;
  const auto window = static_cast<double>(end.time_ns - begin.time_ns);
  for (const layout::NodeLayout& node : facts.layout.nodes) {
    NodeLoad& load = loads.emplace_back();
    const StagePlan& plan = facts.plan.stages(static_cast<int>(node.stage));
    const StageConfig& config = facts.config.stages(static_cast<int>(node.stage));
    load.stage = config.name();
    load.part = node.name;
    load.lanes_max = node.scales ? node.lanes_max : 0;
    const auto planned = std::ranges::find(plan.nodes(), node.name, &NodePlan::name);
    load.redraws = planned != plan.nodes().end() && planned->redraws();
    if (planned != plan.nodes().end()) {
      load.more_lanes = planned->more_lanes();
      load.if_slow = planned->if_slow();
      load.on_request = planned->on_request();
    }
    // Of a stage of several parts it is the one without a name that decides what is given.
    if (node.name.empty()) {
      const auto counters = facts.counters.of_stage(node.stage);
      const auto nothing = counters.find("gives_nothing");
      load.gives_nothing = nothing != counters.end() && nothing->second < end.counters.size() &&
                           end.counters[nothing->second] != 0;
    }
    for (const layout::InputPlan& input : facts.layout.lanes[node.first_lane].inputs) {
      load.reads_from.push_back(edge_of(facts, input, begin, end));
    }
    for (std::uint32_t i = 0; i < node.lanes_max; ++i) {
      const LaneLook& was = begin.lanes[node.first_lane + i];
      const LaneLook& is = end.lanes[node.first_lane + i];
      if (!is.at_work || window <= 0) continue;
      ++load.lanes;
      const auto share = [&](std::uint64_t LaneLook::*what) {
        return std::clamp(static_cast<double>(is.*what - was.*what) / window, 0.0, 1.0);
      };
      const double starved = share(&LaneLook::starved_ns);
      const double blocked = share(&LaneLook::blocked_ns);
      double busy = std::min(share(&LaneLook::busy_ns), std::max(0.0, 1 - starved - blocked));
      // A step is counted when it is over: one that still goes on takes what is missing.
      if (is.awake) busy = std::max(busy, 1 - starved - blocked);
      load.busy += std::max(0.0, busy);
      load.starved += starved;
      load.blocked += blocked;
      load.cpu += share(&LaneLook::cpu_ns);
      load.core_wait += share(&LaneLook::core_wait_ns);
    }
    if (load.lanes == 0) continue;
    for (double* const sum :
         {&load.busy, &load.starved, &load.blocked, &load.cpu, &load.core_wait}) {
      *sum /= load.lanes;
    }
  }
  for (const NodeLoad& load : loads) {
    for (const NodeEdge& edge : load.reads_from) ++loads[edge.from].read_by;
  }
  return loads;
}

MachineLoad machine_load(const Look& begin, const Look& end, double cores) {
  MachineLoad machine;
  machine.cores = cores;
  const double window = static_cast<double>(end.time_ns - begin.time_ns) / 1e9;
  if (window <= 0) return machine;
  for (std::size_t i = 0; i < end.lanes.size(); ++i) {
    machine.busy += static_cast<double>(end.lanes[i].cpu_ns - begin.lanes[i].cpu_ns) / 1e9 / window;
  }
  // Others may have idle processors that the feed may not use.
  machine.idle =
      std::clamp((end.idle_s - begin.idle_s) / window, 0.0, std::max(0.0, cores - machine.busy));
  return machine;
}

}  // namespace ringfeed::metrics
