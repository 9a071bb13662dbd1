#include "supervisor/metrics/show.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/json_writer.h"
#include "supervisor/metrics/progress.h"
#include "supervisor/os/table.h"
#include "supervisor/os/text.h"

namespace ringfeed::metrics {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Records out (or in, for a lane without rings behind it) of every lane, by name.
std::map<std::string, std::uint64_t> records(const StatusReply& status) {
  std::map<std::string, std::uint64_t> out;
  for (const StageStatus& stage : status.stages()) {
    for (const LaneStatus& lane : stage.lanes()) out[lane.name()] = lane.records_out();
  }
  return out;
}

double seconds_between(const StatusReply& before, const StatusReply& after) {
  return static_cast<double>(after.uptime_ms() - std::min(before.uptime_ms(), after.uptime_ms())) /
         1000.0;
}

double rate(std::uint64_t before, std::uint64_t after, double seconds) {
  return seconds <= 0 || after < before ? 0 : static_cast<double>(after - before) / seconds;
}

std::string shown_rate(double value) {
  if (value >= 1e6) return fmt::format("{:.1f} M/s", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f} k/s", value / 1e3);
  return fmt::format("{:.1f} /s", value);
}

// Of shares of time, as they are shown.
constexpr const char* kShareHead = "busy/starved/blocked %";

std::string shown_share(const LaneStatus& lane) {
  const auto sum = static_cast<double>(lane.busy_ns() + lane.starved_ns() + lane.blocked_ns());
  if (sum == 0) return "-";
  const auto percent = [&](std::uint64_t part) { return 100.0 * static_cast<double>(part) / sum; };
  return fmt::format("{:.0f}/{:.0f}/{:.0f}", percent(lane.busy_ns()), percent(lane.starved_ns()),
                     percent(lane.blocked_ns()));
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string lanes_text(const StatusReply& status, const StatusReply* before) {
  const std::map<std::string, std::uint64_t> earlier =
      before == nullptr ? std::map<std::string, std::uint64_t>() : records(*before);
  Table table({{"lane"},
               {"state"},
               {"pid", Align::kRight},
               {"restarts", Align::kRight},
               {"in", Align::kRight},
               {"out", Align::kRight},
               {"rate", Align::kRight},
               {kShareHead, Align::kRight}});
  for (const StageStatus& stage : status.stages()) {
    for (const LaneStatus& lane : stage.lanes()) {
      const auto was = earlier.find(lane.name());
      table.add({lane.name(), lower(LaneStatus::State_Name(lane.state())),
                 lane.pid() == 0 ? "-" : fmt::to_string(lane.pid()),
                 fmt::to_string(lane.restarts()), fmt::to_string(lane.records_in()),
                 fmt::to_string(lane.records_out()),
                 was == earlier.end() ? "-"
                                      : shown_rate(rate(was->second, lane.records_out(),
                                                        seconds_between(*before, status))),
                 shown_share(lane)});
    }
  }
  return table.text();
}

std::string rings_text(const StatusReply& status) {
  Table table({{"ring"},
               {"records", Align::kRight},
               {"bytes", Align::kRight},
               {"dropped", Align::kRight},
               {""}});
  for (const RingStatus& ring : status.rings()) {
    table.add({ring.from() + " > " + ring.to(),
               fmt::format("{} of {}", ring.fill_records(), ring.capacity_records()),
               fmt::format("{} of {}", shown_bytes(ring.fill_bytes()),
                           shown_bytes(ring.capacity_bytes())),
               fmt::to_string(ring.drop_count()), ring.closed() ? "closed" : ""});
  }
  return table.text();
}

// An output, its groups and their members.
std::string output_text(const StatusReply& status, const FeedStatus& output,
                        const std::string& pace) {
  std::string text =
      fmt::format("{}: {} batches{}, {} of {} slots in use\n",
                  output.alias().empty() ? "feed" : "output " + output.alias(),
                  output.batches_published(), pace, output.slots_used(), output.slots());
  for (const ConsumerGroupStatus& group : status.groups()) {
    if (group.output() != output.alias()) continue;
    text += fmt::format(
        "group {}: {}{}, {} trainer{}, from batch {}, {} behind{}\n", group.name(),
        lower(ConsumerGroupConfig::Kind_Name(group.kind())),
        group.world() != 0 ? fmt::format(" of {}", group.world()) : std::string(), group.members(),
        group.members() == 1 ? "" : "s", group.start(), group.lag(),
        group.skipped() != 0 ? fmt::format(", {} lost", group.skipped()) : std::string());
    for (const TrainerStatus& trainer : status.trainers()) {
      if (trainer.group() != group.name() || trainer.output() != output.alias()) continue;
      text +=
          fmt::format("  trainer {}: process {} ({}), took {}, gave back {}\n", trainer.member(),
                      trainer.pid(), trainer.client(), trainer.taken(), trainer.done());
    }
  }
  return text;
}

// A counter's value, with a unit where it counts bytes: "bytes_read=9.1GiB", a word for awk.
std::string counter_text(const std::string& name, std::uint64_t value) {
  const std::string words = "_" + name + "_";
  if (words.find("_bytes_") == std::string::npos) return fmt::format("{}={}", name, value);
  std::string bytes = shown_bytes(value);
  bytes.erase(bytes.find(' '), 1);
  return fmt::format("{}={}", name, bytes);
}

// What the stage counts, its capacities and texts, then what is not its kind's own.
std::string counters_text(const StageMetricProto& stage) {
  std::vector<std::string> parts;
  std::vector<std::string> listed;
  for (const CounterMetricProto& counter : stage.counters()) {
    std::vector<std::string>& to = counter.listed() ? listed : parts;
    if (counter.has_value()) to.push_back(counter_text(counter.name(), counter.value()));
    if (!counter.has_capacity()) continue;
    to.push_back(counter_text(counter.capacity_name(), counter.capacity()));
  }
  for (const TextMetricProto& text : stage.texts()) {
    parts.push_back(fmt::format("{}={}", text.name(), text.text()));
  }
  parts.insert(parts.end(), listed.begin(), listed.end());
  return fmt::format("{}", fmt::join(parts, " "));
}

// The queue of the same place in another window.
const QueueMetricProto* same_queue(const WindowMetricsProto& window, int stage, int queue) {
  if (stage >= window.metrics().stage_metrics_size()) return nullptr;
  const StageMetricProto& there = window.metrics().stage_metrics(stage);
  return queue < there.output_queue_metrics_size() ? &there.output_queue_metrics(queue) : nullptr;
}

// Every string of the message as it may reach a terminal: names are chosen by clients and by
// whoever names files.
void escape_strings(Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        escape_strings(field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, i)
                                            : *reflection.MutableMessage(&message, field));
      } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
        break;
      } else if (field->is_repeated()) {
        const std::string text = escaped(reflection.GetRepeatedString(message, field, i));
        reflection.SetRepeatedString(&message, field, i, text);
      } else {
        reflection.SetString(&message, field, escaped(reflection.GetString(message, field)));
      }
    }
  }
}

