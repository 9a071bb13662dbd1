// ringfeed ps: the feeds of this machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/place.h"
#include "supervisor/os/table.h"
#include "supervisor/os/text.h"
#include "supervisor/web/looks.h"

namespace ringfeed::cli {
namespace {

using Json = nlohmann::ordered_json;

// What is known of a feed; what is not is absent.
struct Listed {
  std::string feed;
  std::string directory;
  std::string state;  // of StatusReply, ORPHANED, DEAD or NO_ANSWER
  std::string reason = {};
  std::optional<std::uint64_t> uptime_ms = {};
  std::optional<std::int64_t> supervisor_pid = {};
  std::optional<std::size_t> processes = {};
  std::optional<double> batches_per_s = {};
  std::optional<int> trainers = {};
  std::optional<std::uint64_t> memory_bytes = {};
  std::string config_file = {};
};

// The supervisor's, and one for each stage group that has its process.
std::size_t processes_of(const StatusReply& status) {
  std::set<std::uint32_t> pids{status.supervisor_pid()};
  for (const StageStatus& stage : status.stages()) {
    for (const LaneStatus& lane : stage.lanes()) {
      if (lane.pid() != 0) pids.insert(lane.pid());
    }
  }
  return pids.size();
}

// Of all outputs, over the last ten seconds.
std::optional<double> rate_of(const MetricsReply& metrics) {
  if (metrics.bottlenecks_size() == 0) return std::nullopt;
  double sum = 0;
  for (const BottleneckProto& output : metrics.bottlenecks()) sum += output.batches_per_s();
  return sum;
}

Listed listed(const web::Look& look, const std::string& directory) {
  Listed out{.feed = look.feed, .directory = directory, .state = "NO_ANSWER", .reason = look.error};
  if (!look.ended.empty()) out.state = look.ended;
  if (look.pid != 0) out.supervisor_pid = look.pid;
  if (!look.status || !look.metrics) return out;
  const StatusReply& status = *look.status;
  out.state = StatusReply::State_Name(status.state());
  out.reason = status.reason();
  out.uptime_ms = status.uptime_ms();
  out.supervisor_pid = status.supervisor_pid();
  out.processes = processes_of(status);
  out.batches_per_s = rate_of(*look.metrics);
  out.trainers = status.trainers_size();
  out.memory_bytes = status.memory_bytes();
  out.config_file = status.config_file();
  return out;
}

Listed listed(const Orphan& orphan) {
  return {.feed = orphan.feed,
          .directory = orphan.directory,
          .state = "ORPHANED",
          .reason = fmt::format("its supervisor (process {}) is dead: `ringfeed run CONFIG` takes "
                                "it over, `ringfeed stop {} --now` ends it",
                                orphan.record.supervisor.pid, orphan.feed),
          .processes = control::living_workers(orphan.record).size()};
}

// Those of a directory, by name.
std::vector<Listed> feeds_of(const std::string& directory) {
  std::vector<Listed> out;
  std::set<std::string> there;
  for (const web::Look& look : web::look_once(directory)) {
    // More is known below of one of this user's.
    if (look.ended == "ORPHANED" && find_orphan({directory}, look.feed)) continue;
    there.insert(look.feed);
    out.push_back(listed(look, directory));
  }
  for (const std::string& feed : control::feeds_in(directory)) {
    if (there.contains(feed)) continue;
    if (const std::optional<Orphan> orphan = find_orphan({directory}, feed)) {
      out.push_back(listed(*orphan));
    }
  }
  std::ranges::sort(out, {}, &Listed::feed);
  return out;
}

template <typename T>
Json known(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const Listed& feed) {
  return {{"feed", feed.feed},
          {"state", feed.state},
          {"reason", feed.reason},
          {"directory", feed.directory},
          {"uptime_ms", known(feed.uptime_ms)},
          {"supervisor_pid", known(feed.supervisor_pid)},
          {"processes", known(feed.processes)},
          {"batches_per_s", known(feed.batches_per_s)},
          {"trainers", known(feed.trainers)},
          {"memory_bytes", known(feed.memory_bytes)},
          {"config_file", feed.config_file.empty() ? Json() : Json(feed.config_file)}};
}

std::string state_text(std::string state) {
  std::ranges::transform(state, state.begin(), [](unsigned char c) {
    return static_cast<char>(c == '_' ? ' ' : std::tolower(c));
  });
  return state;
}

template <typename T, typename Show>
std::string cell(const std::optional<T>& value, Show show) {
  return value ? show(*value) : "-";
}

std::string table_text(const std::vector<Listed>& feeds) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  Table table({{"feed"},
               {"state"},
               {"uptime", Align::kRight},
               {"pid", Align::kRight},
               {"processes", Align::kRight},
               {"batches/s", Align::kRight},
               {"trainers", Align::kRight},
               {"memory", Align::kRight},
               {"configuration"}});
  for (const Listed& feed : feeds) {
    table.add({feed.feed, state_text(feed.state), cell(feed.uptime_ms, shown_time),
               cell(feed.supervisor_pid, number), cell(feed.processes, number),
               cell(feed.batches_per_s, [](double rate) { return fmt::format("{:.1f}", rate); }),
               cell(feed.trainers, number), cell(feed.memory_bytes, shown_bytes),
               feed.config_file.empty() ? "-" : feed.config_file});
  }
  return table.text();
}

int ps(const std::string& given, bool json) {
  const std::vector<std::string> directories = look_in(given);
  std::vector<Listed> feeds;
  Json unreadable = Json::array();
  for (const std::string& directory : directories) {
    const Result<std::vector<std::string>> names = shm::names_in(directory);
    if (!names && names.error().code() != ErrorCode::kNotFound) {
      unreadable.push_back({{"directory", directory}, {"error", names.error().message()}});
      fmt::print(stderr, "{}\n", escaped(names.error().message()));
    }
    std::ranges::move(feeds_of(directory), std::back_inserter(feeds));
  }
  if (json) {
    Json all = Json::array();
    for (const Listed& feed : feeds) all.push_back(json_of(feed));
    fmt::print("{}\n", json_text({{"feeds", std::move(all)}, {"unreadable", unreadable}}, 2));
  } else if (!feeds.empty()) {
    fmt::print("{}", table_text(feeds));
  }
  if (feeds.empty()) fmt::print(stderr, "no feed runs in {}\n", places_text(directories));
  for (const Listed& feed : feeds) {
    const bool lives = feed.uptime_ms.has_value();
    if (lives || feed.reason.empty()) continue;
    fmt::print(stderr, "feed {}: {}\n", escaped(feed.feed), escaped(feed.reason));
  }
  return kOk;
}

}  // namespace

void add_ps(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_json(verb, given->json);
  add_directory(verb, given->directory);
  verb.footer(
      "Feeds without a supervisor are listed too, those whose supervisor does not answer within "
      "two "
      "seconds, and, until `ringfeed clean`, those that have failed or whose processes have all "
      "died. The pid is that of the supervisor; processes are the supervisor and its "
      "workers; "
      "batches per second are those of the last ten seconds; memory is what is reserved.\n"
      "Examples: ringfeed ps\n"
      "          ringfeed ps --json");
  verb.callback([=, &result] { result = ps(given->directory, given->json); });
}

}  // namespace ringfeed::cli
