// What a feed consists of in memory: its lanes, the rings between them, the segments with their
// sizes. Computed from configuration and plan alone; nothing is created here.
//
// Lanes are numbered over the whole feed: stages as configured, their nodes as planned, the lanes
// of each node. An edge from a node of P lanes to a node of C lanes is P x C rings. Segment 0 is
// the control segment; a lane's head lines are numbered over its inputs in order, port by port,
// producing lane by producing lane. The last segment is that of the locks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ringfeed/shm/feed_producer.h"
#include "ringfeed/shm/ring.h"
#include "ringfeed/shm/segment.h"
#include "supervisor/config/grouping.h"
#include "supervisor/config/wiring.h"

namespace ringfeed {
class DataLoaderConfig;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::layout {

struct SegmentPlan {
  std::uint32_t id = 0;  // its place in FeedLayout::segments
  shm::SegmentSpec spec;
  std::uint64_t bytes_max = 0;  // an arena that may grow: up to here; else 0
  std::string part;             // its line in the memory table: "arena of sampler"
  std::string lever;            // what makes it smaller: "reservoir_size_per_thread of sampler"
};

// A memfd also with storage.directory: what members of a consumer group may write they could also
// truncate, if it were a file; and locks go with the processes that hold them.
constexpr bool stays_in_memory(shm::SegmentKind kind) {
  return kind == shm::SegmentKind::kGroup || kind == shm::SegmentKind::kLocks;
}

struct RingPlan {
  std::uint32_t segment = 0;
  std::uint32_t from_lane = 0;
  std::uint32_t to_lane = 0;
  std::uint32_t heads_segment = 0;  // of the consuming lane
  std::uint32_t head_index = 0;
  shm::RingGeometry geometry;
};

struct InputPlan {
  std::string port;
  std::uint32_t from_node = 0;
  std::vector<std::uint32_t> rings;  // places in FeedLayout::rings, by producing lane
  std::uint64_t block = 0;
  bool back = false;  // carries requests to an earlier stage
};

struct OutputPlan {
  std::string port;
  std::uint32_t to_node = 0;         // unless the output is the feed
  std::vector<std::uint32_t> rings;  // by consuming lane; none if the output is the feed
  std::uint64_t capacity_records = 0;
  shm::Overflow overflow = shm::Overflow::kBlock;
  std::uint64_t block = 0;  // of the consumer's input
  std::optional<std::uint32_t> feed =
      {};  // in FeedLayout::outputs, if its batches are for trainers
};

struct LanePlan {
  std::uint32_t index = 0;  // of its page
  std::uint32_t stage = 0;  // in DataLoaderConfig.stages
  std::string stage_name;
  std::string node;              // "": the stage itself
  std::uint32_t number = 0;      // among the lanes of its node
  std::uint32_t node_index = 0;  // in FeedLayout::nodes
  std::uint32_t group = 0;       // in FeedLayout::groups
  std::uint32_t arena_segment = 0;
  std::uint32_t heads_segment = 0;
  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;

  // "unpack.0", "pool.read.1".
  [[nodiscard]] std::string name() const;
};

struct NodeLayout {
  std::uint32_t stage = 0;  // in DataLoaderConfig.stages
  std::string name;         // "": the stage itself
  std::uint32_t first_lane = 0;
  std::uint32_t lanes = 0;       // as configured
  std::uint32_t lanes_max = 0;   // that are laid out
  bool scales = false;           // may have another number while it runs
  bool begins_anywhere = false;  // NodePlan.begins_anywhere
};

struct GroupPlan {
  std::string name;
  std::vector<std::uint32_t> lanes;
  std::string program = {};        // beside the worker, that runs it; "": the worker
  std::string warm_stage = {};     // whose processes have a warm parent; "": they have none
  std::string parent_socket = {};  // where that listens, if the supervisor does not start it
  bool lane_process = false;       // of one lane alone, which is the whole process
};

// Memory that a process takes beside the feed's, at most: NodePlan.private_bytes.
struct PrivatePlan {
  std::string part;
  std::string lever;
  std::uint64_t bytes = 0;
};

// An output of the feed: where its batches go. At most shm::kOutputsMax, each with trainers of its
// own.
struct OutputLayout {
  std::uint32_t index = 0;
  std::string alias;  // by which trainers ask for it; "": they get it who ask for none
  std::uint32_t stage = 0;
  int settings = -1;                           // in DataLoaderConfig.feed_output; -1: the defaults
  bool keep_newest = false;                    // it does not wait for trainers
  bool checksum = false;                       // of every batch
  std::vector<std::uint32_t> producing_lanes;  // that write batches, by their number
  shm::FeedGeometry geometry;
  std::uint64_t slot_bytes = 0;  // as the schema says, before rounding up to pages
  std::uint32_t rows_max = 0;
  std::uint32_t feed_control_segment = 0;
  std::uint32_t payload_segment = 0;
  std::array<std::uint32_t, shm::kGroupsMax> group_segments{};

  // "" or " of output 'validation'", for messages.
  [[nodiscard]] std::string shown() const;
};

struct FeedLayout {
  std::string feed;
  std::uint64_t first_batch = 1;  // of a new feed: DataLoaderConfig.from_batch
  std::vector<NodeLayout> nodes;
  std::vector<LanePlan> lanes;
  std::vector<RingPlan> rings;
  std::vector<GroupPlan> groups;  // the stage groups, each a process
  std::vector<SegmentPlan> segments;
  std::vector<PrivatePlan> private_memory;
  std::vector<OutputLayout> outputs;  // at least one
  // The supervisor holds a lock on byte 0, the worker of stage group g one on byte g + 1. Trainers
  // never get this segment: a lock of theirs, for reading too, would be in the way of a restart.
  std::uint32_t locks_segment = 0;
  bool ordered = true;  // dispatch

  // The output that a lane writes batches to; null: none.
  [[nodiscard]] const OutputLayout* output_of(const LanePlan& lane) const;
};

// The configuration has been checked and the wiring is complete. Throws Error (kIncompatible) where
// the plan contradicts itself, (kConfiguration) where a number exceeds what a feed can have.
[[nodiscard]] FeedLayout lay_out(const DataLoaderConfig& config, const PipelinePlan& plan,
                                 const config::Wiring& wiring,
                                 std::span<const config::StageGroup> groups);

// The same feed with these lanes alone that run, in the groups that they have: what others need is
// a page, of slots there are as few as can be.
[[nodiscard]] FeedLayout only_lanes(FeedLayout layout, std::span<const std::uint32_t> lanes);
// One lane alone, in a group of its name.
[[nodiscard]] FeedLayout only_lane(FeedLayout layout, std::uint32_t index);

}  // namespace ringfeed::layout
