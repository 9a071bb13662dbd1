// ringfeed dead-letters --replay: one record that was set aside, once more through its stage.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/cli/letter.h"
#include "supervisor/cli/orphans.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/trial_text.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/check.h"
#include "supervisor/config/grouping.h"
#include "supervisor/config/paths.h"
#include "supervisor/config/read.h"
#include "supervisor/control/place.h"
#include "supervisor/feed/replay.h"
#include "supervisor/feed/trial.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/layout/memory.h"
#include "supervisor/os/text.h"

namespace ringfeed::cli {
namespace {

constexpr std::uint64_t kDefaultTimeoutMs = 10'000;
// A program that is no worker may never answer.
constexpr int kPlanMs = 30'000;

std::filesystem::path letter_path(const std::string& feed, const std::string& directory,
                                  const std::string& file) {
  // A name alone is looked for where the feed keeps its letters.
  std::error_code failed;
  if (std::filesystem::exists(file, failed) || (feed.empty() && directory.empty())) return file;
  return std::filesystem::path(
             control::dead_letter_directory(directory, feed, control::read_environment())) /
         file;
}

config::Configuration configuration_of(const Letter& letter, const std::string& other) {
  if (!other.empty()) {
    config::Configuration given = config::read_config(other);
    config::make_paths_absolute(given.message(), std::filesystem::current_path());
    return given;
  }
  if (letter.config.empty()) {
    throw Error(ErrorCode::kIncompatible,
                fmt::format("{} was set aside by a version that did not save the configuration of "
                            "the feed with it: give the configuration with --config FILE",
                            letter.file.string()));
  }
  return config::parse_config(letter.config, letter.file.string(), {}, config::Format::kText);
}

// Which lane, input and ring of the layout the record stood at.
process::ReplayRecord place_of(const Letter& letter, const layout::FeedLayout& layout) {
  const std::string name = fmt::format("{}{}{}.{}", letter.stage, letter.node.empty() ? "" : ".",
                                       letter.node, letter.lane);
  const auto missing = [&](const std::string& what) {
    return Error(ErrorCode::kIncompatible,
                 fmt::format("{}: this configuration and this worker have no {}: the letter comes "
                             "from another version, or from another feed",
                             letter.file.string(), what));
  };
  const auto lane =
      std::find_if(layout.lanes.begin(), layout.lanes.end(), [&](const layout::LanePlan& plan) {
        return plan.stage_name == letter.stage && plan.node == letter.node &&
               plan.number == letter.lane;
      });
  if (lane == layout.lanes.end()) throw missing(fmt::format("lane {}", name));
  const auto input =
      std::find_if(lane->inputs.begin(), lane->inputs.end(),
                   [&](const layout::InputPlan& plan) { return plan.port == letter.port; });
  if (input == lane->inputs.end()) {
    throw missing(fmt::format("input '{}' of lane {}", letter.port, name));
  }
  if (letter.ring >= input->rings.size()) {
    throw missing(fmt::format("ring {} of input '{}' of lane {}", letter.ring, letter.port, name));
  }
  return {.lane = lane->index,
          .input = static_cast<std::uint32_t>(input - lane->inputs.begin()),
          .ring = letter.ring,
          .bytes = std::as_bytes(std::span(letter.bytes)),
          .info = {.tag = {letter.lineage[0], letter.lineage[1]}, .user = letter.user}};
}

void wait_for_debugger(pid_t worker) {
  fmt::print(stderr,
             "worker {} is waiting for the record: attach with 'gdb -p {}', continue there, then "
             "press Enter here\n",
             worker, worker);
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

const char* name_of(process::ReplayOutcome outcome) {
  switch (outcome) {
    case process::ReplayOutcome::kTaken:
      return "taken";
    case process::ReplayOutcome::kDied:
      return "died";
    case process::ReplayOutcome::kHung:
      return "hung";
    case process::ReplayOutcome::kLeft:
      return "left";
  }
  return "";
}

// "stage unpacker took the record", "stage unpacker died on the record: signal 11 (...)".
std::string verdict(const process::ReplayReport& report, const std::string& lane) {
  const char* const when = report.consumed ? " after taking the record" : "";
  switch (report.outcome) {
    case process::ReplayOutcome::kTaken:
      return fmt::format(
          "{} took the record, after {} ms{}", lane, report.after_ms,
          report.finished ? "" : ", and was stopped, because it does not end by itself");
    case process::ReplayOutcome::kDied:
      return fmt::format("{} died{} with {}", lane, report.consumed ? when : " on the record",
                         report.ending.text());
    case process::ReplayOutcome::kHung:
      return fmt::format("{} was still running after {} s{}, and was killed", lane,
                         static_cast<double>(report.limit_ms) / 1000, when);
    case process::ReplayOutcome::kLeft:
      return fmt::format(
          "{} did not take the record{}{}", lane,
          report.finished ? ": it ended without it" : " in time: it is waiting for something else",
          report.note.empty() ? "" : ": " + report.note);
  }
  return "";
}

void print_letter(const Letter& letter) {
  fmt::print("{}: {}, {} deaths, {}\n", escaped(letter.file.string()),
             shown_bytes(letter.bytes.size()), letter.deaths,
             escaped(letter.cause.substr(0, letter.cause.find('\n'))));
}

void print_text(const Letter& letter, const layout::LanePlan& lane,
                const process::ReplayReport& report, const std::string& worker) {
  print_letter(letter);
  fmt::print("{}", describe_records({letter.file}, worker).front());
  fmt::print("{}\n", escaped(verdict(report, lane.name())));
  for (const process::ReplayPort& port : report.ports) {
    fmt::print("  output {} records on port {}, {}{}\n", port.records, port.port,
               shown_bytes(port.bytes),
               port.dropped == 0 ? "" : fmt::format("; {} were dropped", port.dropped));
  }
  if (report.batches_port) {
    fmt::print("  output {} batches, {} rows\n", report.batches, report.rows);
  }
  for (const auto& [name, value] : report.counters) fmt::print("  counted {}: {}\n", name, value);
  for (const layout::InputPlan& input : lane.inputs) {
    if (input.port == letter.port) continue;
    fmt::print("  input {} was empty and had ended\n", input.port);
  }
  fmt::print("  it started with the memory of a new feed: no other record came before it\n");
  if (!report.lines.empty()) fmt::print("output of its worker:\n");
  for (const std::string& line : report.lines) fmt::print("  {}\n", escaped(line));
}

void print_json(const Letter& letter, const layout::LanePlan& lane,
                const process::ReplayReport& report) {
  nlohmann::ordered_json out = {{"file", letter.file.string()},
                                {"lane", lane.name()},
                                {"port", letter.port},
                                {"outcome", name_of(report.outcome)},
                                {"consumed", report.consumed},
                                {"finished", report.finished},
                                {"after_ms", report.after_ms},
                                {"ending", report.ending.text()},
                                {"signal", report.ending.signal},
                                {"ports", nlohmann::ordered_json::array()},
                                {"counters", nlohmann::ordered_json::object()},
                                {"lines", report.lines}};
  for (const process::ReplayPort& port : report.ports) {
    out["ports"].push_back({{"port", port.port},
                            {"records", port.records},
                            {"bytes", port.bytes},
                            {"dropped", port.dropped}});
  }
  if (report.batches_port) {
    out["batches"] = report.batches;
    out["rows"] = report.rows;
  }
  for (const auto& [name, value] : report.counters) out["counters"][name] = value;
  fmt::print("{}\n", json_text(out));
}

// The record once more, under the debugger of the stage's own language.
int debug_letter(const Letter& letter, const DataLoaderConfig& message, const PipelinePlan& plan,
                 const std::string& binary) {
  const auto stage = std::ranges::find(plan.stages(), letter.stage, &StagePlan::name);
  if (stage == plan.stages().end()) {
    throw Error(ErrorCode::kIncompatible, fmt::format("{}: this configuration has no stage '{}'",
                                                      letter.file.string(), letter.stage));
  }
  if (!shows_itself(*stage)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--pdb is for stages in Python that give samples, and stage '{}' is "
                            "none: give --wait, and "
                            "attach gdb to its worker",
                            letter.stage));
  }
  print_letter(letter);
  std::fflush(nullptr);
  layout::SetupFacts facts;
  facts.config_bytes = message.SerializeAsString();
  facts.seed = message.has_seed() ? message.seed() : letter.seed;
  facts.supervisor_pid = static_cast<std::uint32_t>(::getpid());
  process::Viewer viewer(process::program_for(binary, stage->nodes(0).program()),
                         {"--samples=1", "--pdb", "--step"}, facts, letter.stage);
  viewer.give(std::as_bytes(std::span(letter.bytes)),
              {.tag = {letter.lineage[0], letter.lineage[1]}, .user = letter.user});
  const process::TrialReport report =
      process::run_trial({.name = letter.stage, .patient = true}, viewer);
  // An exception is no death: a feed leaves the sample out and goes on.
  const int status = say_trial(report, kNotTaken);
  return report.outcome == process::TrialOutcome::kShown ? kOk : status;
}

}  // namespace

