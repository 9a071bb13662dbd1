// A snapshot, asked for.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <string>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/snapshot.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/feed/feed.h"
#include "supervisor/os/text.h"

namespace ringfeed::process {

bool Feed::on_snapshot(control::ConnectionId connection, const Request& request, Reply& reply) {
  const auto refuse = [&](std::string text) {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(std::move(text));
    return true;
  };
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    return refuse(fmt::format("feed '{}' is being stopped", run_.config.feed()));
  }
  if (snapshot_ || scale_) {
    return refuse(fmt::format("feed '{}' is {}: try again", run_.config.feed(),
                              takes_snapshot() ? "taking a snapshot"
                              : snapshot_      ? "abandoning the previous snapshot"
                                               : "being scaled"));
  }
  SnapshotTask::Hooks hooks;
  hooks.park = [this](std::uint64_t ticket) {
    for (const std::unique_ptr<GroupProcess>& worker : workers_) worker->park(ticket);
  };
  hooks.describe = [this](SnapshotManifest& manifest, const auto& copied) {
    describe_snapshot(manifest, copied);
  };
  hooks.done = [this](const Result<SnapshotTask::Facts>& result) { snapshot_done(result); };
  hooks.ended = [this] { snapshot_.reset(); };
  snapshot_asker_ = {connection, request.id()};
  snapshot_ = std::make_unique<SnapshotTask>(loop_, memory_, request.snapshot().directory(),
                                             std::move(hooks));
  return false;
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

void Feed::snapshot_done(const Result<SnapshotTask::Facts>& result) {
  or_refuse(snapshot_asker_.first, snapshot_asker_.second, [&] { tell_of_snapshot(result); });
}

void Feed::tell_of_snapshot(const Result<SnapshotTask::Facts>& result) {
  Reply reply;
  reply.set_id(snapshot_asker_.second);
  if (result) {
    newest_snapshot_ = result->directory;
    record_workers();
    SnapshotReply& out = *reply.mutable_snapshot();
    out.set_directory(result->directory);
    out.set_bytes(result->bytes);
    out.set_newest_batch(result->newest_batch);
    out.set_pause_us(result->pause_us);
    out.set_total_ms(result->total_ms);
    event(metrics::Level::kInfo, "snapshot_taken",
          fmt::format("directory={} bytes={} newest_batch={} pause_us={} total_ms={}",
                      log_value(result->directory), result->bytes, result->newest_batch,
                      result->pause_us, result->total_ms));
  } else {
    reply.set_error(Reply::INTERNAL);
    reply.set_text(result.error().message());
    event(metrics::Level::kWarn, "snapshot_failed",
          "reason=" + in_quotes(result.error().message()));
  }
  server_->send(snapshot_asker_.first, reply);
}

bool Feed::takes_snapshot() const { return snapshot_ && !snapshot_->over(); }

void Feed::give_up_snapshot(const std::string& why) {
  if (!takes_snapshot()) return;
  snapshot_->give_up();
  snapshot_done(Error(ErrorCode::kClosed, fmt::format("the snapshot was abandoned: {}", why)));
}

}  // namespace ringfeed::process
