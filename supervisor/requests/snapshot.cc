// A snapshot, asked for.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "proto/snapshot.pb.h"
#include "supervisor/feed/feed.h"
#include "supervisor/metrics/read.h"
#include "supervisor/metrics/status.h"
#include "supervisor/os/text.h"
#include "supervisor/snapshot/series.h"

namespace ringfeed::process {
namespace {

constexpr std::ptrdiff_t kSnapshotsTold = 64;

}  // namespace

bool Feed::on_snapshot(control::ConnectionId connection, const Request& request, Reply& reply) {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(fmt::format("feed '{}' is being stopped", run_.config.feed()));
    return true;
  }
  return snapshots_.take(connection, request, reply, scaling_.under_way());
}

// Has a message changed what a stage hands out next?
bool Feed::is_steered() const {
  for (const layout::LanePlan& lane : memory_.layout().lanes) {
    for (const NodePlan& node : run_.plan.stages(static_cast<int>(lane.stage)).nodes()) {
      if (node.name() != lane.node || node.steered_counter().empty()) continue;
      for (const shm::NamedCounter& counter : memory_.lane(lane.index).counters.named) {
        if (metrics::counter_name(counter) != node.steered_counter()) continue;
        if (metrics::read(counter.value) != 0) return true;
      }
    }
  }
  return false;
}

bool Feed::on_snapshots(control::ConnectionId, const Request&, Reply& reply) {
  SnapshotsReply& out = *reply.mutable_snapshots();
  // A drain may give ranks stand-ins in place of batches.
  steered_ = steered_ || draining_ || is_steered();
  if (!run_.lineage.empty() && !steered_) out.set_lineage(run_.lineage);
  std::vector<snapshot::Entry> entries;
  if (run_.config.has_snapshot()) {
    entries = snapshot::read_series(run_.config.snapshot().directory(), run_.config.feed());
  }
  // Of those that were asked for, the newest is known, and the one that this feed came from.
  for (const std::string& directory : {run_.resumed_from, snapshots_.newest()}) {
    if (directory.empty() || std::ranges::count(entries, directory, &snapshot::Entry::directory)) {
      continue;
    }
    if (snapshot::Entry entry = snapshot::read_entry(directory); !entry.directory.empty()) {
      entries.push_back(std::move(entry));
    }
  }
  const shm::FeedId& id = memory_.identity().feed_id;
  const std::string own = to_hex({reinterpret_cast<const char*>(id.data()), id.size()});
  std::erase_if(entries, [&](const snapshot::Entry& entry) { return entry.feed_id != own; });
  std::ranges::sort(entries, {}, &snapshot::Entry::newest_batch);
  if (std::ssize(entries) > kSnapshotsTold) {
    entries.erase(entries.begin(), entries.end() - kSnapshotsTold);
  }
  for (const snapshot::Entry& entry : entries) {
    SnapshotInfo& info = *out.add_snapshots();
    info.set_directory(entry.directory);
    info.set_bytes(entry.bytes);
    info.set_newest_batch(entry.newest_batch);
    info.set_taken_at(entry.taken_at);
    for (const snapshot::Entry::Group& group : entry.groups) {
      SnapshotPlace& place = *info.add_places();
      place.set_group(group.name);
      if (!group.output.empty()) place.set_output(group.output);
      place.set_next_batch(group.next_batch);
    }
  }
  return true;
}

void Feed::describe_snapshot(SnapshotManifest& manifest,
                             const std::vector<std::vector<std::byte>>& copied) const {
  const shm::FeedIdentity& identity = memory_.identity();
  manifest.set_feed(run_.config.feed());
  manifest.set_feed_id(
      to_hex({reinterpret_cast<const char*>(identity.feed_id.data()), identity.feed_id.size()}));
  manifest.set_config_hash(identity.config_hash);
  manifest.set_seed(run_.seed);
  manifest.set_taken_at(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  for (const std::unique_ptr<Output>& output : outputs_) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      if (output->groups.state(g) == shm::GroupState::kUnused) continue;
      SnapshotGroup& group = *manifest.add_groups();
      group.set_name(output->groups.terms(g).name);
      const layout::OutputLayout& layout = output->memory.layout();
      if (!layout.alias.empty()) group.set_output(layout.alias);
      // As in the copy: trainers go on.
      const auto& page = *reinterpret_cast<const shm::GroupPage*>(
          copied[layout.group_segments[g]].data() + shm::kPageBytes);
      group.set_next_batch(output->groups.next_batch_in(page));
    }
  }
  manifest.mutable_stage_groups()->ParseFromString(run_.recorded_groups);
  manifest.mutable_config()->ParseFromString(run_.recorded_config);
}

}  // namespace ringfeed::process
