// ringfeed log: the level of a feed's log while it runs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "proto/control.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/verb.h"
#include "supervisor/metrics/log_line.h"

namespace ringfeed::cli {
namespace {

std::string shown(LogConfig::Level level) {
  return std::string(metrics::name_of(metrics::level_named(LogConfig::Level_Name(level))));
}

// As the command line spells it; known to be a level.
LogConfig::Level wire_level(std::string_view name) {
  if (name == "debug") return LogConfig::DEBUG;
  if (name == "info") return LogConfig::INFO;
  return name == "error" ? LogConfig::ERROR : LogConfig::WARN;
}

int log(const std::string& directory, const std::string& feed, const std::string& level,
        bool json) {
  Request request;
  request.mutable_log();
  if (!level.empty()) request.mutable_log()->set_level(wire_level(level));
  int status = kOk;
  const std::optional<Reply> reply = answer_of_feed(look_in(directory), feed, request, status);
  if (!reply) return status;
  const LogReply& now = reply->log();
  const std::string format = now.format() == LogConfig::JSON ? "json" : "text";
  if (json) {
    fmt::print("{}\n", json_text({{"feed", feed},
                                  {"level", shown(now.level())},
                                  {"before", shown(now.before())},
                                  {"format", format},
                                  {"to", now.to()}},
                                 -1));
  } else if (level.empty()) {
    fmt::print("{}\n", shown(now.level()));
  } else if (now.before() == now.level()) {
    fmt::print("the level of feed '{}' already is {}\n", escaped(feed), shown(now.level()));
  } else {
    fmt::print("the level of feed '{}' is now {}, before {}\n", escaped(feed), shown(now.level()),
               shown(now.before()));
  }
  return kOk;
}

}  // namespace

void add_log(CLI::App& verb, int& result) {
  struct Given {
    std::string directory;
    std::string feed;
    std::string level;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_feed(verb, given->feed);
  verb.add_option("LEVEL", given->level,
                  "events below it are left out from now on: debug, info, warning or error; "
                  "without it, the present level is printed")
      ->type_name("debug|info|warning|error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  add_json(verb, given->json);
  verb.footer(
      "It holds for the supervisor and for all stages until the supervisor ends; the next one "
      "begins with log.level of the configuration.\nExample: ringfeed log lc0 debug");
  add_directory(verb, given->directory);
  verb.callback(
      [=, &result] { result = log(given->directory, given->feed, given->level, given->json); });
}

}  // namespace ringfeed::cli
