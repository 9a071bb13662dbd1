// How much memory a feed takes, by part, and whether that can be had: asked before anything starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ringfeed/shm/result.h"
#include "supervisor/config/explain.h"
#include "supervisor/layout/feed_layout.h"

namespace ringfeed::layout {

// The parts, largest first: rings by edge, arenas by stage, batches, control.
[[nodiscard]] std::vector<config::MemoryPart> memory_parts(const FeedLayout& layout);
[[nodiscard]] std::uint64_t memory_sum(const FeedLayout& layout);

// "  arena of sampler   1.0 GiB" a line, and the sum.
[[nodiscard]] std::string memory_table(const FeedLayout& layout);

struct MemoryLimits {
  std::uint64_t available_bytes = 0;  // of the machine, the control group, the directory
  std::string place;                  // "this machine", "directory /dev/shm"
  std::uint64_t budget_bytes = 0;     // storage.memory_budget_bytes; 0: none
  std::uint64_t address_bytes = 0;    // RLIMIT_AS: what a process may map; 0: no limit
};

// Refuses (kNoMemory) with the bytes of every part, the sum, what there is, and what to change.
[[nodiscard]] Status check_memory(const FeedLayout& layout, const MemoryLimits& limits);

}  // namespace ringfeed::layout
