#include "supervisor/metrics/openmetrics.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/quote.h"

namespace ringfeed::metrics {
namespace {

enum class Type { kCounter, kGauge, kHistogram };

struct Label {
  std::string_view name;
  std::string_view value;
};
using Labels = std::initializer_list<Label>;

constexpr double kNsPerS = 1e9;
constexpr double kUsPerS = 1e6;
constexpr double kMsPerS = 1e3;
constexpr std::size_t kReasonBytes = 300;

std::string escaped_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// One family at a time, as both formats ask: all of its series stand together.
class Text {
 public:
  explicit Text(TextForm form) : form_(form) {}

  // `name`: without `_total`, which a counter's samples get.
  void family(std::string_view name, Type type, std::string_view help) {
    name_ = name;
    suffix_ = type == Type::kCounter ? "_total" : "";
    const std::string_view total = form_ == TextForm::kPrometheus ? suffix_ : "";
    constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram"};
    fmt::format_to(std::back_inserter(out_), "# HELP ringfeed_{}{} {}\n# TYPE ringfeed_{}{} {}\n",
                   name, total, help, name, total, kTypes[static_cast<int>(type)]);
  }

  // What the samples' names end with from here on, within a family: the parts of a histogram.
  void part(std::string_view suffix) { suffix_ = suffix; }

  void add(Labels labels, double value) {
    out_ += "ringfeed_";
    out_ += name_;
    out_ += suffix_;
    char separator = '{';
    for (const Label& label : labels) {
      fmt::format_to(std::back_inserter(out_), "{}{}=\"{}\"", separator, label.name,
                     escaped_label(label.value));
      separator = ',';
    }
    if (separator == ',') out_ += '}';
    fmt::format_to(std::back_inserter(out_), " {}\n", value);
  }

  void add(Labels labels, std::uint64_t value) { add(labels, static_cast<double>(value)); }

  [[nodiscard]] std::string take() {
    if (form_ == TextForm::kOpenMetrics) out_ += "# EOF\n";
    return std::move(out_);
  }

 private:
  TextForm form_;
  std::string out_;
  std::string name_;
  std::string_view suffix_;
};

using Feeds = std::vector<FeedNumbers>;

// Of each feed whose status is known.
template <typename Each>
void statuses(const Feeds& feeds, const Each& each) {
  for (const FeedNumbers& one : feeds) {
    if (one.status != nullptr) each(std::string_view(one.feed), *one.status);
  }
}

template <typename Each>
void lanes(const Feeds& feeds, const Each& each) {
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    for (const StageStatus& stage : status.stages()) {
      for (const LaneStatus& lane : stage.lanes()) {
        if (lane.state() != LaneStatus::ABSENT && lane.state() != LaneStatus::SPARE) {
          each(feed, stage, lane);
        }
      }
    }
  });
}

template <typename Each>
void stages(const Feeds& feeds, const Each& each) {
  for (const FeedNumbers& one : feeds) {
    if (one.metrics == nullptr) continue;
    for (const StageMetricProto& stage : one.metrics->total().stage_metrics()) {
      each(std::string_view(one.feed), stage);
    }
  }
}

