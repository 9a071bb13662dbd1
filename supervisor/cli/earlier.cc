#include "supervisor/cli/earlier.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <thread>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "proto/snapshot.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/layout/memory.h"
#include "supervisor/snapshot/load.h"

namespace ringfeed::cli {
namespace {

// For the memory of a feed whose workers are just starting.
constexpr int kLooks = 100;
constexpr std::chrono::milliseconds kBetweenLooks{20};

// The lanes of a stage that scales may be others; those that are laid out, which may be said in two
// ways, may not.
void ignore_lanes(StageConfig& stage) {
  for (const google::protobuf::FieldDescriptor* kind : config::kinds_set(stage)) {
    google::protobuf::Message& own = *stage.GetReflection()->MutableMessage(&stage, kind);
    const google::protobuf::Reflection& reflection = *own.GetReflection();
    const auto* threads = own.GetDescriptor()->FindFieldByName("threads");
    const auto* most = own.GetDescriptor()->FindFieldByName("max_threads");
    if (threads == nullptr || most == nullptr) continue;
    const std::uint64_t lanes =
        std::max(config::count_in(own, *threads), config::count_in(own, *most));
    reflection.SetUInt32(&own, most, static_cast<std::uint32_t>(lanes));
    reflection.ClearField(&own, threads);
  }
}

// In what two configurations of a feed differ, a line each. What only the supervisor follows may
// differ; where things lie as well, if the memory is made anew.
std::string differences(DataLoaderConfig then, const DataLoaderConfig& now, bool new_memory) {
  DataLoaderConfig wanted = now;
  for (DataLoaderConfig* config : {&then, &wanted}) {
    for (StageConfig& stage : *config->mutable_stages()) ignore_lanes(stage);
    config->clear_restart();
    config->clear_log();
    config->clear_shutdown();
    config->mutable_storage()->clear_memory_budget_bytes();
    if (new_memory) {
      config->mutable_storage()->clear_directory();
      config->clear_control();
    }
    // Absent: as it was.
    if (now.stage_groups().empty()) config->clear_stage_groups();
    if (!now.has_seed()) config->clear_seed();
  }
  std::string found;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&found);
  return differencer.Compare(then, wanted) ? std::string() : found;
}

// A layout with the stage groups that had been formed.
struct Regrouped {
  std::vector<config::StageGroup> groups;
  layout::FeedLayout layout;
};
Regrouped regroup(const Prepared& prepared, const DataLoaderConfig& formed) {
  const DataLoaderConfig& message = prepared.configuration.message();
  DataLoaderConfig grouped = message;
  if (grouped.stage_groups().empty()) *grouped.mutable_stage_groups() = formed.stage_groups();
  Regrouped then;
  then.groups = config::stage_groups(grouped, *prepared.plan, prepared.wiring, usable_cores());
  then.layout = layout::lay_out(message, *prepared.plan, prepared.wiring, then.groups);
  return then;
}

}  // namespace

DataLoaderConfig formed_groups(const Prepared& prepared) {
  DataLoaderConfig groups;
  for (const config::StageGroup& group : prepared.groups) {
    StageGroupConfig& out = *groups.add_stage_groups();
    out.set_name(group.name);
    for (const int stage : group.stages) {
      out.add_stages(prepared.configuration.message().stages(stage).name());
    }
  }
  return groups;
}

bool anything_lives(const control::LockRecord& left) {
  return !control::living_workers(left).empty();
}

std::string left_unlike(const control::LockRecord& left, const DataLoaderConfig& now) {
  DataLoaderConfig then;
  if (left.config.empty() || !then.ParseFromString(left.config)) return {};
  if (left.files.empty() && !anything_lives(left)) return {};
  return differences(then, now, false);
}

std::string saved_unlike(const SnapshotManifest& saved, const DataLoaderConfig& now) {
  return differences(saved.config(), now, true);
}

Result<layout::FoundMemory> look_for_feed(const control::LockRecord& left, Prepared& prepared) {
  shm::FeedId feed_id{};
  if (left.config.empty() || left.feed_id.size() != feed_id.size() ||
      left.boot != control::boot_id()) {
    return Error{ErrorCode::kNotFound, "there is no feed to take over"};
  }
  std::copy(left.feed_id.begin(), left.feed_id.end(), feed_id.begin());
  DataLoaderConfig formed;
  formed.ParseFromString(left.groups);
  Regrouped then = regroup(prepared, formed);
  const auto look = [&] {
    std::vector<pid_t> holders;
    for (const auto& [group, worker] : left.workers) {
      if (process::is_alive(worker)) holders.push_back(worker.pid);
    }
    return layout::find_memory(then.layout, feed_id, left.files, holders);
  };
  Result<layout::FoundMemory> found = look();
  // A worker that was started a moment before the supervisor's death has its descriptors still on
  // the way to it.
  for (int tries = 0; !found && found.error().code() == ErrorCode::kNotFound &&
                      anything_lives(left) && tries < kLooks;
       ++tries) {
    std::this_thread::sleep_for(kBetweenLooks);
    found = look();
  }
  if (!found) return found;
  const shm::Mapping mapping = shm::map_segment(found->fds[0].get(), false).value_or_throw();
  const auto& state =
      *reinterpret_cast<const shm::FeedState*>(mapping.data() + shm::kFeedStateOffset);
  // acquire, pairs with the release of set_phase().
  if (state.phase.load(std::memory_order_acquire) ==
      static_cast<std::uint32_t>(shm::FeedPhase::kFailed)) {
    return Error{ErrorCode::kIncompatible, "the feed had failed: it is started anew"};
  }
  prepared.groups = std::move(then.groups);
  prepared.layout = std::move(then.layout);
  return found;
}

Result<layout::FoundMemory> load_snapshot(const std::string& directory,
                                          const SnapshotManifest& manifest, Prepared& prepared) {
  Regrouped then = regroup(prepared, manifest.stage_groups());
  if (Status room = layout::check_memory(then.layout, memory_limits(prepared)); !room) {
    return room.error();
  }
  const std::string& storage = prepared.configuration.message().storage().directory();
  Result<layout::FoundMemory> found =
      snapshot::load(directory, manifest, then.layout, shm::Storage{storage});
  if (!found) return found;
  prepared.groups = std::move(then.groups);
  prepared.layout = std::move(then.layout);
  return found;
}

}  // namespace ringfeed::cli
