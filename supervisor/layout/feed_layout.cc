#include "supervisor/layout/feed_layout.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/arena.h"
#include "ringfeed/shm/node_lanes.h"
#include "ringfeed/shm/stamps.h"
#include "supervisor/config/check.h"
#include "supervisor/config/fields.h"

namespace ringfeed::layout {
namespace {

// An output port of a node, found by who reads it.
struct Source {
  int stage = 0;
  const NodePlan* node = nullptr;
  const NodeOutput* output = nullptr;
  bool back = false;
};

// What makes the lasting memory of a stage smaller: its fields that are called a size.
std::string arena_lever(const StageConfig& stage) {
  std::string fields;
  for (const google::protobuf::FieldDescriptor* kind : config::kinds_set(stage)) {
    for (const std::string& name : config::field_names(*kind->message_type())) {
      if (name.find("_size") == std::string::npos) continue;
      fields += (fields.empty() ? "" : " or ") + name;
    }
  }
  return fmt::format("{} of stage '{}'", fields.empty() ? "threads" : fields, stage.name());
}

shm::Overflow overflow_of(OverflowBehavior behavior) {
  switch (behavior) {
    case BLOCK:
      return shm::Overflow::kBlock;
    case DROP_NEW:
      return shm::Overflow::kDropNew;
    case KEEP_NEWEST:
      return shm::Overflow::kKeepNewest;
  }
  return shm::Overflow::kBlock;
}

class Builder {
 public:
  Builder(const DataLoaderConfig& config, const PipelinePlan& plan, const config::Wiring& wiring)
      : config_(config), plan_(plan), wiring_(wiring) {
    layout_.feed = config.feed();
    layout_.first_batch = config.from_batch();
    layout_.ordered = ordered_dispatch(config);
  }

  FeedLayout build(std::span<const config::StageGroup> groups) {
    add_segment(shm::SegmentKind::kControl, "control", 0, "control", "");
    number_lanes(groups);
    SegmentPlan& control = layout_.segments.front();
    const std::uint64_t lanes = layout_.lanes.size();
    control.spec.bytes = shm::control_bytes_with_accounts(lanes, wiring_.outputs.size());
    control.spec.geometry[0] = static_cast<std::uint32_t>(lanes);
    control.spec.geometry[1] =
        static_cast<std::uint32_t>(shm::bells_offset(lanes) / shm::kPageBytes);
    for (int stage = 0; stage < plan_.stages_size(); ++stage) {
      for (const NodePlan& node : plan_.stages(stage).nodes()) connect_inputs(stage, node);
    }
    for (LanePlan& lane : layout_.lanes) finish_lane(lane);
    for (const config::BatchesPort& from : wiring_.outputs) add_output(from);
    for (const LanePlan& lane : layout_.lanes) make_room_for_stamps(lane);
    layout_.locks_segment =
        add_segment(shm::SegmentKind::kLocks, "locks", shm::kPageBytes, "control", "");
    return std::move(layout_);
  }

 private:
  std::uint32_t add_segment(shm::SegmentKind kind, const std::string& name, std::uint64_t bytes,
                            std::string part, std::string lever) {
    SegmentPlan segment;
    segment.id = static_cast<std::uint32_t>(layout_.segments.size());
    segment.spec.name = fmt::format("{}/{}", layout_.feed, name);
    segment.spec.kind = kind;
    segment.spec.bytes = bytes;
    segment.part = std::move(part);
    segment.lever = std::move(lever);
    layout_.segments.push_back(std::move(segment));
    return layout_.segments.back().id;
  }

