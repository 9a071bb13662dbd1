// ringfeed status, metrics and why: what a feed is doing.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "proto/control.pb.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/show.h"

namespace ringfeed::cli {
namespace {

// Between the two looks from which rates are made: long enough for a few batches.
constexpr std::chrono::milliseconds kRateInterval{500};

StatusReply ask_status(control::ControlClient& client) {
  Request request;
  request.mutable_status();
  return answer_of(client, request).status();
}

int status(const std::string& directory, const std::string& feed, bool json, bool all) {
  const std::vector<std::string> directories = look_in(directory);
  std::vector<std::string> feeds{feed};
  std::vector<Orphan> orphans;
  if (feed.empty()) {
    feeds = control::ControlClient::live_feeds(directories);
    orphans = find_orphans(directories);
    if (feeds.empty() && orphans.empty()) return no_feed_at_all(directories);
  }
  for (const std::string& name : feeds) {
    std::optional<control::ControlClient> client =
        control::ControlClient::connect(directories, name);
    if (!client) {
      std::optional<Orphan> orphan = find_orphan(directories, name);
      if (!orphan) return no_such_feed(directories, name);
      orphans.push_back(std::move(*orphan));
      continue;
    }
    const StatusReply before = ask_status(*client);
    std::this_thread::sleep_for(kRateInterval);
    const StatusReply now = ask_status(*client);
    fmt::print("{}", json ? ringfeed::metrics::status_json(now, &before)
                          : ringfeed::metrics::show_status(now, &before, all));
  }
  for (const Orphan& orphan : orphans) {
    fmt::print("{}", json ? orphan_json(orphan) : orphan_text(orphan));
  }
  return orphans.empty() ? kOk : kOrphaned;
}

// Asks the feed. The exit status of the program: not kOk if nobody answers.
int ask_metrics(const std::string& directory, const std::string& feed, MetricsReply& metrics) {
  Request request;
  request.mutable_metrics();
  int status = kOk;
  const std::optional<Reply> reply = answer_of_feed(look_in(directory), feed, request, status);
  if (!reply) return status;
  metrics = reply->metrics();
  return kOk;
}

int metrics(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  if (json) {
    fmt::print("{}\n", json_text(ringfeed::metrics::to_json(reply), 2));
  } else {
    fmt::print("{}", ringfeed::metrics::show_metrics(reply));
  }
  return kOk;
}

int why(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  if (json) {
    fmt::print("{}\n", json_text(ringfeed::metrics::why_object(reply), 2));
  } else {
    fmt::print("{}", ringfeed::metrics::show_bottlenecks(reply));
  }
  return kOk;
}

}  // namespace

void add_status(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    bool json = false;
    bool all = false;
  };
  const auto given = std::make_shared<Given>();
  verb.add_option("FEED", given->feed, "name of the feed; default: all running feeds");
  verb.add_flag("--json", given->json, "print one JSON object per feed");
  verb.add_flag("--all", given->all, "show counters that are 0 as well");
  verb.footer(
      "Rates are those of half a second. A feed that has lost its supervisor is shown as orphaned, "
      "with its workers, and the exit status is 5.\n"
      "Example: ringfeed status lc0 --json");
  add_directory(verb, given->directory);
  verb.callback(
      [=, &result] { result = status(given->directory, given->feed, given->json, given->all); });
}

void add_metrics(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  add_json(verb, given->json);
  verb.footer(
      "Totals count from the beginning of the feed, whoever has died since. For each stage it "
      "shows "
      "how its lanes have spent their time, what it has counted, and how full its queues were.\n"
      "Example: ringfeed metrics lc0 --json");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = metrics(given->directory, given->feed, given->json); });
}

void add_why(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  add_json(verb, given->json);
  verb.footer(
      "It also says what another lane would bring, and the command for it. It is based on the last "
      "10 seconds at most.\nExample: ringfeed why lc0");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = why(given->directory, given->feed, given->json); });
}

}  // namespace ringfeed::cli
