// Sends one record through one lane, apart from any feed: what `ringfeed dead-letters --replay`
// does.
//
// The lane is the stage's own code in a worker process, with its own memory, as fresh as that of a
// new feed. This process plays its neighbours: it produces all its inputs, one of which carries the
// record, then closes them, and it consumes all its outputs. A lane that writes batches finds a
// consumer group that has finished every batch.
//
// The lane takes the record, does whatever it does at the end of its inputs, and the worker ends. A
// lane that has taken the record but does not end (a window of an endless run) is told to stop
// between two steps. If it does not do that either, it hangs: it is asked for its backtrace and
// killed. The worker dies with this process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/shm/ring.h"
#include "supervisor/group/spawn.h"
#include "supervisor/layout/feed_layout.h"
#include "supervisor/layout/worker_setup.h"

namespace ringfeed::process {

struct ReplayRecord {
  std::uint32_t lane = 0;   // in FeedLayout::lanes
  std::uint32_t input = 0;  // in LanePlan::inputs
  std::uint32_t ring = 0;   // in InputPlan::rings
  std::span<const std::byte> bytes = {};
  shm::RecordInfo info = {};
};

struct ReplayRules {
  std::string binary;
  std::uint64_t timeout_ms = 10'000;  // from when the record is there; 0: none
  // Called when the worker is ready. The worker waits for the record until this returns.
  std::function<void(pid_t worker)> before_record = {};
};

enum class ReplayOutcome : std::uint8_t {
  kTaken,  // the record was consumed, and the worker ended normally
  kDied,
  kHung,  // it did not leave its step, and was killed
  kLeft,  // the stage has ended, or would have waited for ever, without taking the record
};

struct ReplayPort {
  std::string port;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t dropped = 0;  // DROP_NEW, KEEP_NEWEST
};

struct ReplayReport {
  ReplayOutcome outcome = ReplayOutcome::kTaken;
  bool consumed = false;       // the record, by a committed step
  bool finished = false;       // the lane has come to its end
  std::uint64_t after_ms = 0;  // until the record was consumed, else until the worker's end
  std::uint64_t limit_ms = 0;  // as in the rules
  Ending ending = {};          // of the worker
  std::vector<ReplayPort> ports = {};
  bool batches_port = false;  // the lane writes batches
  std::uint64_t batches = 0;
  std::uint64_t rows = 0;
  std::vector<std::pair<std::string, std::uint64_t>> counters = {};  // of the lane, without zeros
  std::string note = {};                                             // the stage's note for people
  std::vector<std::string> lines = {};  // the worker's last lines, with its backtrace
};

// Throws Error: kNoMemory, kIo; kInvalidArgument: a record of that size does not fit into the ring;
// kIncompatible: the worker ended, or was not ready in time, before there was a record. `layout`
// comes from only_lane().
[[nodiscard]] ReplayReport replay(layout::FeedLayout layout, const layout::SetupFacts& facts,
                                  const ReplayRecord& record, const ReplayRules& rules);

}  // namespace ringfeed::process