  void number_lanes(std::span<const config::StageGroup> groups) {
    std::vector<std::uint32_t> group_of(static_cast<std::size_t>(plan_.stages_size()), 0);
    for (const config::StageGroup& group : groups) {
      bool shared = false;  // by at least one lane
      for (const int stage : group.stages) {
        group_of[static_cast<std::size_t>(stage)] =
            static_cast<std::uint32_t>(layout_.groups.size());
        for (const NodePlan& node : plan_.stages(stage).nodes()) {
          shared = shared || !node.process_per_lane();
        }
      }
      if (shared) layout_.groups.push_back({group.name, {}, {}});
    }
    for (int stage = 0; stage < plan_.stages_size(); ++stage) {
      for (const NodePlan& node : plan_.stages(stage).nodes()) {
        if (node.lanes() == 0) {
          throw Error(ErrorCode::kIncompatible,
                      fmt::format("the worker plans a part '{}' of stage '{}' without lanes: use "
                                  "the same version of supervisor and worker",
                                  node.name(), config_.stages(stage).name()));
        }
        if (node.has_parent_socket() && !node.process_per_lane()) {
          throw Error(
              ErrorCode::kIncompatible,
              fmt::format("the worker plans a warm parent at {} for stage '{}', whose lanes "
                          "have no processes of their own: use the same version of "
                          "supervisor and worker",
                          node.parent_socket(), config_.stages(stage).name()));
        }
        if (!node.process_per_lane()) {
          choose_program(group_of[static_cast<std::size_t>(stage)], node, stage);
        }
        numbers_.emplace_back(&node, static_cast<std::uint32_t>(layout_.nodes.size()));
        NodeLayout laid_out;
        laid_out.stage = static_cast<std::uint32_t>(stage);
        laid_out.name = node.name();
        laid_out.first_lane = static_cast<std::uint32_t>(layout_.lanes.size());
        laid_out.lanes = node.lanes();
        laid_out.lanes_max = std::max(node.lanes(), node.lanes_max());
        laid_out.scales = node.lanes_max() != 0;
        laid_out.begins_anywhere = node.begins_anywhere();
        if (layout_.nodes.size() == shm::kNodesMax || laid_out.lanes_max > shm::kNodeLanesMax) {
          throw Error(
              ErrorCode::kConfiguration,
              fmt::format("stage '{}': a feed has at most {} parts of at most {} lanes: "
                          "use fewer stages, or lower threads",
                          config_.stages(stage).name(), shm::kNodesMax, shm::kNodeLanesMax));
        }
        for (std::uint32_t number = 0; number < laid_out.lanes_max; ++number) {
          LanePlan lane;
          lane.index = static_cast<std::uint32_t>(layout_.lanes.size());
          lane.stage = static_cast<std::uint32_t>(stage);
          lane.stage_name = config_.stages(stage).name();
          lane.node = node.name();
          lane.number = number;
          lane.node_index = numbers_.back().second;
          lane.group = group_of[static_cast<std::size_t>(stage)];
          if (node.process_per_lane()) {
            lane.group = static_cast<std::uint32_t>(layout_.groups.size());
            layout_.groups.push_back({lane.name(),
                                      {},
                                      node.program(),
                                      node.warm_parent() ? lane.stage_name : "",
                                      node.parent_socket(),
                                      true});
          }
          lane.arena_segment = add_arena(stage, node, lane.name());
          for (const NodeOutput& output : node.outputs()) lane.outputs.push_back(output_of(output));
          layout_.groups[lane.group].lanes.push_back(lane.index);
          layout_.lanes.push_back(std::move(lane));
        }
        if (node.private_bytes() != 0) {
          const std::string& name = config_.stages(stage).name();
          layout_.private_memory.push_back(
              {"store of " + name, "store_bytes of " + name, node.private_bytes()});
        }
        layout_.nodes.push_back(std::move(laid_out));
      }
    }
  }

