#include "supervisor/feed/snapshot_task.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "proto/snapshot.pb.h"
#include "ringfeed/shm/failpoint.h"
#include "supervisor/os/text.h"
#include "supervisor/snapshot/changes.h"
#include "supervisor/snapshot/load.h"
#include "supervisor/snapshot/store.h"

namespace ringfeed::process {
namespace {

// The lanes are parked once so little has changed during a pass that it is copied in a moment, or
// another pass would not gain much.
constexpr std::uint64_t kRestBytes = 16 << 20;
constexpr int kPassesMax = 8;
// Copies are bound by memory, and each thread takes a processor from lanes and trainers.
constexpr unsigned kThreadsMax = 32;
// What changes until they stand still is kept in memory and written when they go on: as much as
// changed during the pass before, within these limits.
constexpr std::uint64_t kRoomBytesMin = 64 << 20;
constexpr std::uint64_t kRoomBytesMax = std::uint64_t{1} << 30;
// So that lanes and trainers go first while they work.
constexpr int kNice = 5;

// Written by others than lanes, so that nobody stands still for it.
bool is_small(shm::SegmentKind kind) {
  return kind == shm::SegmentKind::kControl || kind == shm::SegmentKind::kFeedControl ||
         kind == shm::SegmentKind::kGroup;
}

}  // namespace

SnapshotTask::SnapshotTask(EventLoop& loop, const layout::FeedMemory& memory, std::string directory,
                           Hooks hooks)
    : loop_(loop),
      memory_(memory),
      directory_(std::move(directory)),
      hooks_(std::move(hooks)),
      parking_(loop, memory, hooks_.park),
      manifest_(std::make_unique<SnapshotManifest>()),
      began_ms_(now_ms()),
      said_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!said_) {
    throw Error(ErrorCode::kIo,
                fmt::format("no descriptor for a snapshot: {}", std::strerror(errno)));
  }
  facts_.directory = directory_;
  snapshot::describe_segments(memory_.layout(), *manifest_);
  loop_.watch(said_.get(), [this] { guarded([this] { on_word(); }); });
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::exception& error) {
    // Nobody destroys what was not made.
    loop_.unwatch(said_.get());
    throw Error(ErrorCode::kNoMemory,
                fmt::format("snapshot {}: no thread to write it: {}", directory_, error.what()));
  }
}

// What is being handled, as an error of this snapshot; also when there is no memory to say so.
Error SnapshotTask::failure() const noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return error;
    } catch (const std::bad_alloc&) {
      return {ErrorCode::kNoMemory, fmt::format("snapshot {}: no memory for it", directory_)};
    } catch (const std::exception& error) {
      return {ErrorCode::kIo, fmt::format("snapshot {}: {}", directory_, error.what())};
    }
  } catch (...) {
    return {ErrorCode::kNoMemory, "no memory"};  // so short that it needs none
  }
}

// Whatever goes wrong is the answer: lanes that stand still for it go on, and so does the feed.
void SnapshotTask::guarded(const std::function<void()>& part) {
  std::optional<Error> error;
  try {
    return part();
  } catch (...) {
    error.emplace(failure());
  }
  finish(std::move(error));
}

SnapshotTask::~SnapshotTask() {
  loop_.unwatch(said_.get());
  give_up();
  thread_.join();
}

void SnapshotTask::give_up() {
  over_ = true;
  go_on();
  {
    const std::lock_guard lock(mutex_);
    // relaxed: the lock orders it for whoever waits; a copy under way looks at it now and then.
    given_up_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

std::optional<metrics::Progress> SnapshotTask::progress() const {
  if (over_) return std::nullopt;
  metrics::Progress progress;
  progress.name = "snapshot";
  // relaxed, all: numbers to look at.
  switch (part_.load(std::memory_order_relaxed)) {
    case Part::kCopying:
      progress.total = looks_.total.load(std::memory_order_relaxed);
      progress.done = std::min(looks_.done.load(std::memory_order_relaxed), progress.total);
      progress.text =
          fmt::format("copied {} of {}", shown_bytes(progress.done), shown_bytes(progress.total));
      break;
    case Part::kFollowing:
      progress.text = "copying what has changed meanwhile";
      break;
    case Part::kSaving:
      progress.text = "waiting for the disk";
      break;
  }
  return progress;
}

bool SnapshotTask::ended_within(std::uint64_t ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return thread_over_; });
}

// ---- the thread

void SnapshotTask::say(Word word) {
  {
    const std::lock_guard lock(mutex_);
    from_thread_ = word;
    thread_over_ = word == Word::kDone;
  }
  if (word == Word::kDone) changed_.notify_all();
  const std::uint64_t one = 1;
  (void)!::write(said_.get(), &one, sizeof one);
}

bool SnapshotTask::await(Word word) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return to_thread_ == word || given_up_.load(std::memory_order_relaxed); });
  return to_thread_ == word;
}

// The last word is said in any case: with it the next snapshot may begin.
void SnapshotTask::work() noexcept {
  try {
    write();
  } catch (...) {
    failure_.emplace(failure());
  }
  say(Word::kDone);
}

