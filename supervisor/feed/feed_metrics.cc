// Numbers of the feed: looks at it four times a second, and says what came of it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "supervisor/feed/feed.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/status.h"

namespace ringfeed::process {
namespace {

// A trainer that has done nothing for so long is named.
constexpr std::uint64_t kIdleMs = 5'000;
// What is said about a bottleneck is of this time.
constexpr std::uint64_t kBottleneckNs = 10'000'000'000;
// Less than that says nothing: then the time before is taken too, though the feed was another one.
constexpr std::uint64_t kSteadyNsMin = 1'000'000'000;
// Of a stage that has got fewer, nothing is said about how many it leaves out.
constexpr std::uint64_t kJudgedAfter = 16;

std::uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// The share of the time that the trainers of an output wait for batches: those of the consumer
// group that waits least, for it may be what the others wait for.
double least_wait(const metrics::Look& begin, const metrics::Look& end, std::size_t port) {
  const auto window = static_cast<double>(end.time_ns - begin.time_ns);
  if (window <= 0 || end.ports[port].waits.empty()) return 0;
  double least = 1;
  for (const metrics::PortLook::Waits& is : end.ports[port].waits) {
    const auto& before = begin.ports[port].waits;
    const auto was = std::ranges::find(before, is.group, &metrics::PortLook::Waits::group);
    const std::uint64_t waited = is.ns - std::min(is.ns, was == before.end() ? is.ns : was->ns);
    least = std::min(least, static_cast<double>(waited) / window / is.members);
  }
  return least;
}

}  // namespace

void Feed::look_around(bool regular) {
  const std::uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  std::vector<pid_t> pids;
  for (const std::unique_ptr<GroupProcess>& worker : workers_)
    pids.push_back(worker->identity().pid);
  std::vector<const control::ConsumerGroups*> groups;
  for (const std::unique_ptr<Output>& output : outputs_) groups.push_back(&output->groups);
  history_.add(
      [&](metrics::Look& look) { looker_.look(groups, pids, clock_ns(CLOCK_MONOTONIC), look); },
      regular);
  if (regular) for_report([this] { note_look(); });
  ++looks_;
  looking_ns_ += clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
}

void Feed::keep_looking() {
  look_around(true);
  loop_.after(metrics::kLookNs / 1'000'000, [this] { keep_looking(); });
}

metrics::FeedFacts Feed::metrics_facts() const {
  return {run_.config, run_.plan, memory_.layout(), looker_.shape(), looker_.counters(), texts_};
}

bool Feed::on_metrics(control::ConnectionId, const Request& request, Reply& reply) {
  look_around(false);
  const metrics::FeedFacts facts = metrics_facts();
  MetricsReply& out = *reply.mutable_metrics();
  out.set_feed(run_.config.feed());
  out.set_uptime_ms(now_ms() - started_ms_);
  out.set_deaths(deaths_);
  out.set_sampling_us(static_cast<double>(looking_ns_) / 1e3 / static_cast<double>(looks_));
  metrics::fill_metrics(facts, history_, out);
  fill_bottlenecks(facts, out);
  if (!request.metrics().as_json()) return true;
  const std::string json = metrics::message_json(out, request.metrics().describe());
  out.Clear();
  out.set_json(json);
  return true;
}

void Feed::fill_bottlenecks(const metrics::FeedFacts& facts, MetricsReply& reply) const {
  const std::size_t asked = history_.begin_of(kBottleneckNs);
  std::size_t begin = history_.steady_since(asked, facts.shape);
  const metrics::Look& end = history_.newest();
  if (end.time_ns - history_.at(begin).time_ns < kSteadyNsMin) begin = asked;
  find_bottlenecks(facts, begin, reply);
}

// What the stages have left out between two looks, in the words of all that is known of it.
Losses Feed::losses_between(const metrics::FeedFacts& facts, const metrics::Look& begin,
                            const metrics::Look& end) const {
  StatusReply counted;
  for (int s = 0; s < facts.config.stages_size(); ++s) {
    StageStatus& stage = *counted.add_stages();
    stage.set_name(facts.config.stages(s).name());
    for (const auto& [name, place] : facts.counters.of_stage(static_cast<std::uint32_t>(s))) {
      const std::uint64_t now = place < end.counters.size() ? end.counters[place] : 0;
      const std::uint64_t before = place < begin.counters.size() ? begin.counters[place] : 0;
      CounterStatus& counter = *stage.add_counters();
      counter.set_name(name);
      counter.set_value(now - std::min(now, before));
    }
  }
  Losses losses = losses_;
  losses.count(counted);
  return losses;
}

void Feed::find_bottlenecks(const metrics::FeedFacts& facts, std::size_t begin,
                            MetricsReply& reply) const {
  const metrics::Look& end = history_.newest();
  const metrics::Look& since = history_.at(begin);
  const double window_s = static_cast<double>(end.time_ns - since.time_ns) / 1e9;
  std::vector<metrics::NodeLoad> nodes = metrics::node_loads(facts, since, end);
  const Losses losses = losses_between(facts, since, end);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Losses::Share* const share = losses.of_stage(nodes[i].stage);
    if (share != nullptr && share->all() >= kJudgedAfter) {
      nodes[i].left_out = share->value();
      nodes[i].what_left_out = losses.stage_text(nodes[i].stage);
    }
    if (!nodes[i].gives_nothing) continue;
    nodes[i].reason = metrics::stage_note(memory_, memory_.layout().nodes[i].stage);
  }
  const metrics::MachineLoad machine = metrics::machine_load(since, end, cores_);
  for (std::size_t port = 0; port < facts.shape.ports.size(); ++port) {
    if (!facts.shape.ports[port].output) continue;
    const Output& of = *outputs_[*facts.shape.ports[port].output];
    metrics::OutputLoad output;
    output.feed = run_.config.feed();
    output.node = facts.shape.ports[port].node;
    output.batches = end.ports[port].put;
    if (window_s > 0) {
      output.batches_per_s = static_cast<double>(output.batches - since.ports[port].put) / window_s;
    }
    output.alias = of.memory.layout().alias;
    output.trainers = end.ports[port].members;
    output.slots = end.ports[port].capacity;
    output.slots_given = output_settings(run_.config, of.memory.layout().settings).has_slots();
    output.trainers_wait = least_wait(since, end, port);
    std::vector<std::string> waits;
    for (const std::uint32_t g : of.groups.holding_up()) waits.push_back(of.groups.terms(g).name);
    output.held_up_by = fmt::format("{}", fmt::join(waits, ", "));
    output.idle = of.waits.idle(now_ms(), kIdleMs);
    BottleneckProto& found = *reply.add_bottlenecks();
    found.set_seconds_covered(window_s);
    metrics::find_bottleneck(nodes, machine, output, found);
  }
}

}  // namespace ringfeed::process
