#include "supervisor/metrics/aggregate.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "proto/config.pb.h"
#include "proto/metrics.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"

namespace ringfeed::metrics {
namespace {

constexpr std::array<std::uint64_t, 3> kWindowSeconds{1, 10, 60};

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// Two looks, the first of which may be the feed's beginning.
class Between {
 public:
  Between(const Look* begin, const Look& end) : begin_(begin), end_(end) {}

  [[nodiscard]] bool is_window() const { return begin_ != nullptr; }
  [[nodiscard]] double covered() const {
    return begin_ == nullptr ? 0 : seconds(end_.time_ns - begin_->time_ns);
  }
  [[nodiscard]] const Look& end() const { return end_; }
  [[nodiscard]] std::uint64_t lane(std::size_t lane, std::uint64_t LaneLook::*what) const {
    return end_.lanes[lane].*what - (begin_ == nullptr ? 0 : begin_->lanes[lane].*what);
  }
  [[nodiscard]] std::uint64_t port(std::size_t port, std::uint64_t PortLook::*what) const {
    return end_.ports[port].*what - (begin_ == nullptr ? 0 : begin_->ports[port].*what);
  }
  [[nodiscard]] std::uint64_t latest(std::size_t counter) const {
    return counter < end_.counters.size() ? end_.counters[counter] : 0;
  }
  [[nodiscard]] std::uint64_t added(std::size_t counter) const {
    const std::uint64_t before =
        begin_ == nullptr || counter >= begin_->counters.size() ? 0 : begin_->counters[counter];
    const std::uint64_t now = latest(counter);
    return now - std::min(now, before);  // a gauge that nobody has declared as one may fall
  }

