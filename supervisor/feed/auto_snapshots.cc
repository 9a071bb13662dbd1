#include "supervisor/feed/auto_snapshots.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/os/text.h"

namespace ringfeed::process {
namespace {

constexpr std::uint64_t kRetryMs = 60'000;
// What a snapshot has beside the segments.
constexpr std::uint64_t kRoomMore = 16 << 20;

}  // namespace

AutoSnapshots::AutoSnapshots(const DataLoaderConfig& config, std::uint64_t bytes, Hooks hooks)
    : config_(config), bytes_(bytes), hooks_(std::move(hooks)) {}

AutoSnapshots::~AutoSnapshots() {
  if (pruner_.joinable()) pruner_.join();
}

bool AutoSnapshots::due(std::uint64_t now_ms, std::uint64_t newest_batch) const {
  const SnapshotConfig& wanted = config_.snapshot();
  // Nothing has come since the last one.
  if (newest_batch == begun_batch_) return false;
  return (wanted.every_batches() != 0 && newest_batch >= begun_batch_ + wanted.every_batches()) ||
         (wanted.every_s() != 0 && now_ms >= begun_ms_ + std::uint64_t{wanted.every_s()} * 1000);
}

// Why the next snapshot would not fit; empty: it does.
std::string AutoSnapshots::no_room() const {
  const std::string& directory = config_.snapshot().directory();
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  struct statvfs info {};
  if (failed || ::statvfs(directory.c_str(), &info) != 0) {
    return fmt::format("snapshots cannot be written to {}: {}", escaped(directory),
                       failed ? failed.message() : std::strerror(errno));
  }
  const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
  if (free >= bytes_ + kRoomMore) return {};
  return fmt::format(
      "there is no room for a snapshot in {}: it may need {}, {} are free: make room, or lower "
      "snapshot.keep",
      escaped(directory), shown_bytes(bytes_ + kRoomMore), shown_bytes(free));
}

void AutoSnapshots::look(std::uint64_t now_ms, std::uint64_t newest_batch) {
  if (!config_.has_snapshot()) return;
  if (begun_ms_ == 0) {
    begun_ms_ = now_ms;
    begun_batch_ = newest_batch;
  }
  if (now_ms < not_before_ms_ || !due(now_ms, newest_batch)) return;
  not_before_ms_ = now_ms + kRetryMs;
  if (const std::string why = no_room(); why != problem_) {
    problem_ = why;
    hooks_.on_problem(why);
  }
  if (!problem_.empty()) return;
  const std::string directory =
      snapshot::series_path(config_.snapshot().directory(), config_.feed(), newest_batch);
  if (!hooks_.take(directory,
                   [this](const Result<SnapshotTask::Facts>& result) { done(result); })) {
    not_before_ms_ = now_ms;  // another one is being taken
    return;
  }
  begun_ms_ = now_ms;
  begun_batch_ = newest_batch;
}

void AutoSnapshots::done(const Result<SnapshotTask::Facts>& result) {
  if (!result) {
    problem_ = fmt::format("the last snapshot failed: {}", result.error().message());
    hooks_.on_problem(problem_);
    // Due again at once, but not before the retry.
    begun_batch_ -= std::min(begun_batch_, config_.snapshot().every_batches());
    begun_ms_ -= std::min(begun_ms_ - 1, std::uint64_t{config_.snapshot().every_s()} * 1000);
    return;
  }
  not_before_ms_ = 0;
  if (!problem_.empty()) hooks_.on_problem({});
  problem_.clear();
  prune();
}

void AutoSnapshots::prune() {
  if (pruner_.joinable()) pruner_.join();
  const auto work = [directory = config_.snapshot().directory(), feed = config_.feed(),
                     keep = config_.snapshot().keep()] {
    try {
      snapshot::prune_series(directory, feed, keep);
    } catch (const std::exception&) {
      // No memory: they go with the next ones.
    }
  };
  try {
    pruner_ = std::thread(work);
  } catch (const std::exception&) {
    work();  // no thread is to be had
  }
}

}  // namespace ringfeed::process
