#include "supervisor/layout/worker_setup.h"

#include <algorithm>
#include <map>

#include "proto/worker.pb.h"

namespace ringfeed::layout {
namespace {

OverflowBehavior behavior_of(shm::Overflow overflow) {
  switch (overflow) {
    case shm::Overflow::kBlock:
      return BLOCK;
    case shm::Overflow::kDropNew:
      return DROP_NEW;
    case shm::Overflow::kKeepNewest:
      return KEEP_NEWEST;
  }
  return BLOCK;
}

class Filler {
 public:
  Filler(const FeedMemory& memory, WorkerSetup& setup) : layout_(memory.layout()), setup_(setup) {}

  void lane(const LanePlan& plan) {
    LaneSetup& lane = *setup_.add_lanes();
    lane.set_index(plan.index);
    lane.set_stage_index(plan.stage);
    lane.set_stage(plan.stage_name);
    lane.set_node(plan.node);
    lane.set_number(plan.number);
    lane.set_lanes(layout_.nodes[plan.node_index].lanes);
    lane.set_node_index(plan.node_index);
    lane.set_arena_segment(plan.arena_segment);
    lane.set_heads_segment(plan.heads_segment);
    need(plan.arena_segment, true);
    need(plan.heads_segment, true);
    for (const InputPlan& input : plan.inputs) {
      LaneInput& out = *lane.add_inputs();
      out.set_port(input.port);
      out.set_block(input.block);
      out.set_peer_node(input.from_node);
      if (layout_.nodes[input.from_node].begins_anywhere) {
        out.set_first_unit(layout_.first_batch - 1);
      }
      for (const std::uint32_t ring : input.rings) {
        ring_end(layout_.rings[ring], layout_.rings[ring].from_lane, *out.add_rings());
        need(layout_.rings[ring].segment, false);
      }
    }
    for (const OutputPlan& output : plan.outputs) {
      LaneOutput& out = *lane.add_outputs();
      out.set_port(output.port);
      out.set_capacity_records(output.capacity_records);
      out.set_overflow(behavior_of(output.overflow));
      out.set_block(output.block);
      if (output.feed) {
        out.set_feed(feed(*output.feed));
      } else {
        out.set_peer_node(output.to_node);
      }
      if (layout_.nodes[plan.node_index].begins_anywhere) {
        out.set_first_unit(layout_.first_batch - 1);
      }
      for (const std::uint32_t ring : output.rings) {
        ring_end(layout_.rings[ring], layout_.rings[ring].to_lane, *out.add_rings());
        need(layout_.rings[ring].segment, true);
        need(layout_.rings[ring].heads_segment, false);
      }
    }
  }

  // 1 + the place of the output in the setup, where it is put when the first lane writes to it.
  std::uint32_t feed(std::uint32_t index) {
    if (const auto known = outputs_.find(index); known != outputs_.end()) return known->second;
    const OutputLayout& output = layout_.outputs[index];
    FeedSetup& feed = *setup_.add_outputs();
    feed.set_feed_control_segment(output.feed_control_segment);
    feed.set_payload_segment(output.payload_segment);
    need(output.feed_control_segment, true);
    need(output.payload_segment, true);
    for (const std::uint32_t segment : output.group_segments) {
      feed.add_group_segments(segment);
      need(segment, true);
    }
    feed.set_slots_per_lane(output.geometry.slots / output.geometry.lanes);
    feed.set_descriptors(output.geometry.descriptors);
    feed.set_slot_bytes(output.slot_bytes);
    feed.set_slot_stride(output.geometry.slot_bytes);
    feed.set_checksum(output.checksum);
    return outputs_[index] = static_cast<std::uint32_t>(setup_.outputs_size());
  }

  std::vector<std::uint32_t> segments() {
    need(0, true);
    need(layout_.locks_segment, false);
    std::vector<std::uint32_t> ids;
    for (const auto& [id, writable] : needed_) {
      const SegmentPlan& plan = layout_.segments[id];
      ids.push_back(id);
      SegmentSetup& segment = *setup_.add_segments();
      segment.set_id(id);
      segment.set_kind(static_cast<std::uint32_t>(plan.spec.kind));
      segment.set_bytes(shm::align_up(plan.spec.bytes, shm::kPageBytes));
      segment.set_bytes_max(plan.bytes_max);
      segment.set_fd_index(static_cast<std::uint32_t>(ids.size()));
      segment.set_writable(writable);
    }
    return ids;
  }

 private:
  static void ring_end(const RingPlan& ring, std::uint32_t peer, RingEnd& end) {
    end.set_ring_segment(ring.segment);
    end.set_heads_segment(ring.heads_segment);
    end.set_head_index(ring.head_index);
    end.set_peer_lane(peer);
  }
  // Writable wins: both ends of a ring may be in one process.
  void need(std::uint32_t segment, bool writable) {
    bool& entry = needed_[segment];
    entry = entry || writable;
  }

  const FeedLayout& layout_;
  WorkerSetup& setup_;
  std::map<std::uint32_t, bool> needed_;            // segment: writable
  std::map<std::uint32_t, std::uint32_t> outputs_;  // by number: see feed()
};

}  // namespace

GroupSetup fill_setup(const FeedMemory& memory, std::uint32_t group, const SetupFacts& facts,
                      WorkerSetup& setup) {
  const FeedLayout& layout = memory.layout();
  const shm::FeedId& id = memory.identity().feed_id;
  setup.set_feed(layout.feed);
  setup.set_feed_id(id.data(), id.size());
  setup.set_config(facts.config_bytes);
  setup.set_group(layout.groups[group].name);
  setup.set_group_index(group);
  setup.set_seed(facts.seed);
  setup.set_dispatch(facts.ordered ? FeedOutputConfig::ORDERED : FeedOutputConfig::RELAXED);
  setup.set_supervisor_pid(facts.supervisor_pid);
  setup.set_dead_letters(facts.dead_letters);
  setup.set_socket(facts.socket);
  Filler filler(memory, setup);
  for (const std::uint32_t lane : layout.groups[group].lanes) filler.lane(layout.lanes[lane]);
  GroupSetup out{filler.segments()};
  for (const SegmentPlan& segment : layout.segments) {
    if (std::find(out.segments.begin(), out.segments.end(), segment.id) == out.segments.end()) {
      out.segments.push_back(segment.id);
    }
  }
  setup.set_descriptor_count(static_cast<std::uint32_t>(out.segments.size() + 1));
  return out;
}

}  // namespace ringfeed::layout
