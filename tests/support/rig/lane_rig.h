// LaneRig: a pipeline of lanes in the test's own process, on real segments (memfds), round by
// round.
//
// A rig is described first: stages by their configuration, nodes by a NodeSpec, sources that output
// what the test feeds, sinks that keep what arrives. build() lays out the memory as the
// supervisor does and attaches every lane as the worker does. From then on the test decides which
// lane makes a round when, and between any two rounds it may throw lanes away: restart() drops all
// that is private to a lane and attaches a new one to the same memory.
//
//   LaneRig rig("epochs: 1");
//   rig.add_source("frames", 2);                                           // two lanes
//   rig.add_stage("name: 's' shuffling_frame_sampler { input: 'frames' }");
//   rig.add_sink("out", "s");
//   rig.build();
//   rig.feed("frames", {.bytes = "a"});                                    // a unit of one record
//   rig.finish("frames");
//   rig.run();
//   EXPECT_THAT(rig.got("out"), SizeIs(1));
//
// The output of a stage that makes batches is the feed: one consumer group stands ready, and the
// rig takes, copies and gives back what is published (batches()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "ringfeed/shm/feed.h"
#include "ringfeed/shm/node_lanes.h"
#include "ringfeed/shm/segment.h"
#include "workers/io/arrow_readers.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/links.h"
#include "workers/runtime/registry.h"

namespace ringfeed::testing {

// A record as tests feed and see it.
struct RigRecord {
  std::string bytes = {};
  std::uint64_t tag[2] = {0, 0};
  std::uint64_t user = 0;
  std::uint32_t lane = 0;  // seen only: of the sink

  friend bool operator==(const RigRecord&, const RigRecord&) = default;
  friend void PrintTo(const RigRecord& record, std::ostream* out);
};

// A batch as it was published, with the slot's bytes as they were then.
struct RigBatch {
  std::uint64_t number = 0;
  std::uint32_t rows = 0;
  std::uint32_t slot = 0;
  std::uint64_t token[2] = {0, 0};
  std::array<std::uint32_t, 16> ragged = {};
  std::vector<std::byte> bytes = {};

  friend bool operator==(const RigBatch&, const RigBatch&) = default;
};

// A segment as the rig has it mapped.
struct RigSegment {
  std::string name;
  shm::SegmentKind kind = shm::SegmentKind::kControl;
  int fd = -1;  // the rig's
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;         // in the segment now
  std::uint64_t mapped_bytes = 0;  // of address space; more than `bytes` for an arena that may grow
  std::size_t lane = 0;            // whose arena it is
};

// Queues of sources and of nodes that say nothing else.
struct RigQueue {
  std::uint64_t capacity = 16;
  std::uint64_t bytes = 64 * 1024;
  OverflowBehavior overflow = BLOCK;
};

class LaneRig {
 public:
  // `feed_text`: a DataLoaderConfig in text format; its stages are known, but are no part of the
  // rig.
  explicit LaneRig(const std::string& feed_text = "", const formats::ArrowReaders* arrow = nullptr);
  ~LaneRig();
  LaneRig(const LaneRig&) = delete;
  LaneRig& operator=(const LaneRig&) = delete;

  // ---- description, before build()
  void add_source(const std::string& name, std::uint32_t lanes = 1, RigQueue queue = {});
  // `from` is "stage.port" or "stage", whose port is then "output". `block` as in InputSpec.
  void add_sink(const std::string& name, const std::string& from, std::uint32_t lanes = 1,
                std::uint64_t block = 1);
  // A StageConfig in text format; its inputs are wired as it says. Throws Error for a kind that is
  // unknown or a setting that the stage refuses.
  void add_stage(const std::string& stage_text);
  // A node of the test's own making; its inputs' `from` are "node.port". `counters`: names that it
  // may ask for.
  void add_node(const std::string& name, NodeSpec spec, std::vector<std::string> counters = {});
  void build();

