#include "supervisor/top/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "supervisor/metrics/show.h"

namespace ringfeed::top {
namespace {

constexpr double kWindowS = 10;
constexpr std::string_view kTrainers = "trainers";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

const WindowMetricsProto* window_of(const MetricsReply& metrics, double seconds) {
  for (const WindowMetricsProto& window : metrics.windows()) {
    if (window.seconds_wanted() == seconds) return &window;
  }
  return metrics.windows_size() == 0 ? nullptr : &metrics.windows(0);
}

const StageMetricProto* stage_of(const DataLoaderMetricsProto& metrics, const std::string& name) {
  for (const StageMetricProto& stage : metrics.stage_metrics()) {
    if (stage.name() == name) return &stage;
  }
  return nullptr;
}

const QueueMetricProto* queue_of(const StageMetricProto* stage, const std::string& name) {
  if (stage == nullptr) return nullptr;
  for (const QueueMetricProto& queue : stage->output_queue_metrics()) {
    if (queue.name() == name) return &queue;
  }
  return nullptr;
}

double seconds_between(const StatusReply& before, const StatusReply& now) {
  return now.uptime_ms() <= before.uptime_ms()
             ? 0
             : static_cast<double>(now.uptime_ms() - before.uptime_ms()) / 1e3;
}

std::optional<double> rate(std::uint64_t before, std::uint64_t now, double seconds) {
  if (seconds <= 0 || now < before) return std::nullopt;
  return static_cast<double>(now - before) / seconds;
}

// "pool.read" of the lane "pool.read.0".
std::string node_of(const std::string& lane) { return lane.substr(0, lane.rfind('.')); }

// The rings from one part of a stage to one stage, or to another part of its own.
struct Route {
  std::string to;
  bool inside = false;
  std::uint64_t capacity = 0;
  std::uint64_t put = 0;
};

// Which routes leave each stage. A message says of a ring which lanes it joins, and of a queue
// which port it belongs to; what both have is how much they hold and how much has passed.
class Routes {
 public:
  explicit Routes(const StatusReply& status) {
    std::map<std::string, std::string> stage_of_lane;
    for (const StageStatus& stage : status.stages()) {
      for (const LaneStatus& lane : stage.lanes()) stage_of_lane[lane.name()] = stage.name();
    }
    std::map<std::string, std::map<std::pair<std::string, std::string>, Route>> found;
    for (const RingStatus& ring : status.rings()) {
      const auto from = stage_of_lane.find(ring.from());
      const auto to = stage_of_lane.find(ring.to());
      if (from == stage_of_lane.end() || to == stage_of_lane.end()) continue;
      const bool inside = from->second == to->second;
      const std::string target = inside ? node_of(ring.to()) : to->second;
      Route& route = found[from->second][{node_of(ring.from()), target}];
      route.to = target;
      route.inside = inside;
      route.capacity += ring.capacity_records();
      route.put += ring.put_count();
    }
    for (auto& [stage, routes] : found) {
      for (auto& [ends, route] : routes) of_stage_[stage].push_back(std::move(route));
    }
  }

  // The route of a queue, which is then taken; that of the trainers if there is none left.
  [[nodiscard]] Route take(const std::string& stage, const QueueMetricProto& queue) {
    std::vector<Route>& routes = of_stage_[stage];
    const auto distance = [&](const Route& route) {
      const double put = std::abs(static_cast<double>(route.put) -
                                  static_cast<double>(queue.put_count() - queue.drop_count()));
      return std::pair(route.capacity != queue.capacity(), put);
    };
    const auto best = std::ranges::min_element(routes, {}, distance);
    if (best == routes.end()) return {.to = std::string(kTrainers)};
    Route route = *best;
    routes.erase(best);
    return route;
  }