void SnapshotTask::write() {
  snapshot::Store store(directory_);
  for (const layout::SegmentPlan& segment : memory_.layout().segments) {
    store.add(segment.spec.name, memory_.fd(segment.id));
  }
  store.count_in(looks_);
  snapshot::Changes changes(memory_);
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax);
  std::exception_ptr early;
  // Everything once, giving way to lanes and trainers.
  std::thread polite([&] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
    try {
      store.make_room(kRoomBytesMin);
      changes.order(given_up_);
      store.copy(1, given_up_, changes.look());
    } catch (...) {
      early = std::current_exception();
    }
  });
  polite.join();
  if (early) std::rethrow_exception(early);
  part_.store(Part::kFollowing, std::memory_order_relaxed);  // relaxed: to be looked at
  // In earnest from here on: what is done more slowly than lanes change it has no end.
  std::uint64_t before = ~std::uint64_t{0};
  for (int pass = 1; pass < kPassesMax; ++pass) {
    changes.order(given_up_);
    const std::uint64_t changed = store.copy(cores, given_up_, changes.look());
    if (changed < kRestBytes || changed > before - before / 8) break;
    // Before the next pass: what that takes would lengthen the time until lanes stand still.
    store.make_room(std::min(changed, kRoomBytesMax));
    before = changed;
  }
  say(Word::kCopied);
  if (!await(Word::kRest)) return;
  snapshot::Look look = changes.look();
  for (std::size_t i = 0; i < small_.size(); ++i) {
    if (!small_[i].empty()) look[i].emplace();  // no page of it
  }
  store.copy_to_room(cores, given_up_, look);
  facts_.bytes = store.bytes();
  RF_FAILPOINT("supervisor.snapshot.copied");
  say(Word::kRestCopied);
  if (!await(Word::kPublish)) return;
  part_.store(Part::kSaving, std::memory_order_relaxed);  // relaxed: to be looked at
  store.write_kept();
  for (std::size_t i = 0; i < small_.size(); ++i) {
    if (!small_[i].empty()) store.put(i, std::move(small_[i]));
  }
  RF_FAILPOINT("supervisor.snapshot.publishing");
  store.publish(*manifest_);
}

// ---- the loop

void SnapshotTask::on_word() {
  std::uint64_t count = 0;
  (void)!::read(said_.get(), &count, sizeof count);
  Word word;
  {
    const std::lock_guard lock(mutex_);
    word = std::exchange(from_thread_, Word::kNothing);
  }
  if (word == Word::kDone) {
    finish(std::move(failure_));
    // Out of here: it may destroy this object and its hooks.
    const auto ended = std::move(hooks_.ended);
    return ended();
  }
  if (over_) return;
  if (word == Word::kCopied) return park();
  if (word == Word::kRestCopied) {
    for (std::uint32_t lane = 0; lane < commits_.size(); ++lane) {
      // relaxed: at_rest() has ordered it.
      if (parking_.at_rest(lane) &&
          memory_.lane(lane).commit.load(std::memory_order_relaxed) == commits_[lane]) {
        continue;
      }
      return finish(
          Error(ErrorCode::kIo,
                fmt::format("snapshot {}: lane {} kept running while it was taken: try again",
                            directory_, memory_.layout().lanes[lane].name())));
    }
    go_on();
    {
      const std::lock_guard lock(mutex_);
      to_thread_ = Word::kPublish;
    }
    changed_.notify_all();
  }
}

void SnapshotTask::park() {
  parking_.begin([this](const std::optional<Error>& error) {
    guarded([this, &error] {
      if (error) {
        throw Error(error->code(), fmt::format("snapshot {}: {}", directory_, error->message()));
      }
      RF_FAILPOINT("supervisor.snapshot.parked");
      copy_small();
    });
  });
}

void SnapshotTask::copy_small() {
  const layout::FeedLayout& layout = memory_.layout();
  commits_.clear();
  for (const layout::LanePlan& plan : layout.lanes) {
    // relaxed: at_rest() has ordered it.
    commits_.push_back(memory_.lane(plan.index).commit.load(std::memory_order_relaxed));
  }
  small_.resize(layout.segments.size());
  for (const layout::SegmentPlan& segment : layout.segments) {
    if (!is_small(segment.spec.kind)) continue;
    // Word by word: trainers may claim batches at this moment, each by one store.
    const std::span<const std::byte> bytes = memory_.bytes(segment.id);
    std::vector<std::byte>& copy = small_[segment.id];
    copy.resize(bytes.size());
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const auto* word = reinterpret_cast<const std::atomic<std::uint64_t>*>(bytes.data() + at);
      // relaxed: no word depends on another one that a trainer writes.
      const std::uint64_t value = word->load(std::memory_order_relaxed);
      std::memcpy(copy.data() + at, &value, sizeof value);
    }
  }
  facts_.newest_batch = memory_.output().newest_batch();
  manifest_->set_newest_batch(facts_.newest_batch);
  hooks_.describe(*manifest_, small_);
  {
    const std::lock_guard lock(mutex_);
    to_thread_ = Word::kRest;
  }
  changed_.notify_all();
}

void SnapshotTask::go_on() {
  const std::uint64_t pause_us = parking_.end();
  if (pause_us != 0) facts_.pause_us = pause_us;
}

void SnapshotTask::finish(std::optional<Error> error) {
  if (over_) return;
  give_up();
  facts_.total_ms = now_ms() - began_ms_;
  // Moved: what is told needs no memory.
  hooks_.done(error ? Result<Facts>(std::move(*error)) : Result<Facts>(std::move(facts_)));
}

}  // namespace ringfeed::process