 private:
  const Look* begin_;
  const Look& end_;
};

// What the stage's kind declares, as far as lanes count it or it has a capacity, and then what a
// worker of another version counts beside that.
void fill_counters(const StagePlan& plan, const std::map<std::string, std::size_t>& counters,
                   const Between& between, StageMetricProto& stage) {
  std::set<std::string> declared;
  for (const CounterPlan& each : plan.counters()) {
    std::optional<std::uint64_t> value;
    const auto add = [&](const std::string& name) {
      const auto at = counters.find(name);
      if (at == counters.end()) return;
      value = value.value_or(0) +
              (each.gauge() ? between.latest(at->second) : between.added(at->second));
    };
    if (each.sum_of_size() == 0) {
      declared.insert(each.name());
      add(each.name());
    }
    for (const std::string& part : each.sum_of()) add(part);
    if (!value && !each.has_capacity()) continue;
    CounterMetricProto& out = *stage.add_counters();
    out.set_name(each.has_shown_as() ? each.shown_as() : each.name());
    if (value) out.set_value(*value);
    if (each.gauge()) out.set_gauge(true);
    if (each.listed()) out.set_listed(true);
    if (!each.has_capacity()) continue;
    out.set_capacity(each.capacity());
    out.set_capacity_name(each.capacity_shown_as());
    if (each.capacity_each_lane()) out.set_capacity_each_lane(true);
  }
  for (const auto& [name, place] : counters) {
    if (declared.contains(name)) continue;
    CounterMetricProto& out = *stage.add_counters();
    out.set_name(name);
    out.set_value(between.added(place));
    out.set_listed(true);
  }
}

void fill_load(const layout::NodeLayout& node, const Between& between, LoadMetricProto& load) {
  load.set_name(node.name.empty() ? "load" : node.name);
  std::uint64_t busy = 0;
  std::uint64_t starved = 0;
  std::uint64_t blocked = 0;
  std::uint64_t cpu = 0;
  std::uint64_t core_wait = 0;
  std::uint64_t records_in = 0;
  std::uint64_t records_out = 0;
  std::uint32_t lanes = 0;
  double busy_share = 0;
  double starved_share = 0;
  double blocked_share = 0;
  for (std::uint32_t i = 0; i < node.lanes_max; ++i) {
    // Those that were taken away again have their past.
    const std::uint32_t lane = node.first_lane + i;
    if (between.end().lanes[lane].at_work) {
      // A sleep that began before the window is counted in it, when it ends.
      const auto share = [&](std::uint64_t LaneLook::*what) {
        const double whole = between.covered();
        return whole <= 0 ? 0 : std::min(1.0, seconds(between.lane(lane, what)) / whole);
      };
      ++lanes;
      busy_share += share(&LaneLook::busy_ns);
      starved_share += share(&LaneLook::starved_ns);
      blocked_share += share(&LaneLook::blocked_ns);
    }
    busy += between.lane(lane, &LaneLook::busy_ns);
    starved += between.lane(lane, &LaneLook::starved_ns);
    blocked += between.lane(lane, &LaneLook::blocked_ns);
    cpu += between.lane(lane, &LaneLook::cpu_ns);
    core_wait += between.lane(lane, &LaneLook::core_wait_ns);
    records_in += between.lane(lane, &LaneLook::records_in);
    records_out += between.lane(lane, &LaneLook::records_out);
  }
  load.set_lanes(lanes);
  load.set_busy_seconds(seconds(busy));
  load.set_starved_seconds(seconds(starved));
  load.set_blocked_seconds(seconds(blocked));
  load.set_records_in(records_in);
  load.set_records_out(records_out);
  if (!between.is_window()) return;
  load.set_cpu_seconds(seconds(cpu));
  load.set_core_wait_seconds(seconds(core_wait));
  if (lanes == 0 || between.covered() <= 0) return;
  load.set_busy_share(busy_share / lanes);
  load.set_starved_share(starved_share / lanes);
  load.set_blocked_share(blocked_share / lanes);
}

void fill_queue(const FeedFacts& facts, std::size_t port, const Between& between,
                const Fullness& fullness, QueueMetricProto& queue) {
  queue.set_name(facts.shape.ports[port].name);
  queue.set_put_count(between.port(port, &PortLook::put));
  queue.set_get_count(between.port(port, &PortLook::get));
  queue.set_drop_count(between.port(port, &PortLook::drop));
  queue.set_put_bytes(between.port(port, &PortLook::put_bytes));
  queue.set_capacity(between.end().ports[port].capacity);
  StatisticsProtoInt64& seen = *queue.mutable_fullness();
  seen.set_min(static_cast<std::int64_t>(fullness.min));
  seen.set_max(static_cast<std::int64_t>(fullness.max));
  seen.set_mean(fullness.mean);
  seen.set_count(fullness.count);
  seen.set_latest(static_cast<std::int64_t>(fullness.latest));
  if (between.covered() <= 0) return;
  queue.set_put_per_s(static_cast<double>(queue.put_count()) / between.covered());
  queue.set_get_per_s(static_cast<double>(queue.get_count()) / between.covered());
}

template <typename FullnessOf>
void fill(const FeedFacts& facts, const Between& between, const FullnessOf& fullness,
          DataLoaderMetricsProto& metrics) {
  for (int s = 0; s < facts.config.stages_size(); ++s) {
    const auto number = static_cast<std::uint32_t>(s);
    const StagePlan& plan = facts.plan.stages(s);
    StageMetricProto& stage = *metrics.add_stage_metrics();
    stage.set_name(facts.config.stages(s).name());
    stage.set_kind(config::shown_kind(plan));
    for (const layout::NodeLayout& node : facts.layout.nodes) {
      if (node.stage == number) fill_load(node, between, *stage.add_loads());
    }
    fill_counters(plan, facts.counters.of_stage(number), between, stage);
    facts.texts.fill(plan, stage);
    for (std::size_t port = 0; port < facts.shape.ports.size(); ++port) {
      if (facts.shape.ports[port].stage != number) continue;
      fill_queue(facts, port, between, fullness(port), *stage.add_output_queue_metrics());
    }
  }
}

}  // namespace

void fill_total(const FeedFacts& facts, const History& history, DataLoaderMetricsProto& metrics) {
  fill(
      facts, Between(nullptr, history.newest()),
      [&](std::size_t port) { return history.fullness_ever(port); }, metrics);
}

void fill_window(const FeedFacts& facts, const History& history, std::size_t begin,
                 DataLoaderMetricsProto& metrics) {
  fill(
      facts, Between(&history.at(begin), history.newest()),
      [&](std::size_t port) { return history.fullness(port, begin); }, metrics);
}

void fill_metrics(const FeedFacts& facts, const History& history, MetricsReply& reply) {
  if (history.empty()) return;
  fill_total(facts, history, *reply.mutable_total());
  for (const std::uint64_t wanted : kWindowSeconds) {
    const std::size_t begin = history.begin_of(wanted * 1'000'000'000);
    WindowMetricsProto& window = *reply.add_windows();
    window.set_seconds_wanted(static_cast<double>(wanted));
    window.set_seconds_covered(seconds(history.newest().time_ns - history.at(begin).time_ns));
    fill_window(facts, history, begin, *window.mutable_metrics());
  }
}

}  // namespace ringfeed::metrics