 private:
  std::map<std::string, std::vector<Route>> of_stage_;
};

Shares shares_of(const LoadMetricProto& load, double seconds) {
  const double lane_seconds = std::max(1e-9, seconds * std::max(1u, load.lanes()));
  return {load.busy_share(), load.starved_share(), load.blocked_share(),
          load.cpu_seconds() / lane_seconds, load.core_wait_seconds() / lane_seconds};
}

void fill_parts(const WindowMetricsProto& window, StageRow& row) {
  const StageMetricProto* const stage = stage_of(window.metrics(), row.name);
  if (stage == nullptr) return;
  Shares sum;
  double lanes = 0;
  for (const LoadMetricProto& load : stage->loads()) {
    const Shares shares = shares_of(load, window.seconds_covered());
    row.parts.push_back(
        {load.name() == "load" ? std::string() : load.name(), load.lanes(), shares});
    const double weight = load.lanes();
    lanes += weight;
    for (double Shares::*const share :
         {&Shares::busy, &Shares::starved, &Shares::blocked, &Shares::cpu, &Shares::core_wait}) {
      sum.*share += weight * shares.*share;
    }
  }
  if (lanes == 0) return;
  for (double Shares::*const share :
       {&Shares::busy, &Shares::starved, &Shares::blocked, &Shares::cpu, &Shares::core_wait}) {
    sum.*share /= lanes;
  }
  row.shares = sum;
}

void fill_queues(const MetricsReply& metrics, const WindowMetricsProto* window, Routes& routes,
                 StageRow& row) {
  const StageMetricProto* const ever = stage_of(metrics.total(), row.name);
  if (ever == nullptr) return;
  const StageMetricProto* const now =
      window == nullptr ? nullptr : stage_of(window->metrics(), row.name);
  for (const QueueMetricProto& queue : ever->output_queue_metrics()) {
    const Route route = routes.take(row.name, queue);
    const QueueMetricProto* const lately = queue_of(now, queue.name());
    QueueRow& out = row.queues.emplace_back();
    out.name = queue.name();
    out.to = route.to;
    out.inside = route.inside;
    out.fill = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, (lately != nullptr ? lately : &queue)->fullness().latest()));
    out.capacity = queue.capacity();
    out.dropped = queue.drop_count();
    out.put_per_s = lately == nullptr ? 0 : lately->put_per_s();
    if (out.inside) continue;
    row.out += queue.put_count();
    if (lately != nullptr) row.out_per_s = row.out_per_s.value_or(0) + lately->put_per_s();
  }
  std::ranges::stable_sort(row.queues, {}, &QueueRow::inside);
}

void fill_lanes(const StageStatus& stage, const StatusReply* before, double seconds,
                StageRow& row) {
  const StageStatus* was_stage = nullptr;
  if (before != nullptr && row.place < static_cast<std::size_t>(before->stages_size())) {
    was_stage = &before->stages(static_cast<int>(row.place));
  }
  for (int i = 0; i < stage.lanes_size(); ++i) {
    const LaneStatus& lane = stage.lanes(i);
    row.deaths = std::max(row.deaths, lane.restarts());
    if (lane.state() == LaneStatus::ABSENT) ++row.absent;
    if (lane.state() != LaneStatus::ABSENT && lane.state() != LaneStatus::SPARE) ++row.lanes;
    if (lane.pid() != 0) row.pid = lane.pid();
    LaneRow& out = row.lane_rows.emplace_back();
    out.name = lane.name();
    out.state = lower(LaneStatus::State_Name(lane.state()));
    out.pid = lane.pid();
    out.restarts = lane.restarts();
    out.in = lane.records_in();
    out.out = lane.records_out();
    if (was_stage == nullptr || i >= was_stage->lanes_size()) continue;
    const LaneStatus& was = was_stage->lanes(i);
    out.out_per_s = rate(was.records_out(), lane.records_out(), seconds);
    const auto passed = [](std::uint64_t then, std::uint64_t now) {
      return now < then ? 0.0 : static_cast<double>(now - then);
    };
    Shares shares{passed(was.busy_ns(), lane.busy_ns()),
                  passed(was.starved_ns(), lane.starved_ns()),
                  passed(was.blocked_ns(), lane.blocked_ns())};
    const double sum = shares.busy + shares.starved + shares.blocked;
    if (sum <= 0) continue;
    out.shares = {shares.busy / sum, shares.starved / sum, shares.blocked / sum};
  }
}

