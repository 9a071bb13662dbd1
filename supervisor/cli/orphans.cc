#include "supervisor/cli/orphans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "ringfeed/shm/quote.h"
#include "supervisor/cli/verbs.h"
#include "supervisor/control/client.h"
#include "supervisor/control/place.h"

namespace ringfeed::cli {

std::vector<std::string> look_in(const std::string& directory) {
  return control::search_directories(directory, control::read_environment());
}

std::string places_text(const std::vector<std::string>& directories) {
  return escaped(fmt::format("{}", fmt::join(directories, " or ")));
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
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

int no_such_feed(const std::vector<std::string>& directories, const std::string& feed) {
  std::vector<std::string> there = control::ControlClient::live_feeds(directories);
  for (const Orphan& orphan : find_orphans(directories)) {
    there.push_back(orphan.feed + " (without a supervisor)");
  }
  fmt::print(stderr, "no feed '{}' runs in {}; {}\n", escaped(feed), places_text(directories),
             there.empty()
                 ? "no feed is running there"
                 : fmt::format("running: {}", escaped(fmt::format("{}", fmt::join(there, ", ")))));
  return kNoSuchFeed;
}

}  // namespace ringfeed::cli
