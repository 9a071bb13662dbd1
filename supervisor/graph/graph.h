// A feed as a graph: nodes that queues join, the processes that they run in, and the outputs with
// the consumer groups at their ends.
//
// Made from what a supervisor says of its feed (StatusReply, MetricsReply), and from nothing else.
// A configuration that does not run has the status that its feed would begin with (planned.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::graph {

struct Process {
  std::string name;       // its stage group
  std::uint32_t pid = 0;  // 0: there is none now
  std::uint32_t restarts = 0;
};

// Mean shares of the time of the lanes at work.
struct Load {
  double busy = 0;
  double starved = 0;
  double blocked = 0;
};

// A stage, or a part of it that has lanes of its own.
struct Node {
  std::string name;  // "pool", "pool.read"
  std::string stage;
  std::string part;                    // "": the stage itself
  std::string kind;                    // of the stage
  std::vector<std::size_t> processes;  // in Graph::processes; several: one for each lane
  std::uint32_t lanes = 0;
  std::uint32_t lanes_max = 0;  // that have memory: it may be scaled to so many
  std::string progress;         // what the stage says of itself; of its first node
  std::uint64_t records_in = 0;
  std::uint64_t records_out = 0;
  std::optional<Load> load;
  bool limits = false;  // a bottleneck says so
};

// From a port to a port: all rings between lanes that are not spare.
struct Queue {
  std::size_t from = 0;  // in Graph::nodes
  std::string port;
  std::size_t to = 0;
  std::string to_port;
  bool back = false;  // to a node before it, or to itself
  std::uint32_t rings = 0;
  std::uint64_t capacity_records = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t fill_records = 0;
  std::uint64_t fill_bytes = 0;
  std::uint64_t dropped = 0;
  bool closed = false;  // all of them
  std::optional<double> records_per_s = {};
  std::optional<double> bytes_per_s = {};

  // Of its records or its bytes, whichever are nearer to the end of the room.
  [[nodiscard]] double fill_share() const;
};

struct Trainer {
  std::uint32_t member = 0;
  std::uint32_t pid = 0;
  std::string client;
};

struct ConsumerGroup {
  std::string name;
  std::string kind;  // "SHARED", "RANKED"
  std::uint32_t world = 0;
  std::string policy;
  std::uint64_t lag = 0;
  std::uint64_t skipped = 0;
  std::vector<Trainer> trainers;
};

struct Output {
  std::string alias;                // "": the feed has one without a name
  std::optional<std::size_t> from;  // in Graph::nodes; none: its supervisor is too old to say
  std::string port;
  std::uint32_t rows_max = 0;
  std::uint64_t slot_bytes = 0;
  std::uint32_t slots = 0;
  std::uint32_t slots_used = 0;
  bool keep_newest = false;
  std::uint64_t batches = 0;
  std::optional<double> batches_per_s;
  bool limits = false;  // its trainers do
  std::vector<ConsumerGroup> groups;
};

struct Bottleneck {
  std::string output;  // its alias
  std::string kind;    // BottleneckProto::Kind
  std::optional<std::size_t> node;
  std::string sentence;  // what `ringfeed why` says
};

struct MemoryPart {
  std::string part;
  std::uint64_t bytes = 0;
};

struct Graph {
  std::string feed;
  bool running = false;  // false: a configuration; nothing below has counted yet
  std::string state;
  std::string reason;
  std::uint32_t supervisor_pid = 0;
  std::uint64_t uptime_ms = 0;
  std::string config_file;
  std::uint64_t memory_bytes = 0;
  double seconds_covered = 0;  // by rates and shares; 0: there are none yet
  std::vector<Process> processes;
  // As they are drawn: a node comes after those that it reads from, but for queues that go back,
  // and beside those of its process where that can be.
  std::vector<Node> nodes;
  std::vector<Queue> queues;  // by `from`
  std::vector<Output> outputs;
  std::vector<Bottleneck> bottlenecks;
  std::vector<MemoryPart> memory;  // of a configuration, largest first
};

// `metrics` may be null: then there are no rates.
[[nodiscard]] Graph make_graph(const StatusReply& status, const MetricsReply* metrics);

}  // namespace ringfeed::graph
