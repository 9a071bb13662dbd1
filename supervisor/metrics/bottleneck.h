// Who limits the batches that a feed gives.
//
// Asked from the end: trainers wait for a batch, or its lanes wait for them. In the first case the
// stage that makes batches is busy, or waits for input itself; then the question goes to the stage
// that it reads from, until one is met that does not wait, or the source, which has nothing new.
// Behind it lanes are starved, before it blocked. The stage that is busiest of those met limits.
//
// A stage that says of itself that it gives nothing of what it has (its counter gives_nothing is 1)
// limits, however busy it is with that: its note is the reason.
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

// The lanes of a node that are at work: their mean shares of the time.
struct NodeLoad {
  std::string stage;
  std::string part;             // of the stage; "": the stage itself
  std::uint32_t lanes = 0;      // 0: it has ended, or has not begun
  std::uint32_t lanes_max = 0;  // to which it may be scaled; 0: it may not
  bool has_threads = false;     // the configuration can give it more
  bool redraws = false;         // gives out what it got long ago: does not wait for its input
  bool gives_nothing = false;   // says so itself (counter gives_nothing)
  std::string reason;           // for that, in its own words
  double busy = 0;
  double starved = 0;
  double blocked = 0;
  double cpu = 0;                       // of busy
  double core_wait = 0;                 // of busy
  std::vector<std::size_t> reads_from;  // nodes, in the order of its inputs
};

struct OutputLoad {
  std::string feed;
  std::string alias;
  std::size_t node = 0;  // that makes its batches
  double batches_per_s = 0;
  std::uint64_t batches = 0;  // ever
  std::uint64_t trainers = 0;
  std::string held_up_by;  // consumer groups, for people
  std::string idle;        // those of their trainers that do nothing: "; group 'b': member 0 …"
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