template <typename M>
M printable(const M& message) {
  M copy = message;
  escape_strings(copy);
  return copy;
}

// What the stages say of themselves, and how long what is under way will take.
std::string notes_text(const StatusReply& status) {
  std::string text;
  for (const StageStatus& stage : status.stages()) {
    if (stage.progress().empty()) continue;
    text += fmt::format("  {}: {}", stage.name(), stage.progress());
    for (const ProgressStatus& one : status.under_way()) {
      if (one.name() == stage.name() && one.has_left_ms())
        text += ", " + left_text(progress_of(one));
    }
    text += "\n";
  }
  for (const ProgressStatus& one : status.under_way()) {
    const bool is_stage = std::ranges::any_of(
        status.stages(), [&](const StageStatus& stage) { return stage.name() == one.name(); });
    if (!is_stage) text += fmt::format("  {}\n", progress_line(progress_of(one)));
  }
  return text;
}

}  // namespace

namespace {

std::string loads_text(const DataLoaderMetricsProto& total, const WindowMetricsProto& window) {
  Table table({{"stage"},
               {"lanes", Align::kRight},
               {kShareHead, Align::kRight},
               {"cpu s", Align::kRight},
               {"no core s", Align::kRight},
               {"in", Align::kRight},
               {"out", Align::kRight}});
  for (int s = 0; s < total.stage_metrics_size(); ++s) {
    const auto& ever = total.stage_metrics(s).loads();
    const auto& now = window.metrics().stage_metrics(s).loads();
    const std::string& name = total.stage_metrics(s).name();
    for (int i = 0; i < std::min(ever.size(), now.size()); ++i) {
      table.add({now[i].name() == "load" ? name : name + "." + now[i].name(),
                 fmt::to_string(now[i].lanes()),
                 now[i].lanes() == 0
                     ? std::string("-")
                     : fmt::format("{:.0f}/{:.0f}/{:.0f}", 100 * now[i].busy_share(),
                                   100 * now[i].starved_share(), 100 * now[i].blocked_share()),
                 fmt::format("{:.2f}", now[i].cpu_seconds()),
                 fmt::format("{:.2f}", now[i].core_wait_seconds()),
                 fmt::to_string(ever[i].records_in()), fmt::to_string(ever[i].records_out())});
    }
  }
  return table.text();
}

std::string queues_text(const MetricsReply& metrics, const WindowMetricsProto& window) {
  std::vector<Table::Column> columns{{"queue"},
                                     {"min/mean/max", Align::kRight},
                                     {"of", Align::kRight},
                                     {"put", Align::kRight},
                                     {"dropped", Align::kRight}};
  for (const WindowMetricsProto& each : metrics.windows()) {
    columns.push_back({fmt::format("put/s in {:.0f} s", each.seconds_covered()), Align::kRight});
  }
  Table table(std::move(columns));
  for (int s = 0; s < metrics.total().stage_metrics_size(); ++s) {
    const StageMetricProto& stage = metrics.total().stage_metrics(s);
    for (int q = 0; q < stage.output_queue_metrics_size(); ++q) {
      const QueueMetricProto& queue = stage.output_queue_metrics(q);
      const QueueMetricProto* const now = same_queue(window, s, q);
      if (now == nullptr) continue;
      std::vector<std::string> cells{stage.name() + "." + queue.name(),
                                     fmt::format("{}/{:.1f}/{}", now->fullness().min(),
                                                 now->fullness().mean(), now->fullness().max()),
                                     fmt::to_string(queue.capacity()),
                                     fmt::to_string(queue.put_count()),
                                     fmt::to_string(queue.drop_count())};
      for (const WindowMetricsProto& each : metrics.windows()) {
        const QueueMetricProto* const there = same_queue(each, s, q);
        cells.push_back(there == nullptr ? "-" : shown_rate(there->put_per_s()));
      }
      table.add(cells);
    }
  }
  return table.text();
}

std::string shares_text(const BottleneckProto& found) {
  Table table({{"stage"},
               {"lanes", Align::kRight},
               {"busy %", Align::kRight},
               {"starved %", Align::kRight},
               {"blocked %", Align::kRight},
               {"cpu %", Align::kRight},
               {"no core %", Align::kRight}});
  const auto percent = [](double share) { return fmt::format("{:.0f}", 100 * share); };
  for (const LaneShareProto& share : found.shares()) {
    std::vector<std::string> cells{share.name(), fmt::to_string(share.lanes())};
    for (const double part :
         {share.busy(), share.starved(), share.blocked(), share.cpu(), share.core_wait()}) {
      cells.push_back(share.lanes() == 0 ? "-" : percent(part));
    }
    table.add(cells);
  }
  return table.text();
}

}  // namespace

