// A snapshot, asked for.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <string>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/snapshot.pb.h"
#include "supervisor/feed/feed.h"
#include "supervisor/os/text.h"

namespace ringfeed::process {

bool Feed::on_snapshot(control::ConnectionId connection, const Request& request, Reply& reply) {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(fmt::format("feed '{}' is being stopped", run_.config.feed()));
    return true;
  }
  return snapshots_.take(connection, request, reply, scaling_.under_way());
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
