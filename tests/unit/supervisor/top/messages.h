// A feed of three stages as its supervisor would tell of it.
#pragma once

#include <string>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"

namespace ringfeed::top {

struct Told {
  StatusReply status;
  MetricsReply metrics;
};

inline void add_stage(Told& told, const std::string& name, int lanes, double busy, double starved,
                      double blocked, std::uint64_t fill) {
  StageStatus& stage = *told.status.add_stages();
  stage.set_name(name);
  stage.set_kind("kind_of_" + name);
  stage.set_group("mix");
  for (int i = 0; i < lanes; ++i) {
    LaneStatus& lane = *stage.add_lanes();
    lane.set_name(name + "." + std::to_string(i));
    lane.set_pid(4711);
    lane.set_state(LaneStatus::RUNNING);
    lane.set_records_out(1000);
  }
  const auto add_metric = [&](DataLoaderMetricsProto& to) {
    StageMetricProto& metric = *to.add_stage_metrics();
    metric.set_name(name);
    LoadMetricProto& load = *metric.add_loads();
    load.set_name("load");
    load.set_lanes(static_cast<std::uint32_t>(lanes));
    load.set_busy_share(busy);
    load.set_starved_share(starved);
    load.set_blocked_share(blocked);
    QueueMetricProto& queue = *metric.add_output_queue_metrics();
    queue.set_name("output");
    queue.set_put_count(600);
    queue.set_put_per_s(12);
    queue.set_capacity(64);
    queue.mutable_fullness()->set_latest(static_cast<std::int64_t>(fill));
  };
  add_metric(*told.metrics.mutable_total());
  for (WindowMetricsProto& window : *told.metrics.mutable_windows()) {
    add_metric(*window.mutable_metrics());
  }
}

// "source" gives to "pool", which limits, and that to "batches". `trainers` of the group "train".
inline Told feed_told(int trainers = 1, const std::string& name = "lc0", int lanes = 2) {
  Told told;
  StatusReply& status = told.status;
  status.set_feed(name);
  status.set_state(StatusReply::RUNNING);
  status.set_uptime_ms(3'700'000);
  status.set_supervisor_pid(99);
  status.set_memory_bytes(9'771'050'598);
  for (const double seconds : {1.0, 10.0, 60.0}) {
    WindowMetricsProto& window = *told.metrics.add_windows();
    window.set_seconds_wanted(seconds);
    window.set_seconds_covered(seconds);
  }
  add_stage(told, "source", 1, 0.1, 0, 0.9, 64);
  add_stage(told, "pool", lanes, 0.98, 0.02, 0, 3);
  add_stage(told, "batches", 1, 0.2, 0.8, 0, 0);
  const auto join = [&](const std::string& from, const std::string& to) {
    RingStatus& ring = *status.add_rings();
    ring.set_from(from);
    ring.set_to(to);
    ring.set_capacity_records(64);
    ring.set_put_count(600);
  };
  join("source.0", "pool.0");
  join("pool.0", "batches.0");
  FeedStatus& output = *status.add_outputs();
  output.set_batches_published(600);
  output.set_slots(6);
  ConsumerGroupStatus& group = *status.add_groups();
  group.set_name("train");
  group.set_lag(2);
  for (int i = 0; i < trainers; ++i) {
    TrainerStatus& trainer = *status.add_trainers();
    trainer.set_group("train");
    trainer.set_member(static_cast<std::uint32_t>(i));
    trainer.set_pid(static_cast<std::uint32_t>(500 + i));
    trainer.set_client("train.py");
    trainer.set_taken(7);
    trainer.set_done(4);
  }
  BottleneckProto& found = *told.metrics.add_bottlenecks();
  found.set_kind(BottleneckProto::STAGE);
  found.set_stage("pool");
  found.set_batches_per_s(12.3);
  found.set_sentence(
      "stage 'pool' is the bottleneck: its 2 lanes are busy 98 % of the time. Another lane would "
      "bring about 1.5 times as much (12.3 to 18.5 batches/s): `ringfeed scale lc0 pool 3`");
  return told;
}

}  // namespace ringfeed::top
