// ringfeed stages: the kinds of stages there are, and all that is known of each. The schema says
// what can be set; what else there is to a kind, the workers say.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "proto/kinds.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/result.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/names.h"
#include "supervisor/config/reference.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::cli {
namespace {

constexpr std::size_t kWidth = 100;  // of the text on a terminal
// The kind that all stages of plug-ins share.
constexpr std::string_view kPluginKind = "plugin";

// A kind as the schema and the workers have it.
struct Kind {
  config::KindSchema schema;
  StageKind own = {};  // empty: no worker here has it
};

// The worker, the programs beside it that have stages of their own, and the plug-in, if one is
// given.
std::vector<std::string> worker_programs(const std::string& plugin) {
  std::vector<std::string> programs{process::find_worker_binary()};
  const std::filesystem::path worker(programs.front());
  std::error_code ignored;
  std::set<std::string> beside;
  for (const auto& entry : std::filesystem::directory_iterator(worker.parent_path(), ignored)) {
    const std::string path = entry.path().string();
    const bool named = entry.path().filename().string().starts_with("ringfeed-worker-");
    if (named && ::access(path.c_str(), X_OK) == 0) beside.insert(path);
  }
  programs.insert(programs.end(), beside.begin(), beside.end());
  if (!plugin.empty()) {
    DataLoaderConfig config;
    config.set_worker(std::filesystem::absolute(plugin).string());
    programs.push_back(worker_of(config));
  }
  return programs;
}

// A kind that is in no schema: its plug-in says all of it. `common`: what all plug-ins' stages
// have.
Kind kind_of_plugin(StageKind&& told, const std::string& program,
                    const config::KindSchema& common) {
  Kind kind;
  kind.schema.kind = told.kind();
  kind.schema.domain = fmt::format("plug-in {}", program);
  kind.schema.text.push_back(told.text());
  kind.schema.summary = told.text().substr(0, told.text().find(". "));
  if (kind.schema.summary.ends_with('.')) kind.schema.summary.pop_back();
  for (const OptionText& option : told.options()) {
    const bool needed = !option.has_default_value();
    kind.schema.settings.push_back({.name = option.name(),
                                    .type = option.type(),
                                    .default_value = option.default_value(),
                                    .range = option.range(),
                                    .text = option.text() + (needed ? " Required." : ""),
                                    .values = {}});
  }
  kind.schema.common = common.common;
  kind.own = std::move(told);
  return kind;
}

std::vector<Kind> all_kinds(const std::string& plugin) {
  std::vector<Kind> kinds;
  for (config::KindSchema& schema : config::kind_schemas()) kinds.push_back({std::move(schema)});
  const std::vector<std::string> programs = worker_programs(plugin);
  for (const std::string& program : programs) {
    KindList list;
    const bool must =
        &program == &programs.front() || (!plugin.empty() && &program == &programs.back());
    try {
      list = process::ask_kinds(program);
    } catch (const Error&) {
      // Of a program beside it the libraries may be missing, which `check` says where one needs it.
      if (must) throw;
    }
    if (must && !list.has_worker_version()) {
      throw Error(
          ErrorCode::kIncompatible,
          fmt::format("worker {} is no program of ringfeed's: give that of a plug-in, whose "
                      "main() calls ringfeed::worker_main()",
                      program));
    }
    for (StageKind& told : *list.mutable_kinds()) {
      if (told.plugin()) {
        const auto common = std::ranges::find(kinds, kPluginKind,
                                              [](const Kind& kind) { return kind.schema.kind; });
        kinds.push_back(kind_of_plugin(std::move(told), program, common->schema));
        continue;
      }
      const auto same = [&told](const Kind& kind) { return kind.schema.kind == told.kind(); };
      const auto kind = std::ranges::find_if(kinds, same);
      if (kind != kinds.end() && kind->own.kind().empty()) kind->own = std::move(told);
    }
  }
  return kinds;
}

// ---- for people

// Words of a paragraph on lines, of which the first has been indented already by `used`.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t used) {
  std::string out;
  std::size_t column = used;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

// A paragraph or a list, with each line at this indent.
std::string shown_block(std::string_view block, std::size_t indent) {
  std::string out;
  while (!block.empty()) {
    const std::size_t end = std::min(block.find('\n'), block.size());
    const std::string_view line = block.substr(0, end);
    const std::size_t inner = indent + (line.starts_with("- ") ? 2 : 0);
    out += std::string(indent, ' ');
    out += inner == indent ? wrapped(line, indent, indent)
                           : "- " + wrapped(line.substr(2), inner, inner);
    block.remove_prefix(std::min(end + 1, block.size()));
  }
  return out;
}

std::string shown_settings(const char* title, const std::vector<config::Setting>& settings) {
  if (settings.empty()) return "";
  std::string out = fmt::format("\n{}\n", title);
  for (const config::Setting& setting : settings) {
    out += fmt::format("  {}  {}", setting.name, setting.type);
    if (!setting.default_value.empty()) out += fmt::format(", default {}", setting.default_value);
    if (!setting.range.empty()) out += ", " + setting.range;
    out += '\n';
    if (!setting.text.empty()) out += shown_block(setting.text, 6);
    for (const config::EnumValue& value : setting.values) {
      const std::string head = fmt::format("{}{}", value.name, value.text.empty() ? "" : ":");
      out += "        " + wrapped(head + " " + value.text, 10, 8);
    }
  }
  return out;
}

std::string shown_ports(const char* title,
                        const google::protobuf::RepeatedPtrField<PortPlan>& ports) {
  std::string out;
  for (const PortPlan& port : ports) {
    out += fmt::format("{} {} ({})", out.empty() ? title : ",", port.name(), port.record_type());
  }
  return out.empty() ? out : out + "\n";
}

const std::string& shown_name(const CounterPlan& counter) {
  return counter.has_shown_as() ? counter.shown_as() : counter.name();
}

std::string shown_kind(const Kind& kind) {
  std::string out = fmt::format("{}  ({})\n", kind.schema.kind, kind.schema.domain);
  for (const std::string& block : kind.schema.text) out += "\n" + shown_block(block, 0);
  if (kind.own.kind().empty()) {
    out += "\nNo installed worker provides it.\n";
  } else {
    out += "\nPorts\n" + shown_ports("  in: ", kind.own.inputs()) +
           shown_ports("  out:", kind.own.outputs());
    if (kind.own.more_ports()) out += "  others follow from its settings\n";
    if (!kind.own.program().empty()) out += "\nIts program: " + kind.own.program() + "\n";
  }
  const bool plugged = kind.own.plugin();
  out += shown_settings(plugged ? "Options" : "Settings", kind.schema.settings);
  out += shown_settings("Settings that many stages have", kind.schema.common);
  if (kind.own.counters_size() != 0) out += "\nCounters\n";
  for (const CounterPlan& counter : kind.own.counters()) {
    const std::string head = fmt::format("  {} ", shown_name(counter));
    out += head + wrapped(counter.help() + (counter.gauge() ? " May fall." : ""), 6, head.size());
  }
  if (kind.own.has_example()) {
    out += "\nExample\n";
    std::string_view rest = kind.own.example().text();
    if (rest.starts_with('\n')) rest.remove_prefix(1);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      out += fmt::format("  {}\n", rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return out;
}

void list_kinds(const std::vector<Kind>& kinds) {
  std::size_t width = 0;
  for (const Kind& kind : kinds) width = std::max(width, kind.schema.kind.size());
  std::string_view domain;
  for (const Kind& kind : kinds) {
    if (kind.schema.domain != domain) {
      fmt::print("{}{}\n", domain.empty() ? "" : "\n", kind.schema.domain);
    }
    domain = kind.schema.domain;
    fmt::print("  {:{}}  {}\n", kind.schema.kind, width, kind.schema.summary);
  }
}

// ---- for programs

using Json = nlohmann::ordered_json;

Json json_of(const std::vector<config::Setting>& settings) {
  Json all = Json::array();
  for (const config::Setting& setting : settings) {
    Json one{{"name", setting.name}, {"type", setting.type}};
    if (!setting.default_value.empty()) one["default"] = setting.default_value;
    if (!setting.range.empty()) one["range"] = setting.range;
    one["text"] = setting.text;
    for (const config::EnumValue& value : setting.values) {
      one["values"].push_back({{"name", value.name}, {"text", value.text}});
    }
    all.push_back(std::move(one));
  }
  return all;
}

Json json_of(const google::protobuf::RepeatedPtrField<PortPlan>& ports) {
  Json all = Json::array();
  for (const PortPlan& port : ports) {
    all.push_back({{"name", port.name()}, {"record_type", port.record_type()}});
  }
  return all;
}

Json json_of(const Kind& kind) {
  Json one{{"kind", kind.schema.kind},
           {"domain", kind.schema.domain},
           {"summary", kind.schema.summary},
           {"text", kind.schema.text},
           {kind.own.plugin() ? "options" : "settings", json_of(kind.schema.settings)},
           {"common_settings", json_of(kind.schema.common)},
           {"installed", !kind.own.kind().empty()}};
  if (kind.own.kind().empty()) return one;
  one["inputs"] = json_of(kind.own.inputs());
  one["outputs"] = json_of(kind.own.outputs());
  one["more_ports"] = kind.own.more_ports();
  if (!kind.own.program().empty()) one["program"] = kind.own.program();
  for (const CounterPlan& counter : kind.own.counters()) {
    one["counters"].push_back({{"name", shown_name(counter)},
                               {"help", counter.help()},
                               {"kind", counter.gauge() ? "gauge" : "counter"}});
  }
  if (kind.own.has_example()) {
    one["example"] = {{"text", kind.own.example().text()}, {"maker", kind.own.example().maker()}};
  }
  return one;
}

int show_stages(const std::string& wanted, const std::string& plugin, bool json) {
  const std::vector<Kind> kinds = all_kinds(plugin);
  if (wanted.empty()) {
    if (!json) {
      list_kinds(kinds);
      return kOk;
    }
    Json all = Json::array();
    for (const Kind& kind : kinds) all.push_back(json_of(kind));
    fmt::print("{}\n", json_text({{"kinds", std::move(all)}}, 2));
    return kOk;
  }
  const auto kind = std::ranges::find(kinds, wanted, [](const Kind& k) { return k.schema.kind; });
  if (kind == kinds.end()) {
    std::vector<std::string> names;
    for (const Kind& known : kinds) names.push_back(known.schema.kind);
    fmt::print(stderr, "ringfeed: there is no stage of the kind '{}'{}\n", escaped(wanted),
               config::did_you_mean(wanted, names, "there are"));
    return kUsage;
  }
  fmt::print("{}", json ? json_text(json_of(*kind), 2) + "\n" : shown_kind(*kind));
  return kOk;
}

}  // namespace

void add_stages(CLI::App& verb, int& result) {
  struct Given {
    std::string kind;
    std::string plugin;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  verb.add_option("KIND", given->kind, "describe this kind in full; default: list all kinds");
  verb.add_flag("--json", given->json, "print one JSON object");
  add_worker(verb, given->plugin);
  verb.footer(
      "A kind is described with its ports, settings, counters and an example.\n"
      "Examples: ringfeed stages\n"
      "          ringfeed stages python");
  verb.callback([=, &result] { result = show_stages(given->kind, given->plugin, given->json); });
}

}  // namespace ringfeed::cli
