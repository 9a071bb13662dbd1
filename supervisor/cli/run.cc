// ringfeed run and ringfeed check.
#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/config/explain.h"
#include "supervisor/control/feed_lock.h"
#include "supervisor/control/place.h"
#include "supervisor/layout/memory.h"
#include "supervisor/process/supervisor.h"

namespace ringfeed::cli {
namespace {

std::uint64_t drawn_seed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    throw Error(ErrorCode::kIo, "the system gives no random number for a seed: set seed");
  }
  return seed;
}

// For the memory of a feed whose workers are just starting.
constexpr int kLooks = 100;
constexpr std::chrono::milliseconds kBetweenLooks{20};

// The stage groups as a configuration says them.
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
  return left.boot == control::boot_id() &&
         std::any_of(left.workers.begin(), left.workers.end(),
                     [](const auto& worker) { return process::is_alive(worker.second); });
}

// In what the configuration of the feed that was left differs from this one, a line each; empty if
// it can be taken over with it, or there is none. What only the supervisor follows may differ.
std::string left_unlike(const control::LockRecord& left, const DataLoaderConfig& now) {
  DataLoaderConfig then;
  if (left.config.empty() || !then.ParseFromString(left.config)) return {};
  if (left.files.empty() && !anything_lives(left)) return {};
  DataLoaderConfig wanted = now;
  for (DataLoaderConfig* config : {&then, &wanted}) {
    config->clear_restart();
    config->clear_log();
    config->clear_shutdown();
    config->mutable_storage()->clear_memory_budget_bytes();
    // Absent: as it was, see below.
    if (now.stage_groups().empty()) config->clear_stage_groups();
    if (!now.has_seed()) config->clear_seed();
  }
  std::string differences;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  return differencer.Compare(then, wanted) ? std::string() : differences;
}

// The memory of the feed that was left, if it can still be had; the groups and so the layout of
// `prepared` become what they were. Errors: kNotFound (nothing is left), kIncompatible, kDamaged.
Result<layout::FoundMemory> look_for_feed(const control::LockRecord& left, Prepared& prepared) {
  shm::FeedId feed_id{};
  if (left.config.empty() || left.feed_id.size() != feed_id.size() ||
      left.boot != control::boot_id()) {
    return Error{ErrorCode::kNotFound, "there is no feed to take over"};
  }
  std::copy(left.feed_id.begin(), left.feed_id.end(), feed_id.begin());
  DataLoaderConfig grouped = prepared.configuration.message();
  DataLoaderConfig groups;
  if (grouped.stage_groups().empty() && groups.ParseFromString(left.groups)) {
    *grouped.mutable_stage_groups() = groups.stage_groups();
  }
  std::vector<config::StageGroup> then =
      config::stage_groups(grouped, *prepared.plan, prepared.wiring, usable_cores());
  layout::FeedLayout layout =
      layout::lay_out(prepared.configuration.message(), *prepared.plan, prepared.wiring, then);
  const auto look = [&] {
    std::vector<pid_t> holders;
    for (const auto& [group, worker] : left.workers) {
      if (process::is_alive(worker)) holders.push_back(worker.pid);
    }
    return layout::find_memory(layout, feed_id, left.files, holders);
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
  prepared.groups = std::move(then);
  prepared.layout = std::move(layout);
  return found;
}

}  // namespace

int check(const ConfigArguments& arguments) {
  const std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const std::vector<config::MemoryPart> parts = layout::memory_parts(prepared->layout);
  fmt::print("{}", config::explain(prepared->configuration.message(), *prepared->plan,
                                   prepared->wiring, prepared->groups, parts));
  layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
  return kOk;
}

int run(const ConfigArguments& arguments, bool fresh) {
  std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const DataLoaderConfig& message = prepared->configuration.message();
  const std::string& feed = message.feed();

  const std::string directory =
      control::socket_directory(message.control().directory(), control::read_environment());
  control::prepare_directory(directory, feed);
  control::FeedLock lock =
      control::FeedLock::take(control::lock_path(directory, feed), feed).value_or_throw();
  metrics::Talk talk(metrics::level_named(LogConfig::Level_Name(message.log().level())),
                     message.log().file());
  const auto warn = [&](std::string_view event, std::string_view what) {
    talk.event(metrics::Level::kWarn, event, fmt::format("feed={} what=\"{}\"", feed, what));
  };
  const control::LockRecord& left = lock.left_behind();
  std::optional<layout::FoundMemory> found;
  if (!fresh) {
    const std::string differs = left_unlike(left, message);
    if (!differs.empty()) {
      fmt::print(stderr,
                 "feed '{}' goes on without a supervisor, and its configuration is another one:\n"
                 "{}give it the configuration that it has, or end it and start anew with --fresh\n",
                 feed, differs);
      return kInvalidConfiguration;
    }
    Result<layout::FoundMemory> looked = look_for_feed(left, *prepared);
    if (looked) {
      found = std::move(*looked);
    } else if (looked.error().code() != ErrorCode::kNotFound || anything_lives(left)) {
      warn("not_taken_over", looked.error().message());
    }
  }
  int status = kFailure;
  try {
    if (!found) {
      for (const std::string& done : control::clear_remains(left)) warn("remains_cleared", done);
      layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
    }
    talk.say(fmt::format("feed {} takes\n{}", feed, layout::memory_table(prepared->layout)));
    const process::FeedRun feed_run{
        .config = message,
        .plan = *prepared->plan,
        .batches_stage = prepared->wiring.batches_stage,
        .seed = message.has_seed() ? message.seed()
                : found            ? left.seed
                                   : drawn_seed(),
        .config_file = arguments.file == "-" ? arguments.file
                                             : std::filesystem::absolute(arguments.file).string(),
        .worker_binary = prepared->worker_binary,
        .socket = control::socket_path(directory, feed),
        .recorded_groups = formed_groups(*prepared).SerializeAsString(),
        .recorded_config = message.SerializeAsString(),
        .dead_letters = control::dead_letter_directory(message.restart().dead_letters(), feed,
                                                       control::read_environment()),
    };
    process::Supervisor supervisor(feed_run, std::move(prepared->layout), lock, talk,
                                   std::move(found));
    status = supervisor.run();
  } catch (...) {
    lock.remove();
    throw;
  }
  lock.remove();
  return status;
}

}  // namespace ringfeed::cli
