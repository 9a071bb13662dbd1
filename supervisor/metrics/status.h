// What a feed is doing, read from shared memory while it works: nothing is asked of the workers.
//
// Numbers of one lane belong together only roughly: they are read one after the other while the
// lane goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/control/consumer_groups.h"
#include "supervisor/control/trainers.h"
#include "supervisor/layout/feed_memory.h"

namespace ringfeed {
class BatchSchema;
class PipelinePlan;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::metrics {

// What is known of the process of a stage group; by group, as in the layout.
struct GroupFacts {
  std::int32_t pid = 0;  // 0: none now
  std::uint32_t restarts = 0;
};

// What a status says of a feed before it begins: which lanes, rings and outputs it has, how large.
// Lanes are ABSENT or SPARE, rings are empty.
void lay_out_stages(const layout::FeedLayout& layout, const PipelinePlan& plan,
                    StatusReply& status);
void lay_out_rings(const layout::FeedLayout& layout, StatusReply& status);
void lay_out_output(const layout::FeedLayout& layout, const layout::OutputLayout& output,
                    const BatchSchema& schema, StatusReply& status);

// The same of one that runs.
void fill_stages(const layout::FeedMemory& memory, const PipelinePlan& plan,
                 const std::vector<GroupFacts>& groups, StatusReply& status);
void fill_rings(const layout::FeedMemory& memory, StatusReply& status);
// Adds an output of the feed; its groups and their members.
void fill_output(const layout::OutputMemory& memory, const control::ConsumerGroups& groups,
                 const BatchSchema& schema, StatusReply& status);
void fill_trainers(const layout::OutputMemory& memory, const control::ConsumerGroups& groups,
                   const control::Trainers& trainers, StatusReply& status);

// Records that wait in rings.
[[nodiscard]] std::uint64_t records_under_way(const layout::FeedMemory& memory);

// Names are written at attach and end with a zero at the latest in their last byte.
[[nodiscard]] std::string counter_name(const shm::NamedCounter& counter);

// What the lanes of a stage want a person to know, e.g. "812 of 100000 chunks"; empty: nothing.
[[nodiscard]] std::string stage_note(const layout::FeedMemory& memory, std::uint32_t stage);
// "pool: 812 of 100000 chunks", one for each stage that has something to say.
[[nodiscard]] std::vector<std::string> progress_notes(const layout::FeedMemory& memory);

// What stages are busy with that has an end, and how much of it is done: of all lanes that say so.
struct StageWork {
  std::string stage;
  std::string text;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};
[[nodiscard]] std::vector<StageWork> stage_work(const layout::FeedMemory& memory);

// The lane's note, whole: the lane writes its version odd, the text and numbers, its version even.
// Numbers that contradict each other count as none.
struct Note {
  std::string text;
  std::uint64_t done = 0;
  std::uint64_t total = 0;  // 0: no end is known
};
[[nodiscard]] Note read_note(const shm::LaneNote& note);

}  // namespace ringfeed::metrics
