#include "supervisor/cli/orphans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"
#include "supervisor/control/silent_feed.h"

namespace ringfeed::cli {

std::vector<std::string> look_in(const std::string& directory) {
  return control::search_directories(directory, control::read_environment());
}

std::string places_text(const std::vector<std::string>& directories) {
  return escaped(fmt::format("{}", fmt::join(directories, " or ")));
}

std::string Orphan::workers() const {
  std::vector<std::string> shown;
  for (const auto& [group, worker] : control::living_workers(record)) {
    shown.push_back(fmt::format("{} ({})", escaped(group), worker.pid));
  }
  return fmt::format("{}", fmt::join(shown, ", "));
}

std::optional<Orphan> find_orphan(const std::vector<std::string>& directories,
                                  const std::string& feed, bool says) {
  for (const std::string& place : directories) {
    Result<std::optional<control::LockRecord>> record =
        control::find_orphan(control::lock_path(place, feed));
    if (!record && says) {
      fmt::print(stderr, "feed {}: {}\n", escaped(feed), escaped(record.error().message()));
    } else if (record && *record) {
      return Orphan{feed, place, std::move(**record)};
    }
  }
  return std::nullopt;
}

std::vector<Orphan> find_orphans(const std::vector<std::string>& directories) {
  std::vector<Orphan> orphans;
  for (const std::string& place : directories) {
    for (const std::string& feed : control::feeds_in(place)) {
      if (std::optional<Orphan> orphan = find_orphan({place}, feed, true)) {
        orphans.push_back(std::move(*orphan));
      }
    }
  }
  return orphans;
}

std::string orphan_text(const Orphan& orphan) {
  return fmt::format(
      "feed {}: orphaned: its supervisor (process {}) is dead, its workers keep running: {}\n"
      "  `ringfeed run CONFIG` takes it over, `ringfeed stop {} --now` ends it\n",
      escaped(orphan.feed), orphan.record.supervisor.pid, orphan.workers(), escaped(orphan.feed));
}

std::string orphan_json(const Orphan& orphan) {
  nlohmann::ordered_json out;
  out["feed"] = orphan.feed;
  out["state"] = "ORPHANED";
  out["reason"] = fmt::format("its supervisor (process {}) is dead", orphan.record.supervisor.pid);
  nlohmann::ordered_json& workers = out["workers"] = nlohmann::ordered_json::array();
  for (const auto& [group, worker] : control::living_workers(orphan.record)) {
    workers.push_back({{"group", group}, {"pid", worker.pid}});
  }
  return json_text(out, 2) + "\n";
}

namespace {

// Those that cannot be looked into: a feed may run there.
std::string unreadable_text(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories) {
    const Result<std::vector<std::string>> names = shm::names_in(directory);
    if (names || names.error().code() == ErrorCode::kNotFound) continue;
    text += fmt::format("; {}", escaped(names.error().message()));
  }
  return text;
}

}  // namespace

int no_such_feed(const std::vector<std::string>& directories, const std::string& feed) {
  for (const std::string& place : directories) {
    const std::optional<control::SilentFeed> silent = control::find_silent(place, feed);
    if (!silent) continue;
    const bool is_over = silent->state == "FAILED" || silent->state == "DEAD";
    fmt::print(stderr, "ringfeed: feed '{}'{}: {}\n", escaped(feed), is_over ? " runs no more" : "",
               escaped(silent->reason));
    return silent->state == "ORPHANED" ? kOrphaned : kNoSuchFeed;
  }
  std::vector<std::string> there = control::ControlClient::live_feeds(directories);
  for (const Orphan& orphan : find_orphans(directories)) {
    there.push_back(orphan.feed + " (without a supervisor)");
  }
  fmt::print(stderr, "ringfeed: no feed '{}' runs in {}; {}{}\n", escaped(feed),
             places_text(directories),
             there.empty()
                 ? "no feed is running there: `ringfeed run CONFIG` starts one"
                 : fmt::format("running: {}", escaped(fmt::format("{}", fmt::join(there, ", ")))),
             unreadable_text(directories));
  return kNoSuchFeed;
}

int no_feed_at_all(const std::vector<std::string>& directories) {
  int status = kNoSuchFeed;
  std::string silent_ones;
  for (const std::string& place : directories) {
    for (const std::string& feed : control::feeds_in(place)) {
      const std::optional<control::SilentFeed> silent = control::find_silent(place, feed);
      if (!silent || silent->state == "FAILED" || silent->state == "DEAD") continue;
      silent_ones += fmt::format("; feed '{}': {}", escaped(feed), escaped(silent->reason));
      if (silent->state == "ORPHANED") status = kOrphaned;
    }
  }
  fmt::print(stderr, "ringfeed: no feed {} in {}{}{}{}\n", silent_ones.empty() ? "runs" : "answers",
             places_text(directories),
             silent_ones.empty() ? ": `ringfeed run CONFIG` starts one" : "", silent_ones,
             unreadable_text(directories));
  return status;
}

std::optional<control::ControlClient> find_feed(const std::vector<std::string>& directories,
                                                const std::string& feed, int& status) {
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (client) return client;
  const std::optional<Orphan> orphan = find_orphan(directories, feed);
  if (!orphan) {
    status = no_such_feed(directories, feed);
  } else {
    fmt::print(stderr, "ringfeed: {}", orphan_text(*orphan));
    status = kOrphaned;
  }
  return std::nullopt;
}

}  // namespace ringfeed::cli