std::string show_metrics(const MetricsReply& given) {
  const MetricsReply metrics = printable(given);
  if (metrics.windows_size() == 0) return "nothing has been measured yet\n";
  const WindowMetricsProto& window = metrics.windows(std::min(1, metrics.windows_size() - 1));
  std::string text = fmt::format("feed {}: shares and fullness over the last {:.1f} s\n\n{}\n{}\n",
                                 metrics.feed(), window.seconds_covered(),
                                 loads_text(metrics.total(), window), queues_text(metrics, window));
  for (const StageMetricProto& stage : metrics.total().stage_metrics()) {
    const std::string counters = counters_text(stage);
    if (!counters.empty()) text += fmt::format("{}: {}\n", stage.name(), counters);
  }
  return text;
}

std::string show_bottlenecks(const MetricsReply& given) {
  const MetricsReply metrics = printable(given);
  std::string text;
  for (const BottleneckProto& found : metrics.bottlenecks()) {
    if (found.has_output()) text += fmt::format("output {}: ", found.output());
    text += fmt::format("{}\n", found.sentence());
    if (found.shares_size() == 0) continue;
    text += fmt::format("\nshares of time over the last {:.1f} s\n{}", found.seconds_covered(),
                        shares_text(found));
    text += fmt::format("processors: {:g}, busy with the feed {:.2f}, idle {:.2f}\n", found.cores(),
                        found.cores_busy(), found.cores_idle());
  }
  return text;
}

