// Statuses of feeds for tests of their graphs.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"

namespace ringfeed::graph {

inline LaneStatus& add_lane(StageStatus& stage, const std::string& name, const std::string& group,
                            LaneStatus::State state = LaneStatus::RUNNING) {
  LaneStatus& lane = *stage.add_lanes();
  lane.set_name(name);
  lane.set_group(group);
  lane.set_state(state);
  lane.set_pid(4711);
  return lane;
}

inline StageStatus& add_stage(StatusReply& status, const std::string& name,
                              const std::string& group) {
  StageStatus& stage = *status.add_stages();
  stage.set_name(name);
  stage.set_kind("a_kind");
  stage.set_group(group);
  add_lane(stage, name + ".0", group);
  return stage;
}

inline RingStatus& add_ring(StatusReply& status, const std::string& from, const std::string& to,
                            const std::string& port = "output") {
  RingStatus& ring = *status.add_rings();
  ring.set_from(from);
  ring.set_to(to);
  ring.set_port(port);
  ring.set_to_port("input");
  ring.set_capacity_records(16);
  ring.set_capacity_bytes(65536);
  return ring;
}

inline FeedStatus& add_output(StatusReply& status, const std::string& from,
                              const std::string& alias = {}) {
  FeedStatus& output = *status.add_outputs();
  output.set_from(from);
  output.set_port("output");
  if (!alias.empty()) output.set_alias(alias);
  output.set_slots(8);
  output.set_slots_used(6);
  output.mutable_schema()->set_rows_max(256);
  output.mutable_schema()->set_slot_bytes(1 << 20);
  return output;
}

// source and mix in process front, pack in process back; mix.read gives back what it has read.
inline StatusReply running_feed() {
  StatusReply status;
  status.set_feed("test");
  status.set_state(StatusReply::RUNNING);
  status.set_uptime_ms(12'345);
  status.set_supervisor_pid(99);
  status.set_memory_bytes(3 << 20);
  add_stage(status, "source", "front");
  StageStatus& mix = add_stage(status, "mix", "front");
  add_lane(mix, "mix.read.0", "front");
  add_lane(mix, "mix.read.1", "front");
  add_lane(mix, "mix.read.2", "front", LaneStatus::SPARE);
  add_stage(status, "pack", "back");
  add_ring(status, "source.0", "mix.0").set_fill_records(4);
  for (const char* read : {"mix.read.0", "mix.read.1", "mix.read.2"}) {
    add_ring(status, "mix.0", read, "orders");
    add_ring(status, read, "mix.0", "feedback");
    add_ring(status, read, "pack.0").set_fill_bytes(65536);
  }
  add_output(status, "pack");
  ConsumerGroupStatus& group = *status.add_groups();
  group.set_name("train");
  group.set_lag(2);
  TrainerStatus& trainer = *status.add_trainers();
  trainer.set_group("train");
  trainer.set_pid(17);
  trainer.set_client("train.py");
  return status;
}

inline QueueMetricProto& add_queue(StageMetricProto& stage, const std::string& name, double rate) {
  QueueMetricProto& queue = *stage.add_output_queue_metrics();
  queue.set_name(name);
  queue.set_put_per_s(rate);
  queue.set_put_bytes(1'000'000);
  return queue;
}

// mix.read limits.
inline MetricsReply its_metrics() {
  MetricsReply metrics;
  WindowMetricsProto& window = *metrics.add_windows();
  window.set_seconds_wanted(10);
  window.set_seconds_covered(4);
  StageMetricProto& mix = *window.mutable_metrics()->add_stage_metrics();
  mix.set_name("mix");
  for (const char* name : {"load", "read"}) {
    LoadMetricProto& load = *mix.add_loads();
    load.set_name(name);
    load.set_busy_share(name == std::string("read") ? 0.9 : 0.25);
    load.set_starved_share(0.05);
    load.set_blocked_share(0.05);
  }
  add_queue(mix, "orders", 20);
  add_queue(mix, "read.feedback", 30);
  add_queue(mix, "output", 40);
  StageMetricProto& pack = *window.mutable_metrics()->add_stage_metrics();
  pack.set_name("pack");
  add_queue(pack, "output", 12.5);
  BottleneckProto& found = *metrics.add_bottlenecks();
  found.set_kind(BottleneckProto::STAGE);
  found.set_stage("mix");
  found.set_part("read");
  found.set_sentence("stage 'mix.read' limits: its 2 lanes are busy 90 % of the time");
  return metrics;
}

}  // namespace ringfeed::graph