void fill_outputs(const StatusReply& status, const MetricsReply& metrics, Picture& out) {
  for (const FeedStatus& output : status.outputs()) {
    OutputRow& row = out.outputs.emplace_back();
    row.alias = output.alias();
    row.batches = output.batches_published();
    row.slots = output.slots();
    row.used = output.slots_used();
    const auto found =
        std::ranges::find(metrics.bottlenecks(), output.alias(), &BottleneckProto::output);
    if (found == metrics.bottlenecks().end()) continue;
    row.sentence = found->sentence();
    row.per_s = found->batches_per_s();
    out.batches_per_s += row.per_s;
    const bool somebody = std::ranges::any_of(status.trainers(), [&](const TrainerStatus& one) {
      return one.output() == output.alias();
    });
    const std::string stage =
        found->part().empty() ? found->stage() : found->stage() + "." + found->part();
    row.verdict = OutputRow::Verdict::kTrainersWait;
    switch (found->kind()) {
      case BottleneckProto::UNKNOWN:
        row.verdict = OutputRow::Verdict::kUnknown;
        break;
      case BottleneckProto::TRAINERS:
        row.verdict = OutputRow::Verdict::kTrainersLimit;
        break;
      case BottleneckProto::FILES:
        row.for_whom = "new files";
        break;
      case BottleneckProto::MACHINE:
        row.for_whom = "a free processor";
        break;
      case BottleneckProto::QUEUE:
        row.for_whom = fmt::format("room in the queue of '{}'", stage);
        break;
      case BottleneckProto::STAGE:
      case BottleneckProto::GIVES_NOTHING:
      case BottleneckProto::LEAVES_OUT:
        row.for_whom = fmt::format("stage '{}'", stage);
        break;
    }
    if (!somebody) row.verdict = OutputRow::Verdict::kNobody;
    out.cores = found->cores();
    out.cores_busy = found->cores_busy();
    out.cores_idle = found->cores_idle();
  }
}

void fill_trainers(const StatusReply& status, const StatusReply* before, double seconds,
                   Picture& out) {
  for (const ConsumerGroupStatus& group : status.groups()) {
    out.lost_batches += group.skipped();
    TrainerRow row;
    row.group = group.name();
    row.output = group.output();
    row.behind = group.lag();
    row.skipped = group.skipped();
    bool somebody = false;
    for (const TrainerStatus& trainer : status.trainers()) {
      if (trainer.group() != group.name() || trainer.output() != group.output()) continue;
      somebody = true;
      ++out.trainer_count;
      TrainerRow one = row;
      one.member = trainer.member();
      one.pid = trainer.pid();
      one.client = trainer.client();
      one.taken = trainer.taken();
      one.holds = trainer.taken() - std::min(trainer.taken(), trainer.done());
      if (before != nullptr) {
        for (const TrainerStatus& was : before->trainers()) {
          if (was.group() != one.group || was.output() != one.output || was.pid() != one.pid ||
              was.member() != one.member) {
            continue;
          }
          one.per_s = rate(was.taken(), one.taken, seconds);
        }
      }
      out.trainers.push_back(std::move(one));
    }
    if (!somebody) out.trainers.push_back(std::move(row));
  }
}

