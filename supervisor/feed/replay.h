// One record through one lane, apart from any feed: what `ringfeed dead-letters --replay` does.
//
// The lane is the stage's own code in a worker process, with memory of its own that is as new as
// that of a feed which has just begun. This process stands for its neighbours: it is the producing
// end of all its inputs, of which one carries the record and all are closed behind it, and the
// consuming end of all its outputs. A lane that writes batches finds a consumer group that is
// through with every batch.
//
// The lane takes the record, does whatever it does at the end of its inputs, and the worker ends.
// One that has taken the record and does not come to an end (a window of an endless run) is told to
// stop between two steps; one that does not hear that either hangs, is asked for its backtrace and
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
  std::uint64_t timeout_ms = 10'000;  // from the moment when the record is there; 0: none
  // The worker is ready, and waits for the record until this returns.
  std::function<void(pid_t worker)> before_record = {};
};

enum class ReplayOutcome : std::uint8_t {
  kTaken,  // the record was consumed, and the worker has ended as it should
  kDied,
  kHung,  // did not leave its step, and was killed
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
  bool consumed = false;       // the record, by a step that was committed
  bool finished = false;       // the lane has come to its end
  std::uint64_t after_ms = 0;  // until the record was consumed, else until the worker's end
  std::uint64_t limit_ms = 0;  // as in the rules
  Ending ending = {};          // of the worker
  std::vector<ReplayPort> ports = {};
  bool batches_port = false;  // the lane writes batches
  std::uint64_t batches = 0;
  std::uint64_t rows = 0;
  std::vector<std::pair<std::string, std::uint64_t>> counters = {};  // of the lane, but zeros
  std::string note = {};                // what the stage wants a person to know
  std::vector<std::string> lines = {};  // the last that the worker said, with its backtrace
};

// Throws Error: kNoMemory, kIo; kInvalidArgument: the ring does not take a record of that size;
// kIncompatible: the worker has ended, or was not ready in time, before there was a record.
// `layout`: of only_lane().
[[nodiscard]] ReplayReport replay(layout::FeedLayout layout, const layout::SetupFacts& facts,
                                  const ReplayRecord& record, const ReplayRules& rules);

}  // namespace ringfeed::process
