#include "supervisor/feed/standstill.h"

#include <fmt/format.h>

#include <algorithm>

#include "supervisor/metrics/read.h"

namespace ringfeed::process {
namespace {

// Sleepers look around every 50 ms, and trainers that wait say so as often.
constexpr std::uint64_t kStandstillLookMs = 1'000;
// This process, and perhaps the others as well, had no time in between.
constexpr std::uint64_t kStandstillLateMs = 5'000;

bool is_spare_lane(const layout::FeedMemory& memory, const layout::LanePlan& lane) {
  return lane.number >= memory.node_lanes(lane.node_index).now;
}

}  // namespace

std::uint64_t Standstill::look(const layout::FeedMemory& memory, std::span<const Output> outputs,
                               std::uint64_t now_ms) {
  if (before_.at_ms != 0 && now_ms < before_.at_ms + kStandstillLookMs) return stood_ms_;
  Seen now;
  now.at_ms = now_ms;
  for (const layout::LanePlan& plan : memory.layout().lanes) {
    const shm::LanePage& lane = memory.lane(plan.index);
    now.lanes.push_back({metrics::read(lane.commit), metrics::read(lane.counters.sleeps)});
  }
  for (const Output& output : outputs) {
    std::map<control::MemberPlace, MemberSeen>& members = now.members.emplace_back();
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (output.groups->state(g) == shm::GroupState::kUnused) continue;
      const shm::GroupPage& page = output.memory->group(g);
      for (std::uint32_t m = 0; m < shm::kMembersMax; ++m) {
        if (!output.groups->lives({g, m})) continue;
        members[{g, m}] = {metrics::read(page.members[m].last_ns),
                           metrics::read(page.members[m].waited_ns)};
      }
    }
  }
  if (!stands(memory, outputs, now)) since_ms_ = now_ms;
  before_ = std::move(now);
  stood_ms_ = now_ms - since_ms_ >= limit_ms_ ? now_ms - since_ms_ : 0;
  return stood_ms_;
}

bool Standstill::stands(const layout::FeedMemory& memory, std::span<const Output> outputs,
                        const Seen& now) const {
  if (before_.at_ms == 0 || now.at_ms > before_.at_ms + kStandstillLateMs) return false;
  bool any_sleeps = false;
  for (std::size_t i = 0; i < now.lanes.size(); ++i) {
    const layout::LanePlan& plan = memory.layout().lanes[i];
    if (now.lanes[i].commit != before_.lanes[i].commit) return false;
    if (memory.lane_finished(plan.index) || is_spare_lane(memory, plan)) continue;
    if (now.lanes[i].sleeps == before_.lanes[i].sleeps) return false;
    any_sleeps = true;
  }
  if (!any_sleeps) return false;
  bool any_waits = false;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const auto waits = [&](const control::MemberPlace& place) {
      const auto was = before_.members[o].find(place);
      const auto is = now.members[o].find(place);
      return was != before_.members[o].end() && is != now.members[o].end() &&
             is->second.active_ns == was->second.active_ns &&
             is->second.waited_ns > was->second.waited_ns;
    };
    for (const auto& [place, member] : now.members[o]) {
      const auto was = before_.members[o].find(place);
      if (was != before_.members[o].end() && was->second.active_ns != member.active_ns)
        return false;
      any_waits = any_waits || waits(place);
    }
    if (outputs[o].memory->layout().keep_newest) continue;
    if (!outputs[o].groups->ever_joined() && outputs[o].memory->batches_published() != 0)
      return false;
    for (const control::Awaited& awaited : outputs[o].groups->awaited()) {
      if (!awaited.member || !waits({awaited.group, *awaited.member})) return false;
    }
  }
  return any_waits;
}

std::string lanes_text(const layout::FeedMemory& memory) {
  std::string text;
  for (const layout::LanePlan& plan : memory.layout().lanes) {
    if (is_spare_lane(memory, plan)) continue;
    text += fmt::format("{}{} ", text.empty() ? "" : "; ", plan.name());
    if (memory.lane_finished(plan.index)) {
      text += "has ended";
      continue;
    }
    std::uint64_t records = 0;
    for (const layout::InputPlan& input : plan.inputs) {
      for (const std::uint32_t ring : input.rings) {
        const layout::RingPlan& queue = memory.layout().rings[ring];
        records +=
            shm::view_queue(memory.tail(queue), memory.head(queue), queue.geometry).size_records;
      }
    }
    text += fmt::format(
        "(process {}) sleeps{}", metrics::read(memory.lane(plan.index).pid),
        plan.inputs.empty() ? std::string() : fmt::format(" before {} records", records));
  }
  return text;
}

}  // namespace ringfeed::process