  // ---- feeding
  // The next record of the source; `ends_unit`: the next record begins a unit of its own. Unit u
  // goes to lane u mod lanes.
  void feed(const std::string& source, RigRecord record, bool ends_unit = true);
  void end_unit(const std::string& source);
  // Nothing comes after what has been fed: the lanes (or one of them) close when it is output.
  void finish(const std::string& source);
  void finish_lane(const std::string& source, std::uint32_t lane);

  // ---- what came
  // Everything that the sink has consumed, in the order in which its lanes did.
  [[nodiscard]] std::vector<RigRecord> got(const std::string& sink) const;
  [[nodiscard]] std::vector<RigRecord> got(const std::string& sink, std::uint32_t lane) const;
  // The sink consumes this many records more, then no others; unlimited at first.
  void allow(const std::string& sink, std::uint64_t records);
  // Batches published so far, in the order of their numbers as far as known.
  [[nodiscard]] const std::vector<RigBatch>& batches();
  // While held, published batches keep their slots.
  void hold_batches(bool hold) { hold_batches_ = hold; }

  // ---- running
  [[nodiscard]] std::size_t lane_count() const { return lanes_.size(); }
  // Numbers of a node's lanes.
  [[nodiscard]] std::vector<std::size_t> lanes_of(const std::string& node) const;
  [[nodiscard]] LaneRuntime& lane(std::size_t number);
  [[nodiscard]] bool finished(std::size_t number) { return lane(number).finished(); }
  [[nodiscard]] bool all_finished();
  // One round of one lane, unless it has finished; also takes batches. True: something moved.
  bool round(std::size_t number);
  // Rounds of all lanes in turn until none moves.
  void run();
  // The same in a random order.
  void run_random(std::mt19937_64& random);
  // The same, and before each round its lane is restarted with this probability.
  void run_with_restarts(std::mt19937_64& random, double probability);
  // Rounds in turn until the condition holds. False: it did not in a minute.
  [[nodiscard]] bool run_until(const std::function<bool()>& condition);
  // Every lane in a thread of its own until all have finished, or `until` holds: then they are told
  // to stop. False: a minute was not enough.
  [[nodiscard]] bool run_in_threads(const std::function<bool()>& until = {});

  // Gives a node another number of lanes, as the supervisor does. False: the change before has not
  // been worked off.
  bool scale(const std::string& node, std::uint32_t lanes);

  void restart(std::size_t number);
  void restart(const std::string& node);
  void restart_all();
  // The lane's worker has died too often on this record: the next incarnation, made here, sets it
  // aside.
  void condemn(std::size_t number, std::uint64_t key);
#ifdef RINGFEED_FAILPOINTS
  // Is the lane a source or sink of the rig's own?
  [[nodiscard]] bool is_own(std::size_t number) const;
  // The lane makes its next round in a child process that is killed at the count-th passing of the
  // failpoint (or lives to the end of the round), and is restarted here. The rig's own lanes keep
  // private state and cannot die like this. True: it was killed.
  // `before`: called in the child, with the lane that makes the round.
  bool die(std::size_t number, const char* failpoint, std::uint64_t count,
           const std::function<void(LaneRuntime&)>& before = {});
#endif
  // The parts of a new incarnation of the lane, for tests of ports; the lane itself is dropped.
  LaneParts take_parts(std::size_t number);
  void want(shm::LaneDesire desire);
  // The lane stamps with this generation from its next round on.
  void order_generation(std::size_t number, std::uint32_t generation);
  // Called from now on with the arena of each lane that is attached, before the lane touches it.
  void on_arena(std::function<void(const RigSegment&)> hook) { on_arena_ = std::move(hook); }
  // Keeps condemned records from now on, instead of the rig (dead_letters()).
  void on_dead_letter(std::function<void(const DeadLetter&)> hook) {
    on_dead_letter_ = std::move(hook);
  }
  // Called from now on with each line that a stage logs, on the stage's thread.
  void on_log(std::function<void(std::string_view)> hook) { on_log_ = std::move(hook); }

