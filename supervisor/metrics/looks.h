// One look at a feed: all counters, and how full its queues are, read from shared memory while the
// lanes go on.
//
// A look costs a few loads for each lane and ring and one read of /proc for each thread of a lane;
// nothing is asked of anybody.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ringfeed/shm/segment.h"
#include "supervisor/control/consumer_groups.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed::metrics {

struct LaneLook {
  bool at_work = false;  // has a process, is not spare, has not ended
  bool awake = false;    // is in a step, or about to begin one
  std::uint64_t busy_ns = 0;
  std::uint64_t starved_ns = 0;
  std::uint64_t blocked_ns = 0;
  // Of its thread, or of a process that it has for itself, with the children that this has waited
  // for, as far as this supervisor has seen it: on a processor, and (the thread alone) ready
  // without one.
  std::uint64_t cpu_ns = 0;
  std::uint64_t core_wait_ns = 0;
  std::uint64_t records_in = 0;
  std::uint64_t records_out = 0;
};

// A port's queue: all its rings; of the port whose output is the feed, the slots.
struct PortLook {
  std::uint64_t put = 0;
  std::uint64_t get = 0;
  std::uint64_t drop = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t fill = 0;
  std::uint64_t capacity = 0;  // of the rings between lanes that are at work
  std::uint64_t members = 0;   // of an output of the feed: live trainers
  // Of an output: by consumer group, what its trainers have waited for batches that came, and how
  // many they are.
  struct Waits {
    std::uint32_t group = 0;
    std::uint32_t members = 0;
    std::uint64_t ns = 0;
  };
  std::vector<Waits> waits = {};
};

struct Look {
  std::uint64_t time_ns = 0;    // CLOCK_MONOTONIC
  std::vector<LaneLook> lanes;  // as in the layout
  std::vector<PortLook> ports;  // as in FeedShape
  // As in CounterTable; one that was met later than this look was 0.
  std::vector<std::uint64_t> counters;
  double idle_s = 0;  // of all processors of the machine, since it began
};

struct PortShape {
  std::string name;
  std::uint32_t stage = 0;              // in DataLoaderConfig.stages
  std::uint32_t node = 0;               // in FeedLayout::nodes
  std::optional<std::uint32_t> output;  // in FeedLayout::outputs, if its batches are for trainers
  std::vector<std::uint32_t> rings;     // in FeedLayout::rings
};

// Which queues a feed has; from its layout alone.
struct FeedShape {
  explicit FeedShape(const layout::FeedLayout& layout);
  std::vector<PortShape> ports;
};

// The named counters of all lanes, summed over the lanes of a stage. Names appear while a feed runs
// and stay.
class CounterTable {
 public:
  [[nodiscard]] std::size_t place(std::uint32_t stage, const std::string& name);
  // Names and places of a stage's counters.
  [[nodiscard]] std::map<std::string, std::size_t> of_stage(std::uint32_t stage) const;
  [[nodiscard]] std::size_t size() const { return places_.size(); }

 private:
  std::map<std::pair<std::uint32_t, std::string>, std::size_t> places_;
};

// The time that the lanes' threads spend on processors, and ready without one. A thread's clock
// begins with the thread: over the lives of a lane it is summed here. A lane that has a process for
// itself runs in its first thread, and what other threads and children of the process do, it does.
class ThreadClocks {
 public:
  explicit ThreadClocks(const layout::FeedLayout& layout);
  // `pids`: the process of each stage group, 0: none.
  void look(const std::vector<pid_t>& pids, std::vector<LaneLook>& lanes);

 private:
  struct Clock {
    shm::Fd file;     // /proc/PID/task/TID/schedstat
    shm::Fd process;  // /proc/PID/stat, of one that is the lane's own
    std::uint64_t cpu_seen = 0;
    std::uint64_t wait_seen = 0;
    std::uint64_t cpu_ns = 0;
    std::uint64_t core_wait_ns = 0;
    std::uint32_t searches = 0;  // in vain, for the thread
  };
  void find_threads(std::uint32_t group, pid_t pid, const std::vector<LaneLook>& lanes);

  const layout::FeedLayout& layout_;
  std::vector<Clock> clocks_;  // by lane
  std::vector<pid_t> pids_;    // by group
};

class Looker {
 public:
  explicit Looker(const layout::FeedMemory& memory);
  // `groups`: of each output.
  void look(const std::vector<const control::ConsumerGroups*>& groups,
            const std::vector<pid_t>& pids, std::uint64_t now_ns, Look& taken);
  [[nodiscard]] const FeedShape& shape() const { return shape_; }
  [[nodiscard]] const CounterTable& counters() const { return counters_; }

 private:
  const layout::FeedMemory& memory_;
  FeedShape shape_;
  CounterTable counters_;
  // Where the lane's i-th counter is summed, by lane; found again when its name has changed.
  struct Known {
    std::string name;
    std::size_t place = 0;
  };
  std::vector<std::vector<Known>> known_;
  ThreadClocks clocks_;
  shm::Fd uptime_;
};

// Processors that this process, and with it the feed, may use.
[[nodiscard]] double usable_cores();

}  // namespace ringfeed::metrics
