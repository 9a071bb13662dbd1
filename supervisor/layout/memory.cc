#include "supervisor/layout/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "ringfeed/shm/arena.h"
#include "supervisor/os/text.h"

namespace ringfeed::layout {
namespace {

struct Part {
  config::MemoryPart shown;
  std::string lever;
  std::uint64_t segments = 0;
};

std::uint64_t segment_bytes(const SegmentPlan& segment) {
  return shm::align_up(segment.spec.bytes, shm::kPageBytes);
}

std::vector<Part> parts_of(const FeedLayout& layout) {
  std::vector<Part> parts;
  for (const SegmentPlan& segment : layout.segments) {
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&](const Part& p) { return p.shown.part == segment.part; });
    if (part == parts.end()) {
      parts.push_back({{segment.part, 0}, segment.lever, 0});
      part = parts.end() - 1;
    }
    part->shown.bytes += segment_bytes(segment);
    part->segments += 1;
  }
  for (const PrivatePlan& own : layout.private_memory) {
    parts.push_back({{own.part, own.bytes}, own.lever, 1});
  }
  for (Part& part : parts) {
    if (part.segments > 1 && part.shown.part != "control") {
      part.shown.part += fmt::format(" ({})", part.segments);
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.shown.bytes > b.shown.bytes; });
  return parts;
}

}  // namespace

std::vector<config::MemoryPart> memory_parts(const FeedLayout& layout) {
  std::vector<config::MemoryPart> shown;
  for (Part& part : parts_of(layout)) shown.push_back(std::move(part.shown));
  return shown;
}

std::uint64_t memory_sum(const FeedLayout& layout) {
  std::uint64_t sum = 0;
  for (const SegmentPlan& segment : layout.segments) sum += segment_bytes(segment);
  for (const PrivatePlan& own : layout.private_memory) sum += own.bytes;
  return sum;
}

std::string memory_table(const FeedLayout& layout) {
  std::vector<config::MemoryPart> parts = memory_parts(layout);
  parts.push_back({"in total", memory_sum(layout)});
  std::size_t width = 0;
  for (const config::MemoryPart& part : parts) width = std::max(width, part.part.size());
  std::string text;
  for (const config::MemoryPart& part : parts) {
    text += fmt::format("  {:<{}}  {:>10}\n", part.part, width, shown_bytes(part.bytes));
  }
  return text;
}

namespace {

// What a process maps is at least this: the supervisor all segments, a stage group the room that
// its arenas may grow in.
Status check_addresses(const FeedLayout& layout, std::uint64_t limit) {
  std::uint64_t most = memory_sum(layout);
  std::string who = "the supervisor";
  for (const GroupPlan& group : layout.groups) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t lane : group.lanes) {
      const SegmentPlan& arena = layout.segments[layout.lanes[lane].arena_segment];
      bytes += shm::arena_room(arena.spec.bytes, arena.bytes_max, group.lanes.size(), limit);
    }
    if (bytes <= most) continue;
    most = bytes;
    who = fmt::format("stage group '{}'", group.name);
  }
  if (most <= limit) return {};
  return Error{ErrorCode::kNoMemory,
               fmt::format("feed '{}': {} maps {} ({} bytes), most of it as room to grow, but a "
                           "process may have only {} ({} bytes) of address space here: raise the "
                           "limit (ulimit -v, RLIMIT_AS), which uses no memory, or remove it",
                           layout.feed, who, shown_bytes(most), most, shown_bytes(limit), limit)};
}

}  // namespace

Status check_memory(const FeedLayout& layout, const MemoryLimits& limits) {
  if (limits.address_bytes != 0) {
    Status addresses = check_addresses(layout, limits.address_bytes);
    if (!addresses) return addresses;
  }
  const std::uint64_t sum = memory_sum(layout);
  const bool over_budget = limits.budget_bytes != 0 && sum > limits.budget_bytes;
  if (!over_budget && sum <= limits.available_bytes) return {};
  std::string levers;
  int named = 0;
  for (const Part& part : parts_of(layout)) {
    // Parts that take less than an eighth do not decide it.
    if (part.lever.empty() || named == 2 || part.shown.bytes < sum / 8) continue;
    levers += (levers.empty() ? "" : ", or ") + part.lever;
    ++named;
  }
  const std::string limit =
      over_budget ? fmt::format("storage.memory_budget_bytes allows {} ({} bytes)",
                                shown_bytes(limits.budget_bytes), limits.budget_bytes)
                  : fmt::format("{} has {} ({} bytes) free", limits.place,
                                shown_bytes(limits.available_bytes), limits.available_bytes);
  return Error{
      ErrorCode::kNoMemory,
      fmt::format("feed '{}' needs {} ({} bytes), {}: lower {}{}\n{}", layout.feed,
                  shown_bytes(sum), sum, limit,
                  levers.empty() ? "the sizes in the configuration" : levers,
                  over_budget ? ", or raise the budget" : ", or make room", memory_table(layout))};
}

}  // namespace ringfeed::layout