  // One stage that needs another program takes its whole group along, unless that lacks one of
  // them.
  void choose_program(std::uint32_t number, const NodePlan& node, int stage) {
    GroupPlan& group = layout_.groups[number];
    if (node.no_other_program()) bound_.emplace(number, config_.stages(stage).name());
    if (!node.program().empty()) led_.emplace(number, config_.stages(stage).name());
    if (bound_.contains(number) && led_.contains(number)) {
      throw Error(
          ErrorCode::kConfiguration,
          fmt::format(
              "stage group '{}' has stage '{}', which {} runs, and stage '{}' of a plug-in, "
              "which only the plug-in can run: put them into different groups",
              group.name, led_.at(number), node.program().empty() ? group.program : node.program(),
              bound_.at(number)));
    }
    if (node.program().empty() || node.program() == group.program) return;
    if (!group.program.empty()) {
      throw Error(ErrorCode::kConfiguration,
                  fmt::format("stage group '{}' has stages for {} and for {}: put them into "
                              "different groups",
                              group.name, group.program, node.program()));
    }
    group.program = node.program();
  }

  std::uint32_t add_arena(int stage, const NodePlan& node, const std::string& lane) {
    const std::uint64_t bytes = shm::arena_bytes(node.arena_bytes());
    const std::uint32_t id =
        add_segment(shm::SegmentKind::kArena, "arena " + lane, bytes,
                    "arena of " + config_.stages(stage).name(), arena_lever(config_.stages(stage)));
    SegmentPlan& segment = layout_.segments.back();
    segment.spec.geometry[0] = shm::kJournalEntries;
    segment.spec.geometry[1] = node.state_version();
    if (node.arena_bytes_max() > node.arena_bytes()) {
      segment.spec.growable = true;
      segment.bytes_max = shm::arena_bytes(node.arena_bytes_max());
    }
    return id;
  }

  static OutputPlan output_of(const NodeOutput& output) {
    OutputPlan out;
    out.port = output.port();
    out.capacity_records = output.queue_capacity();
    out.overflow = overflow_of(output.overflow());
    return out;
  }

  [[nodiscard]] std::uint32_t number_of(const NodePlan& node) const {
    const auto found = std::find_if(numbers_.begin(), numbers_.end(),
                                    [&](const auto& entry) { return entry.first == &node; });
    return found->second;
  }

  // Who writes what this input reads.
  [[nodiscard]] Source source_of(int stage, const NodeInput& input) const {
    if (input.from().empty()) {
      for (const config::Edge& edge : wiring_.edges) {
        if (edge.to_stage != stage || edge.to_port != input.port()) continue;
        for (const NodePlan& node : plan_.stages(edge.from_stage).nodes()) {
          for (const NodeOutput& output : node.outputs()) {
            if (output.exported() && output.port() == edge.from_port) {
              return {edge.from_stage, &node, &output, edge.back};
            }
          }
        }
      }
    } else {
      const std::size_t dot = input.from().find('.');
      const std::string name = input.from().substr(0, dot);
      const std::string port = dot == std::string::npos ? "output" : input.from().substr(dot + 1);
      for (const NodePlan& node : plan_.stages(stage).nodes()) {
        if (node.name() != name) continue;
        for (const NodeOutput& output : node.outputs()) {
          if (output.port() == port) return {stage, &node, &output};
        }
      }
    }
    throw Error(ErrorCode::kIncompatible,
                fmt::format("nothing writes to '{2}', which port '{0}' of stage '{1}' reads: use "
                            "the same version of supervisor and worker",
                            input.port(), config_.stages(stage).name(), input.from()));
  }