void add_feeds(Text& text, const Feeds& feeds) {
  text.family("feed_up", Type::kGauge, "1: the feed's supervisor answers.");
  for (const FeedNumbers& one : feeds) {
    text.add({{"feed", one.feed}}, one.status != nullptr ? 1.0 : 0.0);
  }
  text.family("feed_reason", Type::kGauge, "Why the feed's supervisor does not answer; always 1.");
  for (const FeedNumbers& one : feeds) {
    if (one.status != nullptr) continue;
    // Words of users' programs and names of files: a label has to be UTF-8.
    std::string reason = escaped(one.reason);
    if (reason.size() > kReasonBytes) reason = escaped(reason.substr(0, kReasonBytes));
    text.add({{"feed", one.feed}, {"reason", reason}}, 1.0);
  }
  text.family("build_info", Type::kGauge, "Version of the feed's supervisor; always 1.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    text.add({{"feed", feed}, {"version", status.version()}}, 1.0);
  });
  text.family("feed_state", Type::kGauge, "1: the feed is in this state.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    for (int state = StatusReply::State_MIN; state <= StatusReply::State_MAX; ++state) {
      const auto one = static_cast<StatusReply::State>(state);
      text.add({{"feed", feed}, {"state", StatusReply::State_Name(one)}},
               status.state() == one ? 1.0 : 0.0);
    }
  });
  for (const FeedNumbers& one : feeds) {
    if (one.status == nullptr && !one.ended.empty()) {
      text.add({{"feed", one.feed}, {"state", one.ended}}, 1.0);
    }
  }
  text.family("uptime_seconds", Type::kGauge, "How long the supervisor of the feed has run.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    text.add({{"feed", feed}}, static_cast<double>(status.uptime_ms()) / kMsPerS);
  });
  text.family("memory_bytes", Type::kGauge, "Memory of the feed's segments.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    text.add({{"feed", feed}}, status.memory_bytes());
  });
  text.family("memory_part_bytes", Type::kGauge, "Memory that a part of the feed has reserved.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    for (const MemoryStatus& part : status.memory()) {
      text.add({{"feed", feed}, {"part", part.name()}}, part.bytes());
    }
  });
  text.family("memory_budget_bytes", Type::kGauge,
              "storage.memory_budget_bytes of the feed; absent: it has none.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    if (status.has_memory_budget_bytes()) {
      text.add({{"feed", feed}}, status.memory_budget_bytes());
    }
  });
  text.family("problems", Type::kGauge, "What the supervisor cannot do at the moment and retries.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    text.add({{"feed", feed}}, static_cast<double>(status.problems_size()));
  });
}

void add_outputs(Text& text, const Feeds& feeds) {
  const auto outputs = [&](auto each) {
    statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
      for (const FeedStatus& output : status.outputs()) each(feed, output);
    });
  };
  text.family("batches_published", Type::kCounter, "Batches that the feed has published.");
  outputs([&](std::string_view feed, const FeedStatus& output) {
    text.add({{"feed", feed}, {"output", output.alias()}}, output.batches_published());
  });
  text.family("rows_published", Type::kCounter, "Rows of these batches.");
  outputs([&](std::string_view feed, const FeedStatus& output) {
    text.add({{"feed", feed}, {"output", output.alias()}}, output.rows_published());
  });
  text.family("slots", Type::kGauge, "Batches for which an output has room.");
  outputs([&](std::string_view feed, const FeedStatus& output) {
    text.add({{"feed", feed}, {"output", output.alias()}}, std::uint64_t{output.slots()});
  });
  text.family("slots_used", Type::kGauge, "Batches that it holds: published, or being written.");
  outputs([&](std::string_view feed, const FeedStatus& output) {
    text.add({{"feed", feed}, {"output", output.alias()}}, std::uint64_t{output.slots_used()});
  });
}

void add_lanes(Text& text, const Feeds& feeds) {
  text.family("stage_records", Type::kCounter, "Records that a lane has taken and put out.");
  lanes(feeds, [&](std::string_view feed, const StageStatus& stage, const LaneStatus& lane) {
    const Labels in{
        {"feed", feed}, {"stage", stage.name()}, {"lane", lane.name()}, {"direction", "in"}};
    text.add(in, lane.records_in());
    const Labels out{
        {"feed", feed}, {"stage", stage.name()}, {"lane", lane.name()}, {"direction", "out"}};
    text.add(out, lane.records_out());
  });
  const auto seconds = [&](std::string_view name, std::string_view help,
                           std::uint64_t (LaneStatus::*ns)() const) {
    text.family(name, Type::kCounter, help);
    lanes(feeds, [&](std::string_view feed, const StageStatus& stage, const LaneStatus& lane) {
      text.add({{"feed", feed}, {"stage", stage.name()}, {"lane", lane.name()}},
               static_cast<double>((lane.*ns)()) / kNsPerS);
    });
  };
  seconds("stage_busy_seconds", "Time in which a lane worked.", &LaneStatus::busy_ns);
  seconds("stage_starved_seconds", "Time in which it waited for input.", &LaneStatus::starved_ns);
  seconds("stage_blocked_seconds", "Time in which it waited for room.", &LaneStatus::blocked_ns);
  text.family("restarts", Type::kCounter,
              "Processes of a group of stages that were replaced under the feed's present "
              "supervisor, by the signal that had ended them; none: by themselves, or on request.");
  statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
    for (const RestartStatus& restart : status.restarts()) {
      text.add({{"feed", feed}, {"stage_group", restart.group()}, {"signal", restart.signal()}},
               restart.count());
    }
  });
}

