// What is shown of a feed: the numbers of its status and its metrics, put together by stage.
//
// Rates and shares are over the last ten seconds, as the supervisor has measured them. All texts
// are as the supervisor gave them, and are cleaned where they are drawn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::top {

// Shares of the lanes' time, 0 to 1.
struct Shares {
  double busy = 0;
  double starved = 0;
  double blocked = 0;
  double cpu = 0;        // of busy: on a processor
  double core_wait = 0;  // ready, without one
};

struct LaneRow {
  std::string name;
  std::string state;
  std::uint32_t pid = 0;
  std::uint32_t restarts = 0;
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  std::optional<double> out_per_s = {};  // since the look before
  std::optional<Shares> shares = {};     // since the look before
};

// Lanes of a stage that do one thing; a stage has one part, or more.
struct PartRow {
  std::string name;  // "" for the stage itself
  std::uint32_t lanes = 0;
  Shares shares = {};
};

struct QueueRow {
  std::string name;
  std::string to;  // stages; "trainers"
  std::uint64_t fill = 0;
  std::uint64_t capacity = 0;
  std::uint64_t dropped = 0;
  double put_per_s = 0;
  bool inside = false;  // between the lanes of the stage
};

struct StageRow {
  std::string name;
  std::string kind;
  std::string process;  // its stage group
  std::string note;     // how far it is
  std::size_t place = 0;
  std::uint32_t lanes = 0;   // at work
  std::uint32_t absent = 0;  // without a process
  std::uint32_t deaths = 0;  // the most of a lane
  std::uint32_t pid = 0;
  std::uint64_t out = 0;
  std::optional<double> out_per_s = {};
  std::optional<Shares> shares = {};  // the mean over its lanes
  bool limits = false;
  std::vector<PartRow> parts = {};
  std::vector<QueueRow> queues = {};  // those that lead out of it first
  std::vector<LaneRow> lane_rows = {};
  std::vector<std::pair<std::string, std::uint64_t>> counters = {};
};

struct TrainerRow {
  std::string group;
  std::string output;
  std::uint32_t member = 0;
  std::uint32_t pid = 0;  // 0: a group that nobody is in
  std::string client;
  std::uint64_t taken = 0;
  std::uint64_t holds = 0;
  std::uint64_t behind = 0;   // of the group: published batches that it has not finished
  std::uint64_t skipped = 0;  // of the group: batches that it lost
  std::optional<double> per_s = {};
};

struct OutputRow {
  // Who waits for whom.
  enum class Verdict { kUnknown, kTrainersWait, kTrainersLimit, kNobody };
  std::string alias;
  Verdict verdict = Verdict::kUnknown;
  std::string for_whom;  // of kTrainersWait: "stage 'pool'", "new files", "the machine"
  std::string sentence;
  double per_s = 0;
  std::uint64_t batches = 0;
  std::uint32_t slots = 0;
  std::uint32_t used = 0;
};

struct Picture {
  std::string feed;
  std::string state;  // "running"
  std::string reason;
  std::string version;
  std::string config;
  std::uint64_t uptime_ms = 0;
  std::uint32_t pid = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t deaths = 0;
  std::uint64_t skipped = 0;
  std::uint64_t lost_batches = 0;
  std::uint32_t trainer_count = 0;
  double batches_per_s = 0;  // of all outputs
  double cores = 0;
  double cores_busy = 0;
  double cores_idle = 0;
  std::vector<OutputRow> outputs = {};
  std::vector<StageRow> stages = {};
  std::vector<TrainerRow> trainers = {};  // with groups that nobody is in
  std::vector<std::string> problems = {};
  std::vector<std::string> progress = {};                         // while it warms up
  std::vector<std::pair<std::string, std::uint64_t>> skips = {};  // "pool: too large"
  std::string why = {};  // all of it, as `ringfeed why` shows it
};

// `before`: an earlier status of the same supervisor, for the rates of lanes and trainers; may be
// null.
[[nodiscard]] Picture picture_of(const StatusReply& status, const StatusReply* before,
                                 const MetricsReply& metrics);

// The batches a second of the time before the first look, for a curve that begins with a past: one
// value for each of the last 60 seconds, the newest last; -1: not known.
[[nodiscard]] std::vector<double> past_rates(const Picture& picture, const MetricsReply& metrics);

// "skipped_too_large": "too large"; nullopt: it counts nothing that was left out.
[[nodiscard]] std::optional<std::string> skip_reason(const std::string& counter);

}  // namespace ringfeed::top