  void connect_inputs(int stage, const NodePlan& node) {
    for (const NodeInput& input : node.inputs()) {
      const Source source = source_of(stage, input);
      const std::uint32_t from_node = number_of(*source.node);
      const std::uint32_t to_node = number_of(node);
      const std::uint32_t from = layout_.nodes[from_node].first_lane;
      const std::uint32_t to = layout_.nodes[to_node].first_lane;
      const std::uint32_t producers = layout_.nodes[from_node].lanes_max;
      const std::uint32_t consumers = layout_.nodes[to_node].lanes_max;
      for (std::uint32_t c = 0; c < consumers; ++c) {
        InputPlan in;
        in.port = input.port();
        in.from_node = from_node;
        in.block = input.block();
        in.back = source.back;
        for (std::uint32_t p = 0; p < producers; ++p) {
          in.rings.push_back(add_ring(from + p, to + c, source));
        }
        layout_.lanes[to + c].inputs.push_back(std::move(in));
      }
      for (std::uint32_t p = 0; p < producers; ++p) {
        LanePlan& lane = layout_.lanes[from + p];
        OutputPlan& output =
            *std::find_if(lane.outputs.begin(), lane.outputs.end(),
                          [&](const OutputPlan& out) { return out.port == source.output->port(); });
        if (!output.rings.empty()) {
          throw Error(ErrorCode::kIncompatible,
                      fmt::format("port '{}' of {} has two readers: use the same version of "
                                  "supervisor and worker",
                                  output.port, lane.name()));
        }
        output.block = input.block();
        output.to_node = to_node;
        for (std::uint32_t c = 0; c < consumers; ++c) {
          output.rings.push_back(layout_.lanes[to + c].inputs.back().rings[p]);
        }
      }
    }
  }

  std::uint32_t add_ring(std::uint32_t from, std::uint32_t to, const Source& source) {
    const NodeOutput& output = *source.output;
    RingPlan ring;
    ring.from_lane = from;
    ring.to_lane = to;
    ring.geometry.capacity_bytes = shm::align_up(
        std::max<std::uint64_t>(output.queue_bytes(), shm::kPageBytes), shm::kPageBytes);
    ring.geometry.records_max = std::clamp<std::uint64_t>(
        output.queue_capacity(), 1, std::numeric_limits<std::uint32_t>::max());
    ring.geometry.overflow = overflow_of(output.overflow());
    const std::string& from_name = config_.stages(source.stage).name();
    const LanePlan& consumer = layout_.lanes[to];
    ring.segment = add_segment(
        shm::SegmentKind::kRing,
        fmt::format("ring {}>{}", layout_.lanes[from].name(), consumer.name()),
        shm::kRingDataOffset + ring.geometry.capacity_bytes,
        fmt::format("ring {}>{}",
                    from_name + (output.exported() || source.node->name().empty()
                                     ? std::string()
                                     : "." + source.node->name()),
                    consumer.stage_name + (consumer.node.empty() ? "" : "." + consumer.node)),
        fmt::format("queue_bytes of stage '{}'", from_name));
    SegmentPlan& segment = layout_.segments.back();
    segment.spec.geometry[0] = static_cast<std::uint32_t>(ring.geometry.records_max);
    segment.spec.geometry[1] = static_cast<std::uint32_t>(ring.geometry.overflow);
    layout_.rings.push_back(ring);
    return static_cast<std::uint32_t>(layout_.rings.size() - 1);
  }

  // Gives the lane the segment of its head lines and numbers them.
  void finish_lane(LanePlan& lane) {
    std::uint32_t lines = 0;
    for (const InputPlan& input : lane.inputs) {
      lines += static_cast<std::uint32_t>(input.rings.size());
    }
    lane.heads_segment =
        add_segment(shm::SegmentKind::kHeads, "heads " + lane.name(), 0, "control", "");
    layout_.segments.back().spec.geometry[0] = lines;
    std::uint32_t next = 0;
    for (const InputPlan& input : lane.inputs) {
      for (const std::uint32_t ring : input.rings) {
        layout_.rings[ring].heads_segment = lane.heads_segment;
        layout_.rings[ring].head_index = next++;
      }
    }
    std::size_t output_rings = 0;
    for (const OutputPlan& output : lane.outputs) output_rings += output.rings.size();
    if (output_rings > shm::kOutputRingsMax) {
      throw Error(ErrorCode::kConfiguration,
                  fmt::format("lane {} would write {} rings, but at most {} are possible: lower "
                              "threads of the stages that read from '{}'",
                              lane.name(), output_rings, shm::kOutputRingsMax, lane.stage_name));
    }
  }