  // ---- looking
  // All of the rig's memory: first the segments that never move or grow, then the arenas, by lane,
  // where the lanes' last attach has mapped them.
  [[nodiscard]] std::vector<RigSegment> segments() const;
  [[nodiscard]] const std::string& node_of(std::size_t lane) const;
  [[nodiscard]] const shm::FeedGeometry& feed_geometry() const { return feed_geometry_; }
  // A named counter, summed over the lanes of the node.
  [[nodiscard]] std::uint64_t counter(const std::string& node, std::string_view name) const;
  [[nodiscard]] std::string note(const std::string& node) const;
  [[nodiscard]] std::uint64_t arena_bytes(const std::string& node) const;  // reserved
  // A committed word of a lane's state.
  [[nodiscard]] std::uint64_t state_word(const std::string& node, std::uint64_t offset,
                                         std::uint32_t lane = 0) const;
  // The same, written as by whoever damages memory.
  void damage_state_word(const std::string& node, std::uint64_t offset, std::uint64_t value,
                         std::uint32_t lane = 0);
  [[nodiscard]] const shm::LanePage& page(std::size_t number) const;
  // What the lane says that it changes: by page of its arena, by slot of its own (stamps.h).
  [[nodiscard]] std::span<const shm::Stamp> page_stamps(std::size_t number) const;
  [[nodiscard]] std::span<const shm::Stamp> slot_stamps(std::size_t number) const;
  [[nodiscard]] RigSegment arena(std::size_t number) const;
  // The queue between two lanes of two nodes.
  [[nodiscard]] shm::QueueView queue(const std::string& from, std::uint32_t from_lane,
                                     const std::string& to, std::uint32_t to_lane) const;
  // Bytes of the records that lanes have set aside, one entry for each time.
  [[nodiscard]] const std::vector<std::string>& dead_letters() const { return dead_letters_; }
  // Lines that stages have logged and that contain `text`.
  [[nodiscard]] std::vector<std::string> log(std::string_view text = "") const;
  [[nodiscard]] const DataLoaderConfig& config() const { return config_; }

 private:
  struct Node;
  struct Lane;
  struct Ring;
  struct SourceState;
  struct SinkState;
  class SourceStage;
  class SinkStage;

  Node& node(const std::string& name);
  [[nodiscard]] const Node& node(const std::string& name) const;
  Node& port_owner(const std::string& name, const std::string& port);
  [[nodiscard]] shm::NodeLanesWords& node_lanes(std::uint32_t number) const;
  [[nodiscard]] const Links& links_of(const std::string& stage) const;
  void attach(Lane& lane);
  [[nodiscard]] LaneParts make_parts(Lane& lane);
  void connect();
  void make_feed();
  void take_batches();
  [[nodiscard]] EdgeMode mode(shm::Overflow overflow) const;
  [[nodiscard]] shm::Neighbour neighbour(std::size_t lane) const;
  shm::Mapping make_segment(const std::string& name, shm::SegmentKind kind, std::uint64_t bytes);
  [[nodiscard]] RigSegment arena_segment(const Lane& lane) const;

  DataLoaderConfig config_;
  std::optional<PipelineLinks> links_;  // of config_, once all stages are there
  Registry registry_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Ring>> rings_;
  shm::Mapping control_;
  struct Made {
    shm::Fd fd;
    RigSegment segment;
  };
  std::vector<Made> made_;  // all segments but the arenas
  std::function<void(const RigSegment&)> on_arena_;
  std::function<void(const DeadLetter&)> on_dead_letter_;

  shm::Mapping feed_control_;
  shm::Mapping payload_;
  std::vector<shm::Mapping> groups_;
  shm::FeedGeometry feed_geometry_;
  std::uint64_t taken_to_ = 0;  // every batch up to this number has been copied
  std::map<std::uint64_t, RigBatch> batches_by_number_;
  std::vector<std::uint64_t> unreleased_;
  std::vector<RigBatch> batches_;
  bool hold_batches_ = false;

  std::vector<std::string> dead_letters_;
  mutable std::mutex log_mutex_;
  std::vector<std::string> log_;
  std::function<void(std::string_view)> on_log_;
};

// Records with the texts "0", "1", ... of a range.
std::vector<RigRecord> numbered(std::uint64_t begin, std::uint64_t end);
std::vector<std::string> texts(const std::vector<RigRecord>& records);

}  // namespace ringfeed::testing
