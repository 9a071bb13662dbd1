// Who limits the batches that a feed gives.
//
// Asked from the end: trainers wait for a batch, or its lanes wait for them. In the first case the
// stage that makes batches is busy, or waits for input itself; then the question goes to the stage
// that it reads from, until one is met that does not wait, or the source, which has nothing new.
// Behind it lanes are starved, before it blocked. The stage that is busiest of those met limits.
//
// A stage that says of itself that it gives nothing of what it has (its counter gives_nothing is 1)
// limits, however busy it is with that: its note is the reason. So does one that leaves out more
// than half of what it gets, whatever else is slow.
//
// Two that wait for each other, one for room and the other for records, are held up by the queue
// between them; so are trainers and the stage that makes batches, by the slots.
//
// Busy is wall time: a lane that waits for a disk in a step is busy. Only if the lanes of that
// stage are often ready without getting a processor, and none is idle, the machine is what limits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "supervisor/metrics/aggregate.h"

namespace ringfeed {
class BottleneckProto;
}

namespace ringfeed::metrics {

// Where a node reads from: the rings between a lane there and a lane here.
struct NodeEdge {
  std::size_t from = 0;  // a node
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // of a ring
  double record_bytes = 0;  // a record's, lately
};

// The lanes of a node that are at work: their mean shares of the time.
struct NodeLoad {
  std::string stage;
  std::string part;             // of the stage; "": the stage itself
  std::uint32_t lanes = 0;      // 0: it has ended, or has not begun
  std::uint32_t lanes_max = 0;  // to which it may be scaled; 0: it may not
  std::string more_lanes;       // how its user gives it more: NodePlan.more_lanes
  std::string if_slow;          // what else makes it faster
  std::string on_request;       // works when the trainers ask: how they ask for more ahead
  bool redraws = false;         // gives out what it got long ago: does not wait for its input
  bool gives_nothing = false;   // says so itself (counter gives_nothing)
  std::string reason;           // for that, in its own words
  double busy = 0;
  double starved = 0;
  double blocked = 0;
  double cpu = 0;                    // of busy
  double core_wait = 0;              // of busy
  double left_out = 0;               // the share of what the stage gets
  std::string what_left_out;         // "30 of 30 samples: 30 ValueError; the first: ..."
  std::vector<NodeEdge> reads_from;  // in the order of its inputs
  std::uint32_t read_by = 0;         // edges of other nodes
};

struct OutputLoad {
  std::string feed;
  std::string alias;
  std::size_t node = 0;  // that makes its batches
  double batches_per_s = 0;
  std::uint64_t batches = 0;  // ever
  std::uint64_t trainers = 0;
  std::uint64_t slots = 0;
  bool slots_given = false;  // by feed_output.slots; else by the stage's queue_capacity
  double trainers_wait = 0;  // the share of the time, of the group that waits least
  std::string held_up_by;    // consumer groups, for people
  std::string idle;          // those of their trainers that do nothing: "; group 'b': member 0 …"
};

struct MachineLoad {
  double cores = 1;  // that the feed may use
  double busy = 0;   // with its lanes
  double idle = 0;
};

void find_bottleneck(std::span<const NodeLoad> nodes, const MachineLoad& machine,
                     const OutputLoad& output, BottleneckProto& found);

// Of a feed that runs, between two looks at it.
[[nodiscard]] std::vector<NodeLoad> node_loads(const FeedFacts& facts, const Look& begin,
                                               const Look& end);
[[nodiscard]] MachineLoad machine_load(const Look& begin, const Look& end, double cores);

}  // namespace ringfeed::metrics