int replay_letter(const std::string& feed, const std::string& directory,
                  const ReplayOptions& options, bool json) {
  const Letter letter = read_letter(letter_path(feed, directory, options.file)).value_or_throw();
  const config::Configuration configuration = configuration_of(letter, options.config);
  PipelinePlan plan;
  const std::string binary =
      options.binary.empty() ? worker_of(configuration.message()) : options.binary;
  if (configuration.complete()) plan = plan_of(configuration.message(), binary, kPlanMs);
  const config::Checked checked = config::check_config(configuration, plan);
  if (!checked.ok()) {
    fmt::print(stderr, "{}", config::problem_report(checked.problems, checked.left_out));
    return kInvalidConfiguration;
  }
  const DataLoaderConfig& message = configuration.message();
  if (options.pdb) return debug_letter(letter, message, plan, binary);
  layout::FeedLayout whole = layout::lay_out(
      message, plan, checked.wiring, config::stage_groups(message, plan, checked.wiring, 1));
  whole.first_batch = 1;  // the record is all that there is
  const process::ReplayRecord record = place_of(letter, whole);
  layout::FeedLayout alone = layout::only_lane(whole, record.lane);
  if (!alone.groups[0].parent_socket.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the processes of stage '{}' are forked by the program that runs the "
                            "feed, so its records cannot be replayed without that",
                            letter.stage));
  }
  layout::check_memory(alone,
                       {.available_bytes = shm::available_bytes({}), .place = "this machine"})
      .or_throw();

  layout::SetupFacts facts;
  facts.config_bytes = message.SerializeAsString();
  facts.seed = message.has_seed() ? message.seed() : letter.seed;
  facts.ordered = ordered_dispatch(message);
  facts.supervisor_pid = static_cast<std::uint32_t>(::getpid());
  process::ReplayRules rules;
  rules.binary = options.binary.empty() ? process::program_for(binary, alone.groups[0].program)
                                        : options.binary;
  rules.timeout_ms = options.timeout_s ? static_cast<std::uint64_t>(*options.timeout_s * 1000)
                     : options.wait    ? 0
                     : message.restart().stall_ms() != 0 ? message.restart().stall_ms()
                                                         : kDefaultTimeoutMs;
  if (options.wait) rules.before_record = wait_for_debugger;
  const process::ReplayReport report = process::replay(std::move(alone), facts, record, rules);
  const layout::LanePlan& lane = whole.lanes[record.lane];
  if (json) {
    print_json(letter, lane, report);
  } else {
    print_text(letter, lane, report, binary);
  }
  return report.outcome == process::ReplayOutcome::kTaken ? kOk : kNotTaken;
}

}  // namespace ringfeed::cli
