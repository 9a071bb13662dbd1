#include "supervisor/layout/feed_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>

#include "ringfeed/shm/bell.h"
#include "ringfeed/shm/failpoint.h"
#include "ringfeed/shm/file.h"
#include "supervisor/os/identity.h"

namespace ringfeed::layout {
namespace {

std::string proc_fd(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// A second description of the same file, for trainers: with flags of its own, and never the only
// one, so that no lease can be taken by it. O_RDONLY: it cannot be mapped for writing.
shm::Fd open_anew(int fd, int mode, const std::string& name) {
  shm::Fd second(::open(proc_fd(fd).c_str(), mode | O_CLOEXEC));
  if (!second) {
    throw Error(ErrorCode::kIo, fmt::format("segment {}: cannot be opened for trainers: {}", name,
                                            std::strerror(errno)));
  }
  return second;
}

// What a link below /proc names; "" if it is gone.
Result<std::string> link_target(const std::string& link) {
  char path[PATH_MAX];
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  if (length > 0) return std::string(path, static_cast<std::size_t>(length));
  if (errno == ENOENT || errno == ESRCH) return std::string();
  return Error{ErrorCode::kIo, fmt::format("{}: {}", link, std::strerror(errno))};
}

// How the kernel calls a memfd: this, its name, " (deleted)".
constexpr std::string_view kMemfd = "/memfd:";

// Where the memfds of a process may be opened, by name; nothing if it has ended.
Status find_memfds(pid_t holder, std::map<std::string, std::string>& places) {
  const std::string directory = fmt::format("/proc/{}/fd", holder);
  const Result<std::vector<std::string>> names = shm::names_in(directory);
  if (!names) return names.error().code() == ErrorCode::kNotFound ? Status() : names.error();
  for (const std::string& name : *names) {
    const std::string place = directory + '/' + name;
    const Result<std::string> target = link_target(place);
    if (!target) return target.error();
    if (!target->starts_with(kMemfd)) continue;
    places.emplace(target->substr(kMemfd.size(), target->rfind(' ') - kMemfd.size()), place);
  }
  return {};
}

constexpr std::size_t kMarkBytes = 17;

// The name of the segment that lies in a file.
std::string name_in(const std::string& file) {
  std::string name = std::filesystem::path(file).filename().string();
  if (name.size() > kMarkBytes && name[name.size() - kMarkBytes] == '@') {
    name.resize(name.size() - kMarkBytes);
  }
  return name;
}

// The segment's file, for reading and writing. Errors: kNotFound (it is gone, or never was), kIo.
Result<shm::Fd> open_place(const std::map<std::string, std::string>& places,
                           const std::string& name) {
  const auto place = places.find(shm::segment_file_name(name));
  if (place == places.end()) {
    return Error{ErrorCode::kNotFound, fmt::format("segment {}: no process holds it", name)};
  }
  if (RF_FAILPOINT_ERROR("supervisor.adoption.open")) {
    return Error{ErrorCode::kIo, fmt::format("segment {}: a test wants no descriptor", name)};
  }
  // O_NONBLOCK: there is no lease to wait for (segment.cc), and if there were one, it would be
  // somebody's who means harm.
  shm::Fd fd(::open(place->second.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (fd) return fd;
  const bool gone = errno == ENOENT || errno == ESRCH;
  return Error{gone ? ErrorCode::kNotFound : ErrorCode::kIo,
               fmt::format("segment {} cannot be opened as {}: {}", name, place->second,
                           std::strerror(errno))};
}

// Is it a memfd of that size, which nobody can change any more? All that can be said of memory that
// others may write.
bool is_sealed(int fd, std::uint64_t bytes) {
  struct stat info {};
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
  return ::fstat(fd, &info) == 0 && static_cast<std::uint64_t>(info.st_size) == bytes &&
         ::fcntl(fd, F_GET_SEALS) == kSeals;
}

// A group's page, from a member of it that lives: of no other process, and nothing else of his.
// Empty if no member has it.
Result<shm::Fd> page_of_members(const shm::GroupPage& account, const SegmentPlan& segment) {
  // relaxed, here and below: their writer is dead.
  if (account.head.state.load(std::memory_order_relaxed) ==
      static_cast<std::uint32_t>(shm::GroupState::kUnused)) {
    return shm::Fd();
  }
  for (const shm::Member& member : account.members) {
    if (member.state.load(std::memory_order_relaxed) ==
        static_cast<std::uint32_t>(shm::MemberState::kFree)) {
      continue;
    }
    const process::Identity who{static_cast<pid_t>(member.pid), member.start_ticks};
    if (who.pid == 0 || !process::is_alive(who)) continue;
    std::map<std::string, std::string> places;
    if (Status looked = find_memfds(who.pid, places); !looked) return looked.error();
    const auto place = places.find(shm::segment_file_name(segment.spec.name));
    if (place == places.end()) continue;
    // O_NONBLOCK: a lease of the member's on it is nothing to wait for.
    shm::Fd fd(::open(place->second.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (fd && is_sealed(fd.get(), segment.spec.bytes)) return fd;
    if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
      return Error{ErrorCode::kIo,
                   fmt::format("segment {} cannot be opened as {}: {}", segment.spec.name,
                               place->second, std::strerror(errno))};
    }
  }
  return shm::Fd();
}

// The accounts of all groups, by the segment of each.
std::map<std::uint32_t, const shm::GroupPage*> find_accounts(const FeedLayout& layout,
                                                             const shm::Mapping& control) {
  std::map<std::uint32_t, const shm::GroupPage*> accounts;
  for (const OutputLayout& output : layout.outputs) {
    for (std::uint32_t g = 0; g < shm::kGroupsMax; ++g) {
      accounts[output.group_segments[g]] = reinterpret_cast<const shm::GroupPage*>(
          control.data() + shm::account_offset(layout.lanes.size(), output.index, g));
    }
  }
  return accounts;
}

// A group's page as its account says.
Status write_page(int fd, const shm::GroupPage& account) {
  Result<shm::Mapping> mapping = shm::map_segment(fd, true);
  if (!mapping) return mapping.error();
  // Nobody else has either of them.
  std::memcpy(static_cast<void*>(mapping->data() + shm::kPageBytes), &account, sizeof account);
  return {};
}

}  // namespace

Result<FoundMemory> find_memory(const FeedLayout& layout, const shm::FeedId& feed,
                                const std::vector<std::string>& files,
                                const std::vector<pid_t>& holders) {
  FoundMemory found;
  found.identity.feed_id = feed;
  found.files = files;
  // Where each segment may be opened.
  std::map<std::string, std::string> places;
  for (const std::string& file : files) places.emplace(name_in(file), file);
  for (const pid_t holder : holders) {
    if (Status looked = find_memfds(holder, places); !looked) return looked.error();
  }
  shm::Mapping control;
  std::map<std::uint32_t, const shm::GroupPage*> accounts;
  for (const SegmentPlan& segment : layout.segments) {
    const std::string& name = segment.spec.name;
    Result<shm::Fd> opened = open_place(places, name);
    if (stays_in_memory(segment.spec.kind)) {
      // Its header says nothing: members may write it.
      if (opened && !is_sealed(opened->get(), segment.spec.bytes)) {
        return Error{
            ErrorCode::kIncompatible,
            fmt::format("segment {} is not sealed memory of {} bytes", name, segment.spec.bytes)};
      }
      const auto account = accounts.find(segment.id);
      const bool all_dead = !opened && opened.error().code() == ErrorCode::kNotFound &&
                            holders.empty() && !files.empty();
      if (all_dead && account != accounts.end()) {
        opened = page_of_members(*account->second, segment);
      } else if (all_dead) {
        opened = shm::Fd();
      }
      if (!opened) return opened.error();
      if (!*opened) {
        opened = shm::create_segment(segment.spec, {}, found.identity);
        if (!opened) return opened.error();
        if (account != accounts.end()) {
          if (Status made = write_page(opened->get(), *account->second); !made) return made.error();
          found.made_anew.push_back(segment.id);
        }
      }
      found.fds.push_back(std::move(*opened));
      continue;
    }
    if (!opened) return opened.error();
    shm::Fd& fd = *opened;
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) {
      return Error{ErrorCode::kIo, fmt::format("segment {}: {}", name, std::strerror(errno))};
    }
    Result<shm::Mapping> mapping = shm::map_segment(fd.get(), false, 0, shm::kPageBytes);
    if (!mapping) return mapping.error();
    const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(mapping->data());
    if (segment.id == 0) found.identity.config_hash = header.config_hash;
    if (Status fits = shm::check_header(header, segment.spec.kind, &found.identity,
                                        static_cast<std::uint64_t>(info.st_size), name);
        !fits) {
      return fits.error();
    }
    const std::uint64_t bytes = shm::align_up(segment.spec.bytes, shm::kPageBytes);
    const bool sized =
        segment.spec.growable ? header.total_bytes >= bytes : header.total_bytes == bytes;
    if (!sized ||
        !std::equal(segment.spec.geometry.begin(), segment.spec.geometry.end(), header.geometry)) {
      return Error{ErrorCode::kIncompatible,
                   fmt::format("segment {} differs in size or shape from what this configuration "
                               "gives it ({} bytes, now {})",
                               name, header.total_bytes, bytes)};
    }
    if (segment.id == 0) {
      Result<shm::Mapping> whole = shm::map_segment(fd.get(), false);
      if (!whole) return whole.error();
      control = std::move(*whole);
      accounts = find_accounts(layout, control);
    }
    found.fds.push_back(std::move(fd));
  }
  return found;
}

std::string draw_file_mark() {
  const shm::FeedId random = shm::random_feed_id();
  std::string mark = "@";
  for (std::size_t i = 0; i < (kMarkBytes - 1) / 2; ++i) mark += fmt::format("{:02x}", random[i]);
  return mark;
}

void raise_file_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

void FeedMemory::map_segment(std::uint32_t id) {
  if (RF_FAILPOINT_ERROR("supervisor.memory.map")) {
    throw Error(ErrorCode::kNoMemory, fmt::format("segment {}: a test wants it not to be mapped",
                                                  layout_.segments[id].spec.name));
  }
  const int fd = fds_[id].get();
  shm::Mapping& mapping = mappings_[id];
  switch (layout_.segments[id].spec.kind) {
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
    case shm::SegmentKind::kPayload:
      mapping = shm::map_segment(fd, false, 0, shm::kPageBytes).value_or_throw();
      break;
    case shm::SegmentKind::kArena:
    case shm::SegmentKind::kLocks:
      break;
  }
}

void FeedMemory::open_readers() {
  control_reader_ = open_anew(fd(0), O_RDONLY, layout_.segments[0].spec.name);
  for (const OutputLayout& output : layout_.outputs) {
    Readers& readers = readers_.emplace_back();
    readers.feed_control = open_anew(fd(output.feed_control_segment), O_RDONLY, "feed control");
    readers.payload = open_anew(fd(output.payload_segment), O_RDONLY, "payload");
    for (const std::uint32_t group : output.group_segments) {
      readers.groups.push_back(open_anew(fd(group), O_RDWR, "group"));
    }
  }
}

FeedMemory::FeedMemory(FeedLayout layout, const shm::Storage& storage,
                       const shm::FeedIdentity& identity)
    : layout_(std::move(layout)), identity_(identity) {
  mappings_.resize(layout_.segments.size());
  try {
    for (const SegmentPlan& segment : layout_.segments) {
      const bool named = !storage.directory.empty() && !stays_in_memory(segment.spec.kind);
      fds_.push_back(shm::create_segment(segment.spec, named ? storage : shm::Storage(), identity_)
                         .value_or_throw());
      if (named)
        files_.push_back(storage.directory + "/" + shm::segment_file_name(segment.spec.name) +
                         storage.mark);
      map_segment(segment.id);
    }
    open_readers();
    for (std::uint32_t node = 0; node < layout_.nodes.size(); ++node) {
      const std::uint32_t lanes = layout_.nodes[node].lanes;
      set_node_lanes(node, {.before = lanes, .now = lanes});
    }
    for (const OutputLayout& output : layout_.outputs) begin_output(output);
  } catch (...) {
    for (const std::string& file : files_) ::unlink(file.c_str());
    throw;
  }
}

// As if the batches before the first one had been published, and given up: the lanes number what
// comes behind them, and groups begin there. Nobody else has the memory yet.
void FeedMemory::begin_output(const OutputLayout& output) {
  const std::uint64_t before = layout_.first_batch - 1;
  const std::uint32_t lanes = output.geometry.lanes;
  auto* const lines = reinterpret_cast<shm::ProducerLine*>(
      mappings_[output.feed_control_segment].data() + shm::kProducerLinesOffset);
  for (std::uint32_t l = 0; l < lanes && before != 0; ++l) {
    // relaxed, both: the workers get the memory later, by a message.
    if (before > l) {
      lines[l].newest.store(before - (before - 1 - l) % lanes, std::memory_order_relaxed);
    }
    lane(output.producing_lanes[l]).retire.store(layout_.first_batch, std::memory_order_relaxed);
  }
}

FeedMemory::FeedMemory(FeedLayout layout, FoundMemory found)
    : layout_(std::move(layout)),
      identity_(found.identity),
      fds_(std::move(found.fds)),
      files_(std::move(found.files)),
      made_anew_(std::move(found.made_anew)),
      removes_files_(found.is_copy) {
  mappings_.resize(layout_.segments.size());
  for (const SegmentPlan& segment : layout_.segments) map_segment(segment.id);
  open_readers();
}

FeedMemory::~FeedMemory() {
  if (!removes_files_) return;
  for (const std::string& file : files_) ::unlink(file.c_str());
}

std::span<const std::byte> FeedMemory::bytes(std::uint32_t segment) const {
  return {mappings_[segment].data(), mappings_[segment].bytes()};
}

shm::FeedState& FeedMemory::state() const {
  return *reinterpret_cast<shm::FeedState*>(mappings_[0].data() + shm::kFeedStateOffset);
}
shm::LanePage& FeedMemory::lane(std::uint32_t index) const {
  return *reinterpret_cast<shm::LanePage*>(mappings_[0].data() + shm::lane_page_offset(index));
}
shm::NodeLanesWords* FeedMemory::node_lanes_words() const {
  return reinterpret_cast<shm::NodeLanesWords*>(mappings_[0].data() + shm::kNodeLanesOffset);
}
shm::NodeLanes FeedMemory::node_lanes(std::uint32_t node) const {
  return shm::load(node_lanes_words()[node]);
}
// Published by the store of the desire that lets the lanes go on, or by the start of their process.
void FeedMemory::set_node_lanes(std::uint32_t node, const shm::NodeLanes& lanes) const {
  shm::store(node_lanes_words()[node], lanes);
}
const shm::TailLine& FeedMemory::tail(const RingPlan& ring) const {
  return *reinterpret_cast<const shm::TailLine*>(mappings_[ring.segment].data() +
                                                 shm::kTailLineOffset);
}
const shm::HeadLine& FeedMemory::head(const RingPlan& ring) const {
  return reinterpret_cast<const shm::HeadLine*>(mappings_[ring.heads_segment].data() +
                                                shm::kHeadLinesOffset)[ring.head_index];
}

std::span<const shm::Stamp> FeedMemory::page_stamps(std::uint32_t index) const {
  const SegmentPlan& heads = layout_.segments[layout_.lanes[index].heads_segment];
  return {reinterpret_cast<const shm::Stamp*>(mappings_[heads.id].data() +
                                              shm::stamps_offset(heads.spec.geometry[0])),
          heads.spec.geometry[1]};
}
std::span<const shm::Stamp> FeedMemory::slot_stamps(std::uint32_t index) const {
  const OutputLayout* output = layout_.output_of(layout_.lanes[index]);
  const SegmentPlan& heads = layout_.segments[layout_.lanes[index].heads_segment];
  return {page_stamps(index).data() + heads.spec.geometry[1],
          output == nullptr ? 0 : output->geometry.slots / output->geometry.lanes};
}

void FeedMemory::ring_lane(std::uint32_t index) const noexcept {
  auto* bells =
      reinterpret_cast<shm::Bell*>(mappings_[0].data() + shm::bells_offset(layout_.lanes.size()));
  shm::ring(bells[index].rings);
}
// Modelled in tests/model/wakeup.pml.
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
void FeedMemory::set_phase(shm::FeedPhase phase, const std::string& reason) const {
  shm::FeedState& feed = state();
  if (!reason.empty()) {
    // Of a long one the end too: it has what was raised at the bottom of a traceback.
    constexpr std::string_view kGap = " [...] ";
    constexpr std::size_t kRoom = sizeof feed.reason - 1;
    std::string text = reason;
    if (text.size() > kRoom) {
      constexpr std::size_t kEnd = (kRoom - kGap.size()) / 2;
      text = reason.substr(0, kRoom - kGap.size() - kEnd);
      text += kGap;
      text += reason.substr(reason.size() - kEnd);
    }
    const std::size_t bytes = text.size();
    std::memcpy(feed.reason, text.data(), bytes);
    feed.reason[bytes] = '\0';
    feed.reason_bytes = static_cast<std::uint32_t>(bytes);
  }
  // release: whoever reads the phase with acquire sees the reason.
  feed.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_release);
  for (std::uint32_t i = 0; i < layout_.outputs.size(); ++i) output(i).ring_feed();
}

// Modelled in tests/model/wakeup.pml.
void FeedMemory::set_desire(std::uint32_t index, shm::LaneDesire desire) const {
  // seq_cst, so that a lane that is about to sleep sees it or hears the bell below.
  lane(index).desired.store(static_cast<std::uint32_t>(desire), std::memory_order_seq_cst);
  ring_lane(index);
}

void FeedMemory::order_park(std::uint32_t index, std::uint64_t ticket) const {
  // relaxed: published by the store of the desire.
  lane(index).park_ticket.store(ticket, std::memory_order_relaxed);
  set_desire(index, shm::LaneDesire::kPark);
}

std::uint32_t FeedMemory::order_generation() const {
  std::uint32_t generation = 1;
  for (const LanePlan& plan : layout_.lanes) {
    // relaxed: written by supervisors only.
    generation =
        std::max(generation, lane(plan.index).generation.load(std::memory_order_relaxed) + 1);
  }
  for (const LanePlan& plan : layout_.lanes) {
    // seq_cst, so that a lane that is about to sleep sees it or hears the bell below.
    lane(plan.index).generation.store(generation, std::memory_order_seq_cst);
    ring_lane(plan.index);
  }
  return generation;
}

std::uint64_t FeedMemory::batches_published() const {
  std::uint64_t count = 0;
  for (std::uint32_t i = 0; i < layout_.outputs.size(); ++i) count += output(i).batches_published();
  return count;
}

bool FeedMemory::lane_finished(std::uint32_t index) const {
  // acquire, pairs with the lane's release: all that it ever stored is there.
  return lane(index).state.load(std::memory_order_acquire) ==
         static_cast<std::uint32_t>(shm::LaneState::kFinished);
}

pid_t FeedMemory::lock_holder(std::uint32_t group) const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = group + 1;
  lock.l_len = 1;
  const auto unknown = [&](std::string_view why) {
    return Error(ErrorCode::kIo,
                 fmt::format("it is unknown who runs the lanes of stage group '{}': {}",
                             layout_.groups[group].name, why));
  };
  if (::fcntl(fd(layout_.locks_segment), F_GETLK, &lock) != 0) throw unknown(std::strerror(errno));
  if (lock.l_type == F_UNLCK) return 0;
  if (lock.l_pid <= 0) throw unknown("a process of another pid namespace");
  return lock.l_pid;
}

bool FeedMemory::all_lanes_finished() const {
  return std::all_of(layout_.lanes.begin(), layout_.lanes.end(),
                     [this](const LanePlan& plan) { return lane_finished(plan.index); });
}

const OutputLayout& OutputMemory::layout() const { return feed_->layout_.outputs[index_]; }

std::vector<int> OutputMemory::observer_fds() const {
  const FeedMemory::Readers& readers = feed_->readers_[index_];
  return {feed_->control_reader_.get(), readers.feed_control.get(), readers.payload.get()};
}

std::vector<int> OutputMemory::trainer_fds(std::uint32_t g) const {
  const FeedMemory::Readers& readers = feed_->readers_[index_];
  return {feed_->control_reader_.get(), readers.feed_control.get(), readers.groups[g].get(),
          readers.payload.get()};
}

shm::LanePage& OutputMemory::lane(std::uint32_t index) const { return feed_->lane(index); }
bool OutputMemory::lane_finished(std::uint32_t index) const { return feed_->lane_finished(index); }

shm::GroupPage& OutputMemory::group(std::uint32_t g) const {
  return *reinterpret_cast<shm::GroupPage*>(feed_->mappings_[layout().group_segments[g]].data() +
                                            shm::kPageBytes);
}
shm::GroupPage& OutputMemory::account(std::uint32_t g) const {
  return *reinterpret_cast<shm::GroupPage*>(
      feed_->mappings_[0].data() + shm::account_offset(feed_->layout_.lanes.size(), index_, g));
}
bool OutputMemory::made_anew(std::uint32_t g) const {
  const std::vector<std::uint32_t>& anew = feed_->made_anew_;
  return std::find(anew.begin(), anew.end(), layout().group_segments[g]) != anew.end();
}
bool OutputMemory::whole(std::uint64_t batch) const {
  const auto* given_up = reinterpret_cast<const std::atomic<std::uint64_t>*>(
      feed_->mappings_[layout().payload_segment].data() + shm::kGivenUpOffset);
  const shm::FeedGeometry& geometry = layout().geometry;
  const std::uint64_t lane_number = (batch - 1) % geometry.lanes;
  // relaxed, all: its lane does nothing now.
  const std::uint64_t newest =
      producer(static_cast<std::uint32_t>(lane_number)).newest.load(std::memory_order_relaxed);
  const std::uint64_t retired =
      lane(layout().producing_lanes[lane_number]).retire.load(std::memory_order_relaxed);
  // Its descriptor may have been written in part for the next batch.
  if (batch + geometry.descriptors == newest + geometry.lanes && batch < retired) return false;
  const std::uint32_t slot = descriptor(batch).slot;
  return slot < geometry.slots && given_up[slot].load(std::memory_order_relaxed) < batch;
}
std::atomic<std::uint32_t>& OutputMemory::replacing() const {
  return feed_->state().replacing[index_];
}
std::byte* OutputMemory::feed_control() const {
  return feed_->mappings_[layout().feed_control_segment].data();
}
const shm::ProducerLine& OutputMemory::producer(std::uint32_t number) const {
  return reinterpret_cast<const shm::ProducerLine*>(feed_control() +
                                                    shm::kProducerLinesOffset)[number];
}
const shm::Descriptor& OutputMemory::descriptor(std::uint64_t batch) const {
  const shm::FeedGeometry& geometry = layout().geometry;
  return reinterpret_cast<const shm::Descriptor*>(
      feed_control() + shm::descriptors_offset(geometry.lanes))[batch % geometry.descriptors];
}

void OutputMemory::ring_producers() const noexcept {
  for (const std::uint32_t index : layout().producing_lanes) feed_->ring_lane(index);
}
void OutputMemory::ring_feed() const noexcept {
  shm::ring(reinterpret_cast<shm::Bell*>(feed_control() + shm::kFeedBellOffset)->rings);
}
void OutputMemory::ring_group(std::uint32_t g) const noexcept { shm::ring(group(g).bell); }

std::uint64_t OutputMemory::newest_batch() const {
  std::uint64_t newest = 0;
  for (std::uint32_t l = 0; l < layout().geometry.lanes; ++l) {
    // acquire, pairs with the release of the carry-out: the descriptors up to it are stored.
    newest = std::max(newest, producer(l).newest.load(std::memory_order_acquire));
  }
  return newest;
}

std::uint64_t OutputMemory::numbers_used() const {
  const std::uint32_t lanes = layout().geometry.lanes;
  std::uint64_t count = 0;
  for (std::uint32_t l = 0; l < lanes; ++l) {
    // relaxed: a count; nothing is read because of it.
    const std::uint64_t newest = producer(l).newest.load(std::memory_order_relaxed);
    if (newest > l) count += (newest - 1 - l) / lanes + 1;
  }
  return count;
}

OutputMemory::Described OutputMemory::described() const {
  Described found;
  for (std::uint64_t i = 0; i < layout().geometry.descriptors; ++i) {
    // acquire, pairs with the release of the publishing step's carry-out.
    const std::uint64_t batch = descriptor(i).seq.load(std::memory_order_acquire);
    if (batch != 0) found.batches[found.count++] = batch;
  }
  std::sort(found.batches.begin(), found.batches.begin() + found.count);
  return found;
}

bool OutputMemory::all_closed() const {
  for (std::uint32_t l = 0; l < layout().geometry.lanes; ++l) {
    // acquire, pairs with the release of the carry-out: what it has published is seen.
    if (producer(l).closed.load(std::memory_order_acquire) == 0) return false;
  }
  return true;
}

bool OutputMemory::published(std::uint64_t batch) const {
  // acquire, pairs with the release of the publishing step's carry-out.
  return batch != 0 && descriptor(batch).seq.load(std::memory_order_acquire) == batch;
}

std::uint64_t OutputMemory::published_by(std::uint32_t number) const {
  const std::uint32_t lanes = layout().geometry.lanes;
  // Those of this lane among the first `count` of all.
  const auto among = [&](std::uint64_t count) {
    return count > number ? (count - 1 - number) / lanes + 1 : 0;
  };
  // relaxed: a count for people.
  const std::uint64_t newest = producer(number).newest.load(std::memory_order_relaxed);
  return among(newest) - std::min(among(newest), among(feed_->layout().first_batch - 1));
}

std::uint64_t OutputMemory::batches_published() const {
  std::uint64_t count = 0;
  for (std::uint32_t l = 0; l < layout().geometry.lanes; ++l) count += published_by(l);
  return count;
}

}  // namespace ringfeed::layout
