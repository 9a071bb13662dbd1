#include "supervisor/metrics/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/metrics/read.h"

namespace ringfeed::metrics {
namespace {

shm::QueueView view(const layout::FeedMemory& memory, const layout::RingPlan& ring) {
  return shm::view_queue(memory.tail(ring), memory.head(ring), ring.geometry);
}

// No room for another record of usual size.
bool is_full(const shm::QueueView& queue) {
  if (queue.size_records >= queue.capacity_records) return true;
  return queue.size_records > 0 &&
         queue.size_bytes + queue.size_bytes / queue.size_records > queue.capacity_bytes;
}

// A lane that sleeps although records wait for it can only wait for room.
LaneStatus::State state_of(const layout::FeedMemory& memory, const layout::LanePlan& plan,
                           bool has_process) {
  if (memory.lane_finished(plan.index)) return LaneStatus::ENDED;
  const shm::LanePage& page = memory.lane(plan.index);
  if (!has_process || read(page.pid) == 0) return LaneStatus::ABSENT;
  if (read(page.waiting) == 0) return LaneStatus::RUNNING;
  if (plan.number >= memory.node_lanes(plan.node_index).now) return LaneStatus::SPARE;
  const std::vector<layout::RingPlan>& rings = memory.layout().rings;
  for (const layout::InputPlan& input : plan.inputs) {
    for (const std::uint32_t ring : input.rings) {
      if (view(memory, rings[ring]).size_records > 0) return LaneStatus::BLOCKED;
    }
  }
  for (const layout::OutputPlan& output : plan.outputs) {
    for (const std::uint32_t ring : output.rings) {
      const shm::QueueView queue = view(memory, rings[ring]);
      if (is_full(queue)) return LaneStatus::BLOCKED;
    }
  }
  return LaneStatus::STARVED;
}

void fill_lane(const layout::FeedMemory& memory, const layout::LanePlan& plan,
               const GroupFacts& group, LaneStatus& lane) {
  const shm::LanePage& page = memory.lane(plan.index);
  lane.set_state(state_of(memory, plan, group.pid != 0));
  lane.set_pid(static_cast<std::uint32_t>(group.pid));
  lane.set_incarnation(read(page.incarnation));
  lane.set_restarts(group.restarts);
  const std::vector<layout::RingPlan>& rings = memory.layout().rings;
  std::uint64_t records_in = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t records_out = 0;
  std::uint64_t bytes_out = 0;
  for (const layout::InputPlan& input : plan.inputs) {
    for (const std::uint32_t ring : input.rings) {
      const shm::QueueView queue = view(memory, rings[ring]);
      records_in += queue.get_total;
      bytes_in += read(memory.head(rings[ring]).head);
    }
  }
  for (const layout::OutputPlan& output : plan.outputs) {
    for (const std::uint32_t ring : output.rings) {
      records_out += read(memory.tail(rings[ring]).tail_seq);
      bytes_out += read(memory.tail(rings[ring]).tail);
    }
    if (!output.feed) continue;
    const layout::OutputMemory feed = memory.output(*output.feed);
    const std::uint64_t batches = feed.published_by(plan.number);
    records_out += batches;
    bytes_out += batches * feed.layout().slot_bytes;
  }
  lane.set_records_in(records_in);
  lane.set_bytes_in(bytes_in);
  lane.set_records_out(records_out);
  lane.set_bytes_out(bytes_out);
  lane.set_busy_ns(read(page.counters.busy_ns));
  lane.set_starved_ns(read(page.counters.starved_ns));
  lane.set_blocked_ns(read(page.counters.blocked_ns));
}

}  // namespace

std::string counter_name(const shm::NamedCounter& counter) {
  return {counter.name, ::strnlen(counter.name, sizeof counter.name)};
}

Note read_note(const shm::LaneNote& note) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    // acquire: the text is read after the version.
    const std::uint32_t before = note.version.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    Note read{.text = std::string(note.text, std::min<std::size_t>(note.bytes, sizeof note.text)),
              .done = note.done,
              .total = note.total};
    // acquire: a note that was changed meanwhile has another version.
    if (note.version.load(std::memory_order_acquire) != before) continue;
    if (read.done > read.total) read.done = read.total = 0;
    return read;
  }
  return {};
}