  // Behind the head lines, see stamps.h.
  void make_room_for_stamps(const LanePlan& lane) {
    const SegmentPlan& arena = layout_.segments[lane.arena_segment];
    const bool writes_batches =
        std::any_of(lane.outputs.begin(), lane.outputs.end(),
                    [](const OutputPlan& output) { return output.feed.has_value(); });
    shm::SegmentSpec& heads = layout_.segments[lane.heads_segment].spec;
    heads.geometry[1] =
        static_cast<std::uint32_t>(shm::page_stamps(arena.spec.bytes, arena.bytes_max));
    // For as many as there can be: another number of slots is no other shape of this segment.
    heads.geometry[2] = writes_batches ? shm::kDescriptorsMax : 0;
    heads.bytes = shm::heads_bytes(heads.geometry[0], heads.geometry[1], heads.geometry[2]);
  }

  void add_output(const config::BatchesPort& from) {
    const StagePlan& stage = plan_.stages(from.stage);
    const StageConfig& configured = config_.stages(from.stage);
    OutputLayout out;
    out.index = static_cast<std::uint32_t>(layout_.outputs.size());
    out.alias = output_settings(config_, from.settings).alias();
    out.stage = static_cast<std::uint32_t>(from.stage);
    out.settings = from.settings;
    out.keep_newest = from.keep_newest;
    out.checksum = output_settings(config_, from.settings).checksum();
    for (LanePlan& lane : layout_.lanes) {
      if (lane.stage != out.stage) continue;
      for (const NodePlan& node : stage.nodes()) {
        if (node.name() != lane.node) continue;
        for (const NodeOutput& output : node.outputs()) {
          if (!output.exported() || output.port() != from.port) continue;
          for (OutputPlan& port : lane.outputs) {
            if (port.port == output.port()) port.feed = out.index;
          }
          out.producing_lanes.push_back(lane.index);
        }
      }
    }
    const auto lanes = static_cast<std::uint32_t>(out.producing_lanes.size());
    if (lanes == 0 || lanes > shm::kDescriptorsMax || stage.batch().slot_bytes() == 0) {
      throw Error(ErrorCode::kIncompatible,
                  fmt::format("stage '{}' is planned with {} lanes that write batches of {} bytes: "
                              "use the same version of supervisor and worker",
                              configured.name(), lanes, stage.batch().slot_bytes()));
    }
    shm::FeedGeometry& feed = out.geometry;
    feed.lanes = lanes;
    feed.descriptors = shm::descriptor_count(lanes);
    const std::uint32_t wanted = config::slot_count(config_, from);
    feed.slots = std::min((wanted + lanes - 1) / lanes * lanes, feed.descriptors);
    feed.slot_bytes = shm::align_up(stage.batch().slot_bytes(), shm::kPageBytes);
    feed.ordered = layout_.ordered;
    out.slot_bytes = stage.batch().slot_bytes();
    out.rows_max = stage.batch().rows_max();

    // The segments of the output without an alias have no further name.
    const std::string suffix = out.alias.empty() ? "" : " " + out.alias;
    out.feed_control_segment =
        add_segment(shm::SegmentKind::kFeedControl, "feed control" + suffix,
                    shm::feed_control_bytes(lanes, feed.descriptors), "control", "");
    auto& geometry = layout_.segments.back().spec.geometry;
    geometry[0] = lanes;
    geometry[1] = feed.slots;
    geometry[2] = feed.descriptors;
    geometry[3] = static_cast<std::uint32_t>(feed.slot_bytes);
    geometry[4] = static_cast<std::uint32_t>(feed.slot_bytes >> 32);
    geometry[5] = feed.ordered ? 1 : 0;
    out.payload_segment = add_segment(
        shm::SegmentKind::kPayload, "payload" + suffix, shm::payload_bytes(feed),
        fmt::format("batches{}, {} slots", out.shown(), feed.slots),
        fmt::format("feed_output.slots{}, or {}", out.shown(), arena_lever(configured)));
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      out.group_segments[g] =
          add_segment(shm::SegmentKind::kGroup, fmt::format("group {}{}", g, suffix),
                      shm::kGroupSegmentBytes, "control", "");
    }
    layout_.outputs.push_back(std::move(out));
  }

