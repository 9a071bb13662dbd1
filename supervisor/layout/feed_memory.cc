#include "supervisor/layout/feed_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "ringfeed/shm/bell.h"

namespace ringfeed::layout {
namespace {

// A second description of the same file, which cannot be mapped for writing.
shm::Fd open_reader(int fd, const std::string& name) {
  shm::Fd reader(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader) {
    throw Error(ErrorCode::kIo, fmt::format("segment {}: cannot be opened for reading: {}", name,
                                            std::strerror(errno)));
  }
  return reader;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

FeedMemory::FeedMemory(FeedLayout layout, const shm::Storage& storage,
                       const shm::FeedIdentity& identity)
    : layout_(std::move(layout)), identity_(identity) {
  const auto undo = [this] {
    for (const std::string& file : files_) ::unlink(file.c_str());
  };
  mappings_.resize(layout_.segments.size());
  try {
    for (const SegmentPlan& segment : layout_.segments) {
      fds_.push_back(shm::create_segment(segment.spec, storage, identity_).value_or_throw());
      const int fd = fds_.back().get();
      if (!storage.directory.empty()) files_.push_back(path_of(fd));
      shm::Mapping& mapping = mappings_[segment.id];
      switch (segment.spec.kind) {
        case shm::SegmentKind::kControl:
        case shm::SegmentKind::kFeedControl:
        case shm::SegmentKind::kGroup:
          mapping = shm::map_segment(fd, true).value_or_throw();
          break;
        case shm::SegmentKind::kRing:
          mapping = shm::map_segment(fd, false, 0, shm::kPageBytes).value_or_throw();
          break;
        case shm::SegmentKind::kHeads:
          mapping = shm::map_segment(fd, false).value_or_throw();
          break;
        case shm::SegmentKind::kArena:
        case shm::SegmentKind::kPayload:
          break;
      }
    }
    // Kept for the life of the feed: closing a description of the control segment would drop the
    // POSIX lock that this process holds on it.
    control_reader_ = open_reader(fd(0), layout_.segments[0].spec.name);
    feed_control_reader_ = open_reader(fd(layout_.feed_control_segment), "feed control");
    payload_reader_ = open_reader(fd(layout_.payload_segment), "payload");
  } catch (...) {
    undo();
    throw;
  }
}

FeedMemory::~FeedMemory() {
  for (const std::string& file : files_) ::unlink(file.c_str());
}

std::vector<int> FeedMemory::trainer_fds(std::uint32_t g) const {
  return {control_reader_.get(), feed_control_reader_.get(), fd(layout_.group_segments[g]),
          payload_reader_.get()};
}

shm::FeedState& FeedMemory::state() const {
  return *reinterpret_cast<shm::FeedState*>(mappings_[0].data() + shm::kFeedStateOffset);
}
shm::LanePage& FeedMemory::lane(std::uint32_t index) const {
  return *reinterpret_cast<shm::LanePage*>(mappings_[0].data() + shm::lane_page_offset(index));
}
shm::GroupPage& FeedMemory::group(std::uint32_t g) const {
  return *reinterpret_cast<shm::GroupPage*>(mappings_[layout_.group_segments[g]].data() +
                                            shm::kPageBytes);
}
const shm::ProducerLine& FeedMemory::producer(std::uint32_t number) const {
  return reinterpret_cast<const shm::ProducerLine*>(mappings_[layout_.feed_control_segment].data() +
                                                    shm::kProducerLinesOffset)[number];
}
const shm::Descriptor& FeedMemory::descriptor(std::uint64_t batch) const {
  return reinterpret_cast<const shm::Descriptor*>(
      mappings_[layout_.feed_control_segment].data() +
      shm::descriptors_offset(layout_.output.lanes))[batch % layout_.output.descriptors];
}
const shm::TailLine& FeedMemory::tail(const RingPlan& ring) const {
  return *reinterpret_cast<const shm::TailLine*>(mappings_[ring.segment].data() +
                                                 shm::kTailLineOffset);
}
const shm::HeadLine& FeedMemory::head(const RingPlan& ring) const {
  return reinterpret_cast<const shm::HeadLine*>(mappings_[ring.heads_segment].data() +
                                                shm::kHeadLinesOffset)[ring.head_index];
}

void FeedMemory::ring_lane(std::uint32_t index) const noexcept {
  auto* bells =
      reinterpret_cast<shm::Bell*>(mappings_[0].data() + shm::bells_offset(layout_.lanes.size()));
  shm::ring(bells[index].rings);
}
void FeedMemory::ring_sleepers() const noexcept {
  for (const LanePlan& lane_plan : layout_.lanes) {
    // seq_cst, pairs with the sleeper's store of waiting (bell.h).
    if (lane(lane_plan.index).waiting.load(std::memory_order_seq_cst) != 0) {
      ring_lane(lane_plan.index);
    }
  }
}
void FeedMemory::ring_all_lanes() const noexcept {
  for (const LanePlan& lane_plan : layout_.lanes) ring_lane(lane_plan.index);
}
void FeedMemory::ring_producers() const noexcept {
  for (const std::uint32_t index : layout_.producing_lanes) ring_lane(index);
}
void FeedMemory::ring_feed() const noexcept {
  shm::ring(reinterpret_cast<shm::Bell*>(mappings_[layout_.feed_control_segment].data() +
                                         shm::kFeedBellOffset)
                ->rings);
}
void FeedMemory::ring_group(std::uint32_t g) const noexcept { shm::ring(group(g).bell); }

void FeedMemory::set_phase(shm::FeedPhase phase, const std::string& reason) const {
  shm::FeedState& feed = state();
  if (!reason.empty()) {
    const std::size_t bytes = std::min(reason.size(), sizeof feed.reason - 1);
    std::memcpy(feed.reason, reason.data(), bytes);
    feed.reason[bytes] = '\0';
    feed.reason_bytes = static_cast<std::uint32_t>(bytes);
  }
  // release: whoever reads the phase with acquire sees the reason.
  feed.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_release);
  ring_feed();
}

void FeedMemory::set_desire(std::uint32_t index, shm::LaneDesire desire) const {
  // seq_cst, so that a lane that is about to sleep sees it or hears the bell below.
  lane(index).desired.store(static_cast<std::uint32_t>(desire), std::memory_order_seq_cst);
  ring_lane(index);
}

std::uint64_t FeedMemory::newest_batch() const {
  std::uint64_t newest = 0;
  for (std::uint32_t l = 0; l < layout_.output.lanes; ++l) {
    // acquire, pairs with the release of the carry-out: the descriptors up to it are stored.
    newest = std::max(newest, producer(l).newest.load(std::memory_order_acquire));
  }
  return newest;
}

bool FeedMemory::published(std::uint64_t batch) const {
  // acquire, pairs with the release of the publishing step's carry-out.
  return batch != 0 && descriptor(batch).seq.load(std::memory_order_acquire) == batch;
}

std::uint64_t FeedMemory::batches_published() const {
  std::uint64_t count = 0;
  for (std::uint32_t l = 0; l < layout_.output.lanes; ++l) {
    // relaxed: a count for people.
    const std::uint64_t newest = producer(l).newest.load(std::memory_order_relaxed);
    if (newest != 0) count += (newest - 1 - l) / layout_.output.lanes + 1;
  }
  return count;
}

bool FeedMemory::lane_finished(std::uint32_t index) const {
  // acquire, pairs with the lane's release: all that it ever stored is there.
  return lane(index).state.load(std::memory_order_acquire) ==
         static_cast<std::uint32_t>(shm::LaneState::kFinished);
}

bool FeedMemory::all_lanes_finished() const {
  return std::all_of(layout_.lanes.begin(), layout_.lanes.end(),
                     [this](const LanePlan& plan) { return lane_finished(plan.index); });
}

}  // namespace ringfeed::layout