std::string show_status(const StatusReply& given, const StatusReply* before, bool all) {
  const StatusReply status = printable(given);
  std::string text =
      fmt::format("feed {}: {} for {}, process {}, seed {}, {}\n", status.feed(),
                  lower(StatusReply::State_Name(status.state())), shown_time(status.uptime_ms()),
                  status.supervisor_pid(), status.seed(), shown_bytes(status.memory_bytes()));
  if (!status.reason().empty()) text += fmt::format("  {}\n", status.reason());
  if (status.has_http()) text += fmt::format("  in a browser: {}\n", status.http());
  for (const std::string& problem : status.problems()) {
    text += fmt::format("  problem: {}\n", problem);
  }
  text += notes_text(status);
  text += "\n" + lanes_text(status, before) + "\n" + rings_text(status) + "\n";
  for (const StageStatus& stage : status.stages()) {
    std::string counters;
    for (const CounterStatus& counter : stage.counters()) {
      if (counter.value() == 0 && !all) continue;
      counters += " " + counter_text(counter.name(), counter.value());
    }
    if (!counters.empty()) text += fmt::format("{}:{}\n", stage.name(), counters);
  }
  for (int i = 0; i < status.outputs_size(); ++i) {
    const FeedStatus* earlier =
        before == nullptr || i >= before->outputs_size() ? nullptr : &before->outputs(i);
    text += output_text(status, status.outputs(i),
                        earlier == nullptr
                            ? std::string()
                            : ", " + shown_rate(rate(earlier->batches_published(),
                                                     status.outputs(i).batches_published(),
                                                     seconds_between(*before, status))));
  }
  return text;
}

std::string status_line(const StatusReply& status, const StatusReply* before) {
  if (before == nullptr) return message_json(status);
  const std::map<std::string, std::uint64_t> earlier = records(*before);
  const double seconds = seconds_between(*before, status);
  return message_json(status, false, [&](const google::protobuf::Message& of, JsonWriter& out) {
    if (const auto* const lane = dynamic_cast<const LaneStatus*>(&of)) {
      const auto was = earlier.find(lane->name());
      if (was == earlier.end()) return;
      out.name("records_per_s");
      out.value(rate(was->second, lane->records_out(), seconds));
    } else if (dynamic_cast<const FeedStatus*>(&of) != nullptr) {
      for (int i = 0; i < std::min(before->outputs_size(), status.outputs_size()); ++i) {
        if (&status.outputs(i) != &of) continue;
        out.name("batches_per_s");
        out.value(rate(before->outputs(i).batches_published(),
                       status.outputs(i).batches_published(), seconds));
      }
    }
  });
}

std::string status_json(const StatusReply& status, const StatusReply* before) {
  return json_text(Json::parse(status_line(status, before)), 2) + "\n";
}

}  // namespace ringfeed::metrics
