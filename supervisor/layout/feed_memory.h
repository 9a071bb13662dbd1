// The segments of a running feed: created, reserved, and mapped as far as the supervisor looks into
// them.
//
// Who writes what: the supervisor stores to FeedState, to the lanes of nodes, to `desired`,
// `crash_count`, `quarantine_key` and `generation` of lane pages, to the heads of consumer groups
// and to claim words of the dead; it rings any bell; everything else in here it only reads. A death
// of the supervisor leaves memfds alive for as long as workers and trainers map them, and files
// (storage.directory) until they are removed.
//
// Of a consumer group's page nothing is believed but what concerns that group alone: its members
// may write it. What the supervisor knows of a group is in its account (feed.h), which they cannot.
// Pages of groups are memfds also with storage.directory: a file could be truncated by them.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/node_lanes.h"
#include "ringfeed/shm/segment.h"
#include "ringfeed/shm/stamps.h"
#include "supervisor/layout/feed_layout.h"

namespace ringfeed::layout {

// The segments of a feed whose supervisor is dead, one descriptor each, in the layout's order.
struct FoundMemory {
  std::vector<shm::Fd> fds;
  shm::FeedIdentity identity;
  std::vector<std::string> files;
  bool is_copy = false;  // of a snapshot: nothing is lost with it
  // Segments of groups whose pages have died with all who had them: they are as the account says,
  // which may be a moment old.
  std::vector<std::uint32_t> made_anew = {};
};

// What marks the files of one feed among those in the directory, also of feeds of the same name:
// "@" and 16 digits, which no other feed has.
[[nodiscard]] std::string draw_file_mark();

// Gathers them: from their files if they have some, else from the processes that hold them (through
// /proc/PID/fd, by name, kind and feed). A group's page that no holder has any more, because all of
// them have died, comes from a member, of whose process only this one page is taken; or is made
// anew. Errors: kNotFound (one of them is not there: its file has
// gone, or no holder has it any more), kIncompatible (the layout is another one), kDamaged; kIo,
// kNoMemory: the system does not let us look, which says nothing about the segment.
[[nodiscard]] Result<FoundMemory> find_memory(const FeedLayout& layout, const shm::FeedId& feed,
                                              const std::vector<std::string>& files,
                                              const std::vector<pid_t>& holders);

// As many descriptors as this process may have: a feed of many lanes has many rings, each with one.
void raise_file_limit() noexcept;

class FeedMemory;

// What belongs to one output: its batches and its consumer groups. Lives in its FeedMemory.
class OutputMemory {
 public:
  OutputMemory(const FeedMemory& feed, std::uint32_t index) : feed_(&feed), index_(index) {}

  [[nodiscard]] const FeedMemory& feed() const { return *feed_; }
  [[nodiscard]] const OutputLayout& layout() const;
  // What a trainer of consumer group g gets, in the order of AttachReply: control, feed control and
  // payload opened for reading only, the group's segment for both.
  [[nodiscard]] std::vector<int> trainer_fds(std::uint32_t g) const;
  // The same for one that only looks: without a group.
  [[nodiscard]] std::vector<int> observer_fds() const;

  [[nodiscard]] shm::LanePage& lane(std::uint32_t index) const;
  [[nodiscard]] bool lane_finished(std::uint32_t index) const;
  // The page that the group's members may write.
  [[nodiscard]] shm::GroupPage& group(std::uint32_t g) const;
  // The supervisor's account of the group, which nobody else writes.
  [[nodiscard]] shm::GroupPage& account(std::uint32_t g) const;
  // Was the group's page made anew from its account?
  [[nodiscard]] bool made_anew(std::uint32_t g) const;
  // Are the bytes of a published batch those that were published? Asked while no lane is at work.
  [[nodiscard]] bool whole(std::uint64_t batch) const;
  // FeedState::replacing of this output.
  [[nodiscard]] std::atomic<std::uint32_t>& replacing() const;
  [[nodiscard]] const shm::ProducerLine& producer(std::uint32_t number) const;
  [[nodiscard]] const shm::Descriptor& descriptor(std::uint64_t batch) const;

  void ring_producers() const noexcept;
  // Trainers that wait for a batch.
  void ring_feed() const noexcept;
  void ring_group(std::uint32_t g) const noexcept;