void fill_stages(const StatusReply& status, const StatusReply* before, const MetricsReply& metrics,
                 Picture& out) {
  const WindowMetricsProto* const window = window_of(metrics, kWindowS);
  const double seconds = before == nullptr ? 0 : seconds_between(*before, status);
  std::set<std::string> limits;
  for (const BottleneckProto& found : metrics.bottlenecks()) {
    const bool waits =
        found.kind() != BottleneckProto::TRAINERS && found.kind() != BottleneckProto::UNKNOWN;
    if (waits && !found.stage().empty()) limits.insert(found.stage());
  }
  Routes routes(status);
  for (const StageStatus& stage : status.stages()) {
    StageRow row;
    row.name = stage.name();
    row.kind = stage.kind();
    row.process = stage.group();
    row.note = stage.progress();
    row.place = out.stages.size();
    row.limits = limits.contains(stage.name());
    if (window != nullptr) fill_parts(*window, row);
    fill_queues(metrics, window, routes, row);
    fill_lanes(stage, before, seconds, row);
    for (const CounterStatus& counter : stage.counters()) {
      if (counter.value() == 0) continue;
      row.counters.emplace_back(counter.name(), counter.value());
      if (const std::optional<std::string> reason = skip_reason(counter.name())) {
        out.skips.emplace_back(fmt::format("{}: {}", stage.name(), *reason), counter.value());
      }
    }
    out.stages.push_back(std::move(row));
  }
  for (const auto& [what, count] : out.skips) out.skipped += count;
}

}  // namespace

std::optional<std::string> skip_reason(const std::string& counter) {
  constexpr std::string_view kSkipped = "skipped_";
  if (!counter.starts_with(kSkipped)) return std::nullopt;
  std::string reason = counter.substr(kSkipped.size());
  std::ranges::replace(reason, '_', ' ');
  return reason;
}

Picture picture_of(const StatusReply& status, const StatusReply* before,
                   const MetricsReply& metrics) {
  Picture out;
  out.feed = status.feed();
  out.state = lower(StatusReply::State_Name(status.state()));
  out.reason = status.reason();
  out.version = status.version();
  out.config = status.config_file();
  out.uptime_ms = status.uptime_ms();
  out.pid = status.supervisor_pid();
  out.memory_bytes = status.memory_bytes();
  out.deaths = metrics.deaths();
  out.problems.assign(status.problems().begin(), status.problems().end());
  if (status.state() == StatusReply::STARTING || status.state() == StatusReply::WARMING) {
    out.progress.assign(status.progress().begin(), status.progress().end());
  }
  fill_outputs(status, metrics, out);
  fill_stages(status, before, metrics, out);
  fill_trainers(status, before, before == nullptr ? 0 : seconds_between(*before, status), out);
  out.why = metrics::show_bottlenecks(metrics);
  return out;
}

std::vector<double> past_rates(const Picture& picture, const MetricsReply& metrics) {
  std::vector<double> rates(60, -1);
  // What was put into the slots in the whole window; its end is the end of a shorter one.
  struct Part {
    double seconds = 0;
    double batches = 0;
  };
  std::vector<Part> parts;
  for (const WindowMetricsProto& window : metrics.windows()) {
    Part& part = parts.emplace_back();
    part.seconds = window.seconds_covered();
    for (const StageRow& stage : picture.stages) {
      for (const QueueRow& queue : stage.queues) {
        if (queue.to != kTrainers) continue;
        const QueueMetricProto* const slots =
            queue_of(stage_of(window.metrics(), stage.name), queue.name);
        if (slots != nullptr) part.batches += static_cast<double>(slots->put_count());
      }
    }
  }
  std::ranges::sort(parts, {}, &Part::seconds);
  Part before;
  for (const Part& part : parts) {
    const double seconds = part.seconds - before.seconds;
    if (seconds <= 0) continue;
    const double mean = std::max(0.0, part.batches - before.batches) / seconds;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const auto age = static_cast<double>(rates.size() - i) - 0.5;
      if (age > before.seconds && age <= part.seconds) rates[i] = mean;
    }
    before = part;
  }
  return rates;
}

}  // namespace ringfeed::top