std::string stage_note(const layout::FeedMemory& memory, std::uint32_t stage) {
  std::string text;
  for (const layout::LanePlan& plan : memory.layout().lanes) {
    if (plan.stage != stage) continue;
    const std::string note = read_note(memory.lane(plan.index).counters.note).text;
    // Lanes with the same thing to say say it once.
    if (note.empty() || text.find(note) != std::string::npos) continue;
    text += (text.empty() ? "" : "; ") + note;
  }
  return text;
}

std::vector<std::string> progress_notes(const layout::FeedMemory& memory) {
  std::vector<std::string> notes;
  std::map<std::uint32_t, std::string> names;
  for (const layout::LanePlan& plan : memory.layout().lanes) names[plan.stage] = plan.stage_name;
  for (const auto& [stage, name] : names) {
    const std::string note = stage_note(memory, stage);
    if (!note.empty()) notes.push_back(fmt::format("{}: {}", name, note));
  }
  return notes;
}

std::vector<StageWork> stage_work(const layout::FeedMemory& memory) {
  std::map<std::uint32_t, StageWork> found;
  for (const layout::LanePlan& plan : memory.layout().lanes) {
    const Note note = read_note(memory.lane(plan.index).counters.note);
    if (note.total == 0) continue;
    StageWork& work = found[plan.stage];
    work.stage = plan.stage_name;
    work.text += (work.text.empty() ? "" : "; ") + note.text;
    work.done += note.done;
    work.total += note.total;
  }
  std::vector<StageWork> all;
  for (auto& [stage, work] : found) all.push_back(std::move(work));
  return all;
}

void lay_out_stages(const layout::FeedLayout& layout, const PipelinePlan& plan,
                    StatusReply& status) {
  for (const StagePlan& planned : plan.stages()) {
    status.add_stages()->set_kind(config::shown_kind(planned));
  }
  for (const layout::LanePlan& plan_of_lane : layout.lanes) {
    StageStatus& stage = *status.mutable_stages(static_cast<int>(plan_of_lane.stage));
    const std::string& group = layout.groups[plan_of_lane.group].name;
    stage.set_name(plan_of_lane.stage_name);
    stage.set_group(group);
    LaneStatus& lane = *stage.add_lanes();
    lane.set_name(plan_of_lane.name());
    lane.set_group(group);
    const bool spare = plan_of_lane.number >= layout.nodes[plan_of_lane.node_index].lanes;
    lane.set_state(spare ? LaneStatus::SPARE : LaneStatus::ABSENT);
  }
}

void lay_out_rings(const layout::FeedLayout& layout, StatusReply& status) {
  for (const layout::RingPlan& plan : layout.rings) {
    RingStatus& ring = *status.add_rings();
    ring.set_from(layout.lanes[plan.from_lane].name());
    ring.set_to(layout.lanes[plan.to_lane].name());
    ring.set_capacity_records(plan.geometry.records_max);
    ring.set_capacity_bytes(plan.geometry.capacity_bytes);
  }
  const auto at = [&status](std::uint32_t ring) {
    return status.mutable_rings(static_cast<int>(ring));
  };
  for (const layout::LanePlan& lane : layout.lanes) {
    for (const layout::OutputPlan& output : lane.outputs) {
      for (const std::uint32_t ring : output.rings) at(ring)->set_port(output.port);
    }
    for (const layout::InputPlan& input : lane.inputs) {
      for (const std::uint32_t ring : input.rings) {
        at(ring)->set_to_port(input.port);
        if (input.back) at(ring)->set_back(true);
      }
    }
  }
}

void lay_out_output(const layout::FeedLayout& layout, const layout::OutputLayout& output,
                    const BatchSchema& schema, StatusReply& status) {
  FeedStatus& shown = *status.add_outputs();
  if (!output.alias.empty()) shown.set_alias(output.alias);
  if (output.keep_newest) shown.set_keep_newest(true);
  shown.set_slots(output.geometry.slots);
  *shown.mutable_schema() = schema;
  for (const std::uint32_t index : output.producing_lanes) {
    const layout::LanePlan& lane = layout.lanes[index];
    shown.set_from(lane.node.empty() ? lane.stage_name : lane.stage_name + "." + lane.node);
    for (const layout::OutputPlan& port : lane.outputs) {
      if (port.feed == output.index) shown.set_port(port.port);
    }
  }
}