  const DataLoaderConfig& config_;
  const PipelinePlan& plan_;
  const config::Wiring& wiring_;
  FeedLayout layout_;
  std::vector<std::pair<const NodePlan*, std::uint32_t>> numbers_;  // in FeedLayout::nodes
  // By group: the first stage that needs a program beside the worker, and the first that the worker
  // alone can run.
  std::map<std::uint32_t, std::string> led_;
  std::map<std::uint32_t, std::string> bound_;
};

}  // namespace

std::string LanePlan::name() const {
  return node.empty() ? fmt::format("{}.{}", stage_name, number)
                      : fmt::format("{}.{}.{}", stage_name, node, number);
}

std::string OutputLayout::shown() const {
  return alias.empty() ? std::string() : fmt::format(" of output '{}'", alias);
}

const OutputLayout* FeedLayout::output_of(const LanePlan& lane) const {
  for (const OutputPlan& output : lane.outputs) {
    if (output.feed) return &outputs[*output.feed];
  }
  return nullptr;
}

FeedLayout lay_out(const DataLoaderConfig& config, const PipelinePlan& plan,
                   const config::Wiring& wiring, std::span<const config::StageGroup> groups) {
  return Builder(config, plan, wiring).build(groups);
}

FeedLayout only_lanes(FeedLayout layout, std::span<const std::uint32_t> lanes) {
  std::vector<bool> kept(layout.lanes.size(), false);
  for (const std::uint32_t lane : lanes) kept[lane] = true;
  std::vector<GroupPlan> groups;
  for (GroupPlan& group : layout.groups) {
    std::erase_if(group.lanes, [&](std::uint32_t lane) { return !kept[lane]; });
    if (group.lanes.empty()) continue;
    for (const std::uint32_t lane : group.lanes) {
      layout.lanes[lane].group = static_cast<std::uint32_t>(groups.size());
    }
    groups.push_back(std::move(group));
  }
  layout.groups = std::move(groups);
  layout.private_memory.clear();
  std::vector<bool> needed(layout.segments.size(), false);
  needed[0] = true;
  const auto need_rings = [&](const std::vector<std::uint32_t>& rings) {
    for (const std::uint32_t ring : rings) {
      needed[layout.rings[ring].segment] = needed[layout.rings[ring].heads_segment] = true;
    }
  };
  for (const std::uint32_t index : lanes) {
    const LanePlan& lane = layout.lanes[index];
    needed[lane.arena_segment] = needed[lane.heads_segment] = true;
    for (const InputPlan& input : lane.inputs) need_rings(input.rings);
    for (const OutputPlan& output : lane.outputs) {
      need_rings(output.rings);
      if (!output.feed) continue;
      OutputLayout& out = layout.outputs[*output.feed];
      out.geometry.slots = out.geometry.lanes;
      SegmentPlan& control = layout.segments[out.feed_control_segment];
      control.spec.geometry[1] = out.geometry.slots;
      SegmentPlan& payload = layout.segments[out.payload_segment];
      payload.spec.bytes = shm::payload_bytes(out.geometry);
      payload.part = fmt::format("batches{}, {} slots", out.shown(), out.geometry.slots);
      needed[control.id] = needed[payload.id] = true;
      for (const std::uint32_t segment : out.group_segments) needed[segment] = true;
    }
  }
  for (SegmentPlan& segment : layout.segments) {
    if (needed[segment.id]) continue;
    segment.spec.bytes = shm::kPageBytes;
    segment.spec.growable = false;
    segment.bytes_max = 0;
    segment.part = "control";
  }
  return layout;
}

FeedLayout only_lane(FeedLayout layout, std::uint32_t index) {
  FeedLayout alone = only_lanes(std::move(layout), std::span(&index, 1));
  alone.groups[0].name = alone.lanes[index].name();
  return alone;
}

}  // namespace ringfeed::layout
