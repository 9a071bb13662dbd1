#include "supervisor/cli/earlier.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

// How many lanes a stage has and how long its queues are: batches do not follow from that.
void ignore_sizes(StageConfig& stage) {
  for (const google::protobuf::FieldDescriptor* kind : config::kinds_set(stage)) {
    google::protobuf::Message& own = *stage.GetReflection()->MutableMessage(&stage, kind);
    for (const char* const name : {"threads", "max_threads", "queue_capacity", "queue_bytes"}) {
      const auto* const field = own.GetDescriptor()->FindFieldByName(name);
      if (field != nullptr) own.GetReflection()->ClearField(&own, field);
    }
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
    config->clear_snapshot();
    config->clear_http();
    config->clear_worker();  // another program for the same stages; their plans are compared
    config->mutable_storage()->clear_memory_budget_bytes();
    if (new_memory) {
      config->mutable_storage()->clear_directory();
      config->clear_control();
    }
    // Absent: as it was.
    if (now.stage_groups().empty()) config->clear_stage_groups();
    if (!now.has_seed()) config->clear_seed();
    // Not given now, it is not compared; given, it must be what the feed began with.
    config->set_from_batch(now.has_from_batch() ? config->from_batch() : 1);
  }
  std::string found;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&found);
  return differencer.Compare(then, wanted) ? std::string() : found;
}

// How many of the recorded files are where they were. Throws Error (kIo) if that cannot be seen.
std::size_t files_there(const control::LockRecord& left) {
  return static_cast<std::size_t>(
      std::count_if(left.files.begin(), left.files.end(), [](const std::string& file) {
        struct stat info {};
        if (::stat(file.c_str(), &info) == 0) return true;
        if (errno == ENOENT || errno == ENOTDIR) return false;
        throw Error(ErrorCode::kIo, fmt::format("{}: {}", file, std::strerror(errno)));
      }));
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

std::string lineage_of(const Prepared& prepared, std::uint64_t seed) {
  const DataLoaderConfig& config = prepared.configuration.message();
  if (!config::begins_nowhere_else(config, *prepared.plan, prepared.wiring).empty()) return {};
  DataLoaderConfig what;
  *what.mutable_stages() = config.stages();
  for (StageConfig& stage : *what.mutable_stages()) ignore_sizes(stage);
  what.set_seed(seed);
  what.set_epochs(config.epochs());
  what.set_drop_remainder(config.drop_remainder());
  const std::string bytes = what.SerializeAsString();
  return fmt::format("{:016x}", ::XXH3_64bits(bytes.data(), bytes.size()));
}

std::string saved_unlike(const SnapshotManifest& saved, const DataLoaderConfig& now) {
  return differences(saved.config(), now, true);
}

Left look_for_feed(const control::LockRecord& left, Prepared& prepared) {
  const std::string& feed = prepared.configuration.message().feed();
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, fmt::format("feed '{}' cannot be taken over, and nothing of it was "
                                   "changed: {}; --fresh ends it and starts a new one",
                                   feed, why));
  };
  Left out;
  out.ended = left.over;
  if (left.over) return out;
  const std::size_t files = files_there(left);
  shm::FeedId feed_id{};
  if (control::was_another_boot(left)) {
    if (files != 0 && left.snapshot.empty()) {
      throw refuse(
          ErrorCode::kDamaged,
          fmt::format("{} of its {} files are there, but the system has rebooted since and may not "
                      "have written all of them: resume from a snapshot with --resume DIR",
                      files, left.files.size()));
    }
    if (!left.config.empty()) out.gone = "the system has rebooted since";
    return out;
  }
  // A worker that lives is of this boot; a file may be of any.
  if (files != 0 && !control::was_this_boot(left) && !anything_lives(left)) {
    throw refuse(
        ErrorCode::kDamaged,
        fmt::format(
            "{} of its {} files are there, but the system does not say whether it has rebooted "
            "since (/proc/sys/kernel/random/boot_id); if it has, some may not have been written: "
            "mount all of /proc, or resume from a snapshot with --resume DIR",
            files, left.files.size()));
  }
  if (left.config.empty() || left.feed_id.size() != feed_id.size()) {
    if (anything_lives(left) || files != 0) {
      throw refuse(ErrorCode::kDamaged, "its record does not say which feed it is");
    }
    return out;
  }
  std::copy(left.feed_id.begin(), left.feed_id.end(), feed_id.begin());
  DataLoaderConfig formed;
  formed.ParseFromString(left.groups);
  Regrouped then = regroup(prepared, formed);
  const auto look = [&] {
    std::vector<pid_t> holders;
    for (const auto& [group, worker] : control::living_workers(left)) holders.push_back(worker.pid);
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
  if (!found) {
    const Error& error = found.error();
    if (error.code() != ErrorCode::kNotFound) throw refuse(error.code(), error.message());
    if (anything_lives(left)) {
      throw refuse(ErrorCode::kNotFound,
                   fmt::format("{} workers are alive, but {}", control::living_workers(left).size(),
                               error.message()));
    }
    // Files do not die with anybody: somebody has moved them, or their place is not there now.
    if (!left.files.empty() && (files != 0 || left.snapshot.empty())) {
      throw refuse(ErrorCode::kNotFound,
                   fmt::format("{} of its {} files are there; {}: put them back, or resume from a "
                               "snapshot with --resume DIR",
                               files, left.files.size(), error.message()));
    }
    out.gone = "all its processes have died, and its memory was lost with them";
    return out;
  }
  Result<shm::Mapping> mapping = shm::map_segment(found->fds[0].get(), false);
  if (!mapping) throw refuse(mapping.error().code(), mapping.error().message());
  const auto& state =
      *reinterpret_cast<const shm::FeedState*>(mapping->data() + shm::kFeedStateOffset);
  // acquire, pairs with the release of set_phase().
  out.ended = state.phase.load(std::memory_order_acquire) ==
              static_cast<std::uint32_t>(shm::FeedPhase::kFailed);
  if (out.ended) return out;
  prepared.groups = std::move(then.groups);
  prepared.layout = std::move(then.layout);
  out.memory = std::move(*found);
  return out;
}

Result<layout::FoundMemory> load_snapshot(const std::string& directory,
                                          const SnapshotManifest& manifest, Prepared& prepared,
                                          const shm::Storage& storage,
                                          const snapshot::Looked& looked) {
  Regrouped then = regroup(prepared, manifest.stage_groups());
  if (Status room = layout::check_memory(then.layout, memory_limits(prepared)); !room) {
    return room.error();
  }
  Result<layout::FoundMemory> found =
      snapshot::load(directory, manifest, then.layout, storage, looked);
  if (!found) return found;
  prepared.groups = std::move(then.groups);
  prepared.layout = std::move(then.layout);
  return found;
}

}  // namespace ringfeed::cli
