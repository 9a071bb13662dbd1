// ringfeed status, metrics and why: what a feed is doing.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "proto/control.pb.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/metrics/json.h"
#include "supervisor/metrics/show.h"

namespace ringfeed::cli {
namespace {

// Between the two looks from which rates are made: long enough for a few batches.
constexpr std::chrono::milliseconds kRateInterval{500};

StatusReply ask_status(control::ControlClient& client, std::uint64_t id) {
  Request request;
  request.set_id(id);
  request.mutable_status();
  Reply reply = client.call(request);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  return reply.status();
}

int status(const std::string& directory, const std::string& feed, bool json, bool all) {
  const std::vector<std::string> directories = look_in(directory);
  std::vector<std::string> feeds{feed};
  std::vector<Orphan> orphans;
  if (feed.empty()) {
    feeds = control::ControlClient::live_feeds(directories);
    orphans = find_orphans(directories);
    if (feeds.empty() && orphans.empty()) {
      fmt::print(stderr, "no feed runs in {}\n", places_text(directories));
      return kNoSuchFeed;
    }
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
    const StatusReply before = ask_status(*client, 1);
    std::this_thread::sleep_for(kRateInterval);
    const StatusReply now = ask_status(*client, 2);
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
  const std::vector<std::string> directories = look_in(directory);
  std::optional<control::ControlClient> client = control::ControlClient::connect(directories, feed);
  if (!client) {
    const std::optional<Orphan> orphan = find_orphan(directories, feed);
    if (!orphan) return no_such_feed(directories, feed);
    fmt::print(stderr, "{}", orphan_text(*orphan));
    return kOrphaned;
  }
  Request request;
  request.set_id(1);
  request.mutable_metrics();
  const Reply reply = client->call(request);
  if (reply.error() != Reply::NONE) throw Error(ErrorCode::kIo, reply.text());
  metrics = reply.metrics();
  return kOk;
}

int metrics(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  fmt::print("{}",
             json ? ringfeed::metrics::metrics_json(reply, ringfeed::metrics::JsonForm::kProtobuf)
                  : ringfeed::metrics::show_metrics(reply));
  return kOk;
}

int why(const std::string& directory, const std::string& feed, bool json) {
  MetricsReply reply;
  if (const int status = ask_metrics(directory, feed, reply); status != kOk) return status;
  if (!json) {
    fmt::print("{}", ringfeed::metrics::show_bottlenecks(reply));
    return kOk;
  }
  MetricsReply only;
  only.set_feed(reply.feed());
  *only.mutable_bottlenecks() = reply.bottlenecks();
  fmt::print("{}", ringfeed::metrics::protobuf_json(only));
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
  verb.footer("Example: ringfeed status lc0 --json");
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
  verb.add_flag("--json", given->json, "print MetricsReply of proto/metrics.proto as JSON");
  verb.footer("Example: ringfeed metrics lc0 --json");
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
  verb.add_flag("--json", given->json, "print BottleneckProto of proto/metrics.proto as JSON");
  verb.footer("Based on the last 10 seconds at most.\nExample: ringfeed why lc0");
  add_directory(verb, given->directory);
  verb.callback([=, &result] { result = why(given->directory, given->feed, given->json); });
}

}  // namespace ringfeed::cli
