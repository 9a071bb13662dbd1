// ringfeed graph: the stages of a feed and how they are joined, running or as configured.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/asking.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/control/client.h"
#include "supervisor/graph/planned.h"
#include "supervisor/graph/writers.h"
#include "supervisor/os/locale.h"

namespace ringfeed::cli {
namespace {

struct GraphOptions {
  ConfigArguments config;  // its file is the name of a feed, where that is meant
  std::string directory;
  std::string format = "text";
  bool json = false;
  bool is_feed = false;
};

enum class Meant { kConfig, kFeed, kEither };

// A directory is no configuration, and data often lies in one that is called like its feed.
bool is_file(const std::string& name) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(name, error);
  return !error && std::filesystem::exists(status) && !std::filesystem::is_directory(status);
}

Meant what_is_meant(const GraphOptions& options, const std::vector<std::string>& directories) {
  const std::string& name = options.config.file;
  if (options.is_feed) return Meant::kFeed;
  if (name == "-" || name.find('/') != std::string::npos) return Meant::kConfig;
  const bool file = is_file(name);
  const bool ending = config::format_of(name) != config::Format::kAuto;
  if (!file && !ending) return Meant::kFeed;
  const std::vector<std::string> live = control::ControlClient::live_feeds(directories);
  const bool runs = std::ranges::count(live, name) != 0 || find_orphan(directories, name);
  if (!runs) return Meant::kConfig;
  return file ? Meant::kEither : Meant::kFeed;
}

int write(const graph::Graph& graph, const GraphOptions& options) {
  std::string text;
  if (options.json || options.format == "json") {
    text = graph::graph_json(graph, 2);
  } else if (options.format == "dot") {
    text = graph::graph_dot(graph);
  } else if (options.format == "svg") {
    text = graph::graph_svg(graph);
  } else {
    text = graph::graph_text(graph, locale_is_utf8());
  }
  fmt::print("{}", text);
  return kOk;
}

int graph_of_config(const GraphOptions& options) {
  const std::optional<Prepared> prepared = prepare(options.config);
  if (!prepared) return kInvalidConfiguration;
  // It may be drawn on another machine than the one it is for.
  if (const Status room = layout::check_memory(prepared->layout, memory_limits(*prepared)); !room) {
    fmt::print(stderr, "warning: {}\n", escaped_lines(room.error().message()));
  }
  return write(
      graph::planned_graph(prepared->configuration.message(), *prepared->plan, prepared->layout),
      options);
}

int graph_of_feed(const GraphOptions& options, const std::vector<std::string>& directories) {
  const std::string& feed = options.config.file;
  if (!options.config.overrides.empty() || !options.config.worker.empty()) {
    fmt::print(stderr,
               "ringfeed: '{}' is a feed, and --set and --worker are for a configuration: leave "
               "them out, or write ./{} for the file\n",
               escaped(feed), escaped(feed));
    return kUsage;
  }
  int found = kOk;
  std::optional<control::ControlClient> client = find_feed(directories, feed, found);
  if (!client) {
    if (found == kNoSuchFeed && !options.is_feed) {
      fmt::print(stderr, "there is no file '{}' here either\n", escaped(feed));
    }
    return found;
  }
  Request request;
  request.mutable_status();
  const Reply status = answer_of(*client, request);
  request.mutable_metrics();
  const Reply metrics = answer_of(*client, request);
  return write(graph::make_graph(status.status(), &metrics.metrics()), options);
}

int graph(const GraphOptions& options) {
  const std::vector<std::string> directories = look_in(options.directory);
  switch (what_is_meant(options, directories)) {
    case Meant::kConfig:
      return graph_of_config(options);
    case Meant::kFeed:
      return graph_of_feed(options, directories);
    case Meant::kEither:
      break;
  }
  const std::string name = escaped(options.config.file);
  fmt::print(stderr,
             "ringfeed: '{}' is a file here, and a feed of that name runs: write ./{} for the "
             "file, or --feed {} for the feed\n",
             name, name, name);
  return kUsage;
}

}  // namespace

void add_graph(CLI::App& verb, int& result) {
  const auto options = std::make_shared<GraphOptions>();
  verb.add_option("CONFIG|FEED", options->config.file,
                  "a configuration, as `ringfeed run` takes it (- is standard input), or the name "
                  "of a running feed")
      ->required();
  CLI::Option* const format = verb.add_option(
      "--format", options->format,
      "text: a drawing; dot: for Graphviz; svg: by Graphviz's dot; json: as --json");
  format->type_name("text|dot|svg|json")
      ->check(CLI::IsMember({"text", "dot", "svg", "json"}))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "print one JSON object")->excludes(format);
  verb.add_flag("--feed", options->is_feed, "it is a feed, whatever file has the same name");
  verb.add_option("--set", options->config.overrides,
                  "path=value, applied after the configuration; may be given several times")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  add_worker(verb, options->config.worker);
  add_directory(verb, options->directory);
  verb.footer(
      "What is a file, has a / in it, or ends like a configuration (.textproto, .json) is one.\n"
      "Of a running feed, rates and shares of time are those of the last 10 seconds.\n"
      "Example: ringfeed graph lc0 --format svg > lc0.svg");
  verb.callback([options, &result] { result = graph(*options); });
}

}  // namespace ringfeed::cli