// "skipped_no_chunks" is the reason "no_chunks".
constexpr std::string_view kSkipped = "skipped_";

void add_counters(Text& text, const Feeds& feeds) {
  const auto counters = [&](bool gauges, auto each) {
    stages(feeds, [&](std::string_view feed, const StageMetricProto& stage) {
      for (const CounterMetricProto& counter : stage.counters()) {
        if (counter.gauge() == gauges && counter.has_value()) each(feed, stage, counter);
      }
    });
  };
  text.family("stage_events", Type::kCounter,
              "What a stage counts; docs/reference/metrics.md says what each counter is.");
  counters(false, [&](std::string_view feed, const StageMetricProto& stage,
                      const CounterMetricProto& counter) {
    if (counter.name().starts_with(kSkipped)) return;
    text.add({{"feed", feed}, {"stage", stage.name()}, {"counter", counter.name()}},
             counter.value());
  });
  text.family("skipped", Type::kCounter, "What a stage has left out, by reason.");
  counters(false, [&](std::string_view feed, const StageMetricProto& stage,
                      const CounterMetricProto& counter) {
    if (!counter.name().starts_with(kSkipped)) return;
    const std::string_view reason = std::string_view(counter.name()).substr(kSkipped.size());
    text.add({{"feed", feed}, {"stage", stage.name()}, {"reason", reason}}, counter.value());
  });
  text.family("stage_level", Type::kGauge, "What a stage has at the moment.");
  counters(true, [&](std::string_view feed, const StageMetricProto& stage,
                     const CounterMetricProto& counter) {
    text.add({{"feed", feed}, {"stage", stage.name()}, {"counter", counter.name()}},
             counter.value());
  });
}

void add_queues(Text& text, const Feeds& feeds) {
  const auto queues = [&](auto each) {
    stages(feeds, [&](std::string_view feed, const StageMetricProto& stage) {
      for (const QueueMetricProto& queue : stage.output_queue_metrics()) each(feed, stage, queue);
    });
  };
  text.family("queue_fill_ratio", Type::kGauge,
              "Records in the queues behind an output port, of those for which there is room.");
  queues([&](std::string_view feed, const StageMetricProto& stage, const QueueMetricProto& queue) {
    if (queue.capacity() == 0 || !queue.fullness().has_latest()) return;
    text.add(
        {{"feed", feed}, {"stage", stage.name()}, {"queue", queue.name()}},
        static_cast<double>(queue.fullness().latest()) / static_cast<double>(queue.capacity()));
  });
  const auto records = [&](std::string_view name, std::string_view help,
                           std::uint64_t (QueueMetricProto::*count)() const) {
    text.family(name, Type::kCounter, help);
    queues(
        [&](std::string_view feed, const StageMetricProto& stage, const QueueMetricProto& queue) {
          text.add({{"feed", feed}, {"stage", stage.name()}, {"queue", queue.name()}},
                   (queue.*count)());
        });
  };
  records("queue_put_records", "Records that were offered to it.", &QueueMetricProto::put_count);
  records("queue_get_records", "Records that were taken from it.", &QueueMetricProto::get_count);
  records("queue_dropped_records", "Records that found no room, or gave way to newer ones.",
          &QueueMetricProto::drop_count);
}

