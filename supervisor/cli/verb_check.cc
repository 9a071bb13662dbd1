// ringfeed check: the mistakes of a configuration, or the feed that it would make.
#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/look.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/explain.h"
#include "supervisor/control/place.h"
#include "supervisor/layout/memory.h"

namespace ringfeed::cli {
namespace {

// Where `run` would put the control socket.
std::string socket_of(const DataLoaderConfig& config, const std::string& directory) {
  return control::socket_path(
      control::socket_directory(directory.empty() ? config.control().directory() : directory,
                                control::read_environment()),
      config.feed());
}

int check(const ConfigArguments& arguments, const std::string& directory) {
  const std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const DataLoaderConfig& config = prepared->configuration.message();
  config::Checked looked;
  const DataLooks looks = look_at_data(*prepared, looked);
  for (const config::Problem& warning : looked.warnings) {
    fmt::print(stderr, "warning: {}\n", escaped_lines(warning.message()));
  }
  const std::vector<config::MemoryPart> parts = layout::memory_parts(prepared->layout);
  fmt::print("{}{}control socket {}\n",
             config::explain(config, *prepared->plan, prepared->wiring, prepared->groups, parts),
             config::looks_text(config, looks), escaped(socket_of(config, directory)));
  if (!config.worker().empty()) fmt::print("worker {}\n", escaped(config.worker()));
  layout::check_memory(prepared->layout, memory_limits(*prepared)).or_throw();
  return kOk;
}

// The same for programs: one object, whatever is wrong.
int check_json(const ConfigArguments& arguments, const std::string& directory) {
  config::Checked checked;
  int status = kOk;
  // What is wrong beside the configuration: a file, a program, the machine.
  const auto note = [&](const std::string& text) {
    checked.problems.push_back({{arguments.file, 0, 0}, {}, text, {}});
    status = kFailure;
  };
  nlohmann::ordered_json out{{"ok", false}};
  nlohmann::ordered_json shown = nlohmann::ordered_json::object();
  try {
    if (const std::optional<Prepared> prepared = prepare(arguments, checked)) {
      const DataLoaderConfig& config = prepared->configuration.message();
      const std::vector<config::MemoryPart> parts = layout::memory_parts(prepared->layout);
      shown =
          config::explain_json(config, *prepared->plan, prepared->wiring, prepared->groups, parts);
      shown["data"] = config::looks_json(config, look_at_data(*prepared, checked));
      shown["socket"] = socket_of(config, directory);
      if (!config.worker().empty()) shown["worker"] = config.worker();
      const Status room = layout::check_memory(prepared->layout, memory_limits(*prepared));
      if (!room) note(room.error().message());
    } else {
      status = kInvalidConfiguration;
    }
  } catch (const Error& error) {
    note(error.message());
  }
  out["ok"] = status == kOk;
  out["problems"] = config::problems_json(checked.problems);
  out["problems_left_out"] = checked.left_out;
  out["warnings"] = config::problems_json(checked.warnings);
  out.update(shown);
  fmt::print("{}\n", json_text(out, 2));
  return status;
}

int check_part(const ConfigArguments& arguments) {
  config::Configuration part = config::read_config(arguments.file, arguments.overrides);
  if (const std::vector<config::Problem> problems = config::check_part(part); !problems.empty()) {
    fmt::print(stderr, "{}", config::problem_report(problems));
    return kInvalidConfiguration;
  }
  part.message().clear_feed();
  std::string text;
  google::protobuf::TextFormat::PrintToString(part.message(), &text);
  fmt::print("{}", text);
  return kOk;
}

}  // namespace

void add_check(CLI::App& verb, int& result) {
  struct Given {
    ConfigArguments config;
    std::string directory;
    bool part = false;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  add_config(verb, given->config)->required();
  CLI::Option* const json =
      verb.add_flag("--json", given->json,
                    "print one JSON object: problems and warnings, and if it is valid stages, "
                    "batches, memory and the control socket");
  add_directory(verb, given->directory);
  verb.add_flag("--part", given->part,
                "for programs: CONFIG is only part of a configuration, and more stages follow; "
                "print it in text format")
      ->excludes(json);
  verb.footer(
      "Every mistake is shown with its place. Of a valid configuration it shows the stage groups, "
      "the batches, and the memory of each part; if the machine has less, it says so. Of files "
      "that "
      "are read as samples it looks at the first ones (64 or 1 MiB of a file, 64 files, for some "
      "seconds), and warns of what would be left out. No feed is started.\n"
      "Example: ringfeed check lc0.textproto");
  verb.callback([=, &result] {
    result = given->part   ? check_part(given->config)
             : given->json ? check_json(given->config, given->directory)
                           : check(given->config, given->directory);
  });
}

}  // namespace ringfeed::cli