void fill_stages(const layout::FeedMemory& memory, const PipelinePlan& plan,
                 const std::vector<GroupFacts>& groups, StatusReply& status) {
  const layout::FeedLayout& layout = memory.layout();
  lay_out_stages(layout, plan, status);
  for (int s = 0; s < plan.stages_size(); ++s) {
    StageStatus& stage = *status.mutable_stages(s);
    std::map<std::string, std::uint64_t> counters;
    int place = 0;
    for (const layout::LanePlan& lane : layout.lanes) {
      if (lane.stage != static_cast<std::uint32_t>(s)) continue;
      fill_lane(memory, lane, groups[lane.group], *stage.mutable_lanes(place++));
      for (const shm::NamedCounter& counter : memory.lane(lane.index).counters.named) {
        const std::string name = counter_name(counter);
        if (!name.empty()) counters[name] += read(counter.value);
      }
    }
    for (const auto& [name, value] : counters) {
      CounterStatus& counter = *stage.add_counters();
      counter.set_name(name);
      counter.set_value(value);
    }
    const std::string note = stage_note(memory, static_cast<std::uint32_t>(s));
    if (!note.empty()) stage.set_progress(note);
  }
}

void fill_rings(const layout::FeedMemory& memory, StatusReply& status) {
  const layout::FeedLayout& layout = memory.layout();
  lay_out_rings(layout, status);
  for (std::size_t i = 0; i < layout.rings.size(); ++i) {
    const shm::QueueView queue = view(memory, layout.rings[i]);
    RingStatus& ring = *status.mutable_rings(static_cast<int>(i));
    ring.set_fill_records(queue.size_records);
    ring.set_fill_bytes(queue.size_bytes);
    ring.set_put_count(queue.put_total);
    ring.set_get_count(queue.get_total);
    ring.set_drop_count(queue.drop_total);
    ring.set_closed(queue.closed);
  }
}

std::uint64_t records_under_way(const layout::FeedMemory& memory) {
  std::uint64_t records = 0;
  for (const layout::RingPlan& ring : memory.layout().rings) {
    records += view(memory, ring).size_records;
  }
  return records;
}

void fill_output(const layout::OutputMemory& memory, const control::ConsumerGroups& groups,
                 const BatchSchema& schema, StatusReply& status) {
  lay_out_output(memory.feed().layout(), memory.layout(), schema, status);
  FeedStatus& output = *status.mutable_outputs(status.outputs_size() - 1);
  output.set_batches_published(memory.batches_published());
  // A stage that writes batches counts their rows under this name.
  for (const std::uint32_t index : memory.layout().producing_lanes) {
    for (const shm::NamedCounter& counter : memory.lane(index).counters.named) {
      if (counter_name(counter) != "rows") continue;
      output.set_rows_published(output.rows_published() + read(counter.value));
    }
  }
  output.set_slots_used(groups.slots_used());
}

void fill_trainers(const layout::OutputMemory& memory, const control::ConsumerGroups& groups,
                   const control::Trainers& trainers, StatusReply& status) {
  for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
    if (groups.state(g) == shm::GroupState::kUnused) continue;
    const shm::GroupPage& page = memory.group(g);
    const control::GroupTerms& terms = groups.terms(g);
    ConsumerGroupStatus& group = *status.add_groups();
    group.set_name(terms.name);
    const std::string& alias = memory.layout().alias;
    if (!alias.empty()) group.set_output(alias);
    group.set_kind(terms.kind == shm::GroupKind::kRanked ? ConsumerGroupConfig::RANKED
                                                         : ConsumerGroupConfig::SHARED);
    group.set_world(terms.world);
    group.set_policy(static_cast<ConsumerGroupConfig::Policy>(terms.policy));
    group.set_members(groups.live_members(g));
    group.set_had_member(groups.had_member(g));
    group.set_start(groups.start(g));
    group.set_lag(groups.unfinished(g, false));
    group.set_skipped(groups.lost(g));
    for (const std::uint64_t bound : shm::kWaitBoundsUs) group.add_wait_bounds_us(bound);
    for (const auto& count : page.waits.counts) group.add_wait_counts(read(count));
    group.set_wait_ns(read(page.waits.sum_ns));
    for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
      const shm::Member& member = page.members[m];
      if (read(member.state) == static_cast<std::uint32_t>(shm::MemberState::kFree)) continue;
      TrainerStatus& trainer = *status.add_trainers();
      trainer.set_group(terms.name);
      if (!alias.empty()) trainer.set_output(alias);
      trainer.set_member(m);
      trainer.set_pid(member.pid);
      trainer.set_taken(read(member.taken));
      trainer.set_done(read(member.done));
      trainer.set_waited_ns(read(member.waited_ns));
      trainer.set_client(trainers.client({g, m}));
    }
  }
}

}  // namespace ringfeed::metrics