// As its members have counted: numbers that anybody may have written.
void add_waits(Text& text, std::string_view feed, const ConsumerGroupStatus& group) {
  if (group.wait_counts_size() != group.wait_bounds_us_size() + 1) return;
  text.part("_bucket");
  double count = 0;
  for (int i = 0; i < group.wait_counts_size(); ++i) {
    count += static_cast<double>(group.wait_counts(i));
    // Written as a float, as OpenMetrics wants it.
    const std::string bound =
        i == group.wait_bounds_us_size()
            ? "+Inf"
            : fmt::format("{:#.{}g}", static_cast<double>(group.wait_bounds_us(i)) / kUsPerS, 2);
    text.add({{"feed", feed}, {"output", group.output()}, {"group", group.name()}, {"le", bound}},
             count);
  }
  const Labels labels{{"feed", feed}, {"output", group.output()}, {"group", group.name()}};
  text.part("_sum");
  text.add(labels, static_cast<double>(group.wait_ns()) / kNsPerS);
  text.part("_count");
  text.add(labels, count);
}

void add_trainers(Text& text, const Feeds& feeds) {
  const auto groups = [&](auto each) {
    statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
      for (const ConsumerGroupStatus& group : status.groups()) each(feed, group);
    });
  };
  text.family("group_members", Type::kGauge, "Trainers in a consumer group.");
  groups([&](std::string_view feed, const ConsumerGroupStatus& group) {
    text.add({{"feed", feed}, {"output", group.output()}, {"group", group.name()}},
             std::uint64_t{group.members()});
  });
  text.family("group_lag_batches", Type::kGauge, "Published batches that it has not finished.");
  groups([&](std::string_view feed, const ConsumerGroupStatus& group) {
    text.add({{"feed", feed}, {"output", group.output()}, {"group", group.name()}}, group.lag());
  });
  text.family("group_skipped_batches", Type::kCounter, "Batches that it has lost.");
  groups([&](std::string_view feed, const ConsumerGroupStatus& group) {
    text.add({{"feed", feed}, {"output", group.output()}, {"group", group.name()}},
             group.skipped());
  });
  text.family("trainer_wait_seconds", Type::kHistogram,
              "How long the members of a group have waited for a batch, as they say; the sum grows "
              "while they wait.");
  groups([&](std::string_view feed, const ConsumerGroupStatus& group) {
    add_waits(text, feed, group);
  });
  const auto trainers = [&](std::string_view name, std::string_view help,
                            std::uint64_t (TrainerStatus::*count)() const) {
    text.family(name, Type::kCounter, help);
    statuses(feeds, [&](std::string_view feed, const StatusReply& status) {
      for (const TrainerStatus& trainer : status.trainers()) {
        text.add({{"feed", feed},
                  {"output", trainer.output()},
                  {"group", trainer.group()},
                  {"member", fmt::to_string(trainer.member())}},
                 (trainer.*count)());
      }
    });
  };
  trainers("trainer_taken_batches", "Batches that a trainer has taken.", &TrainerStatus::taken);
  trainers("trainer_done_batches", "Batches that it has given back.", &TrainerStatus::done);
}

void add_bottlenecks(Text& text, const Feeds& feeds) {
  text.family("bottleneck", Type::kGauge,
              "1: what limits the batches of an output, as `ringfeed why` says.");
  for (const FeedNumbers& one : feeds) {
    if (one.metrics == nullptr) continue;
    for (const BottleneckProto& found : one.metrics->bottlenecks()) {
      text.add({{"feed", one.feed},
                {"output", found.output()},
                {"kind", BottleneckProto::Kind_Name(found.kind())},
                {"stage", found.stage()}},
               1.0);
    }
  }
}

}  // namespace

std::string_view content_type(TextForm form) {
  return form == TextForm::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

std::string metrics_text(const std::vector<FeedNumbers>& feeds, TextForm form) {
  Text text(form);
  add_feeds(text, feeds);
  add_outputs(text, feeds);
  add_lanes(text, feeds);
  add_counters(text, feeds);
  add_queues(text, feeds);
  add_trainers(text, feeds);
  add_bottlenecks(text, feeds);
  return text.take();
}

}  // namespace ringfeed::metrics