  // Number of the newest batch that any lane has published; 0 before the first. It stands still
  // while only lanes that are behind go on.
  [[nodiscard]] std::uint64_t newest_batch() const;
  // How many numbers the lanes have used: as newest_batch() where they go on side by side, and one
  // more with each batch where they do not.
  [[nodiscard]] std::uint64_t numbers_used() const;
  // The batches that are described: published, and the last ones of their lanes. Lowest first.
  struct Described {
    std::array<std::uint64_t, shm::kDescriptorsMax> batches;
    std::size_t count = 0;
    [[nodiscard]] const std::uint64_t* begin() const { return batches.data(); }
    [[nodiscard]] const std::uint64_t* end() const { return batches.data() + count; }
  };
  [[nodiscard]] Described described() const;
  // Has every producing lane closed: is there nothing to come after the newest batch?
  [[nodiscard]] bool all_closed() const;
  // Published and still described.
  [[nodiscard]] bool published(std::uint64_t batch) const;
  [[nodiscard]] std::uint64_t batches_published() const;
  // The same of one of the lanes that write batches; those before the first one are nobody's.
  [[nodiscard]] std::uint64_t published_by(std::uint32_t number) const;

 private:
  [[nodiscard]] std::byte* feed_control() const;

  const FeedMemory* feed_;
  std::uint32_t index_;
};

class FeedMemory {
 public:
  // Throws Error (kNoMemory, kIo); nothing is left behind then.
  FeedMemory(FeedLayout layout, const shm::Storage& storage, const shm::FeedIdentity& identity);
  // Takes over what is there. Throws Error (kIo, kNoMemory); files stay then, unless they are a
  // snapshot's copy.
  FeedMemory(FeedLayout layout, FoundMemory found);
  ~FeedMemory();
  // Do the files go with this object? Those that it has made do, those that it has found do not.
  void remove_files(bool removes) { removes_files_ = removes; }
  FeedMemory(const FeedMemory&) = delete;
  FeedMemory& operator=(const FeedMemory&) = delete;

  [[nodiscard]] const FeedLayout& layout() const { return layout_; }
  [[nodiscard]] const shm::FeedIdentity& identity() const { return identity_; }
  [[nodiscard]] int fd(std::uint32_t segment) const { return fds_[segment].get(); }
  [[nodiscard]] OutputMemory output(std::uint32_t index = 0) const { return {*this, index}; }
  // The files of the segments, if they have names.
  [[nodiscard]] std::vector<std::string> files() const { return files_; }

  // What the supervisor has mapped of a segment.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint32_t segment) const;
  [[nodiscard]] shm::FeedState& state() const;
  [[nodiscard]] shm::LanePage& lane(std::uint32_t index) const;
  // The lanes of a node (NodeLayout), and another number of them; while all lanes stand still.
  [[nodiscard]] shm::NodeLanes node_lanes(std::uint32_t node) const;
  void set_node_lanes(std::uint32_t node, const shm::NodeLanes& lanes) const;
  [[nodiscard]] const shm::TailLine& tail(const RingPlan& ring) const;
  [[nodiscard]] const shm::HeadLine& head(const RingPlan& ring) const;
  // Of the pages of the lane's arena (page p: stamp p mod their number), and of its slots
  // (stamps.h).
  [[nodiscard]] std::span<const shm::Stamp> page_stamps(std::uint32_t lane) const;
  [[nodiscard]] std::span<const shm::Stamp> slot_stamps(std::uint32_t lane) const;

  void ring_lane(std::uint32_t index) const noexcept;
  // Every lane that has said that it sleeps: after a death nobody else may come to wake it.
  void ring_sleepers() const noexcept;
  void ring_all_lanes() const noexcept;

  // The reason first, then the phase; everyone who waits is woken.
  void set_phase(shm::FeedPhase phase, const std::string& reason) const;
  void set_desire(std::uint32_t lane, shm::LaneDesire desire) const;
  void order_park(std::uint32_t lane, std::uint64_t ticket) const;
  // All lanes are to stamp with a newer generation from their next step on. Returns it.
  std::uint32_t order_generation() const;

  // Of all outputs.
  [[nodiscard]] std::uint64_t batches_published() const;
  [[nodiscard]] bool lane_finished(std::uint32_t index) const;
  [[nodiscard]] bool all_lanes_finished() const;

  // The process that holds the worker lock of a stage group; 0: none. Throws Error (kIo) if that
  // cannot be found out.
  [[nodiscard]] pid_t lock_holder(std::uint32_t group) const;

 private:
  friend class OutputMemory;
  void map_segment(std::uint32_t id);
  [[nodiscard]] shm::NodeLanesWords* node_lanes_words() const;
  void open_readers();
  void begin_output(const OutputLayout& output);

  FeedLayout layout_;
  shm::FeedIdentity identity_;
  std::vector<shm::Fd> fds_;
  std::vector<shm::Mapping> mappings_;  // by segment; empty where the supervisor does not look
  shm::Fd control_reader_;
  // Opened anew for trainers of each output: the groups' pages for writing, too.
  struct Readers {
    shm::Fd feed_control;
    shm::Fd payload;
    std::vector<shm::Fd> groups;
  };
  std::vector<Readers> readers_;
  std::vector<std::string> files_;
  std::vector<std::uint32_t> made_anew_;
  bool removes_files_ = true;
};

}  // namespace ringfeed::layout
