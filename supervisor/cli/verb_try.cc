// ringfeed try: what a stage makes of the first samples, in the foreground.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/room.h"
#include "supervisor/cli/prepare.h"
#include "supervisor/cli/trial_text.h"
#include "supervisor/cli/verb.h"
#include "supervisor/config/grouping.h"
#include "supervisor/config/names.h"
#include "supervisor/feed/feed_part.h"
#include "supervisor/feed/trial.h"
#include "supervisor/group/spawn.h"
#include "supervisor/layout/memory.h"

namespace ringfeed::cli {
namespace {

constexpr std::string_view kSamples = "samples";
constexpr std::uint64_t kDefaultSamples = 5;
// Without a seed of its own a trial has this one: it shows the same again.
constexpr std::uint64_t kTrialSeed = 1;

struct TryOptions {
  std::string stage = {};
  std::uint64_t samples = kDefaultSamples;
  bool pdb = false;
};

using Ports = google::protobuf::RepeatedPtrField<PortPlan>;

bool are_samples(const Ports& ports) {
  return std::ranges::any_of(ports,
                             [](const PortPlan& port) { return port.record_type() == kSamples; });
}
bool has_samples(const StagePlan& stage) {
  return are_samples(stage.inputs()) || are_samples(stage.outputs());
}
std::vector<std::string> names_of(const PipelinePlan& plan, bool (*which)(const StagePlan&)) {
  std::vector<std::string> names;
  for (const StagePlan& stage : plan.stages()) {
    if (which(stage)) names.push_back(stage.name());
  }
  return names;
}

// Throws Error: there is none of this name that `options` are good for.
const StagePlan& stage_of(const PipelinePlan& plan, const TryOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  const std::vector<std::string> all = names_of(plan, [](const StagePlan&) { return true; });
  const auto found = std::ranges::find(all, options.stage);
  if (found == all.end()) {
    refuse(fmt::format("there is no stage '{}'{}", options.stage,
                       config::did_you_mean(options.stage, all, "there are")));
  }
  const StagePlan& stage = plan.stages(static_cast<int>(found - all.begin()));
  if (!has_samples(stage)) {
    const std::vector<std::string> good = names_of(plan, has_samples);
    refuse(fmt::format("stage '{}' neither takes nor gives samples{}", options.stage,
                       good.empty() ? ", and no stage of this configuration does"
                                    : "; these do: " + config::listed(good)));
  }
  if (options.pdb && !shows_itself(stage)) {
    const std::vector<std::string> good =
        names_of(plan, [](const StagePlan& one) { return shows_itself(one) && has_samples(one); });
    refuse(fmt::format(
        "--pdb is for stages in Python that give samples, and stage '{}' is none{}", options.stage,
        good.empty() ? "; nor is any other one here" : "; these are: " + config::listed(good)));
  }
  return stage;
}

// Each part of a stage has one lane: the order of samples is that of any number of them.
PipelinePlan with_single_lanes(PipelinePlan plan) {
  for (StagePlan& stage : *plan.mutable_stages()) {
    for (NodePlan& node : *stage.mutable_nodes()) {
      node.set_lanes(1);
      if (node.lanes_max() != 0) node.set_lanes_max(1);
    }
  }
  return plan;
}

// The lanes of a stage, and those before them.
struct Parts {
  std::vector<std::uint32_t> upstream;
  std::vector<std::uint32_t> own;
};
Parts parts_of(const layout::FeedLayout& layout, const std::string& stage) {
  Parts parts;
  std::vector<bool> reached(layout.lanes.size(), false);
  std::vector<std::uint32_t> open;
  for (const layout::LanePlan& lane : layout.lanes) {
    if (lane.stage_name != stage) continue;
    parts.own.push_back(lane.index);
    open.push_back(lane.index);
    reached[lane.index] = true;
  }
  while (!open.empty()) {
    const layout::LanePlan& lane = layout.lanes[open.back()];
    open.pop_back();
    for (const layout::InputPlan& input : lane.inputs) {
      for (const std::uint32_t ring : input.rings) {
        const std::uint32_t from = layout.rings[ring].from_lane;
        if (reached[from]) continue;
        reached[from] = true;
        parts.upstream.push_back(from);
        open.push_back(from);
      }
    }
  }
  std::ranges::sort(parts.upstream);
  return parts;
}

layout::FeedLayout part_of(const layout::FeedLayout& whole,
                           const std::vector<std::uint32_t>& lanes) {
  layout::FeedLayout part = layout::only_lanes(whole, lanes);
  layout::check_memory(part, {.available_bytes = shm::available_bytes({}), .place = "this machine"})
      .or_throw();
  return part;
}

// What the workers say: their warnings, and what stages print.
void say_line(std::string_view line) { fmt::print(stderr, "{}\n", escaped(line)); }

// The last words about a stage that did not speak for itself.
void say_stage(process::FeedPart& stage, const process::TrialReport& report, bool source) {
  const std::string name = stage.stages().front();
  std::string text = escaped(name) + ": ";
  if (!source) text += fmt::format("{} samples in, ", report.given);
  if (stage.writes_batches()) {
    const process::FeedPart::Batches batches = stage.batches();
    text += fmt::format("{} batches with {} rows out", batches.count, batches.rows);
  } else {
    text += fmt::format("{}{} out", report.out, source ? " samples" : "");
  }
  for (const auto& [counter, value] : stage.counters(name)) {
    text += fmt::format(", {}={}", counter, value);
  }
  fmt::print("{}\n", text);
}

int try_stage(const ConfigArguments& arguments, const TryOptions& options) {
  const std::optional<Prepared> prepared = prepare(arguments);
  if (!prepared) return kInvalidConfiguration;
  const DataLoaderConfig& message = prepared->configuration.message();
  const StagePlan& stage = stage_of(*prepared->plan, options);
  const PipelinePlan plan = with_single_lanes(*prepared->plan);
  const layout::FeedLayout whole =
      layout::lay_out(message, plan, prepared->wiring,
                      config::stage_groups(message, plan, prepared->wiring, usable_cores()));
  const Parts parts = parts_of(whole, options.stage);
  for (const layout::GroupPlan& group : whole.groups) {
    if (group.parent_socket.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the processes of stage '{}' are forked by the program that runs the "
                            "feed, so its stages cannot be tried without that",
                            whole.lanes[group.lanes[0]].stage_name));
  }
  layout::SetupFacts facts;
  facts.config_bytes = message.SerializeAsString();
  facts.seed = message.has_seed() ? message.seed() : kTrialSeed;
  facts.ordered = ordered_dispatch(message);
  facts.supervisor_pid = static_cast<std::uint32_t>(::getpid());
  layout::raise_file_limit();
  std::fflush(nullptr);

  std::optional<process::FeedPart> upstream;
  std::optional<process::FeedPart> own;
  const auto start = [&](std::optional<process::FeedPart>& part,
                         const std::vector<std::uint32_t>& lanes) {
    if (lanes.empty()) return;
    part.emplace(part_of(whole, lanes), facts, prepared->worker_binary, say_line);
  };
  start(upstream, parts.upstream);
  if (!shows_itself(stage)) start(own, parts.own);
  std::vector<std::string> words{fmt::format("--samples={}", options.samples)};
  if (options.pdb) words.emplace_back("--pdb");
  process::Viewer viewer(
      own ? prepared->worker_binary
          : process::program_for(prepared->worker_binary, stage.nodes(0).program()),
      words, facts, options.stage);
  const bool source = !are_samples(stage.inputs());
  const auto place = std::ranges::find(plan.stages(), options.stage, &StagePlan::name);
  const auto inputs =
      std::ranges::count(prepared->wiring.edges, static_cast<int>(place - plan.stages().begin()),
                         &config::Edge::to_stage);
  const process::TrialReport report =
      process::run_trial({.upstream = upstream ? &*upstream : nullptr,
                          .stage = own ? &*own : nullptr,
                          .name = options.stage,
                          .samples_max = options.samples,
                          .limits_out = source || inputs > 1,
                          .patient = options.pdb},
                         viewer);
  if (own && report.outcome == process::TrialOutcome::kShown) say_stage(*own, report, source);
  return say_trial(report, kFailure);
}

}  // namespace

bool shows_itself(const StagePlan& stage) {
  // The program that has warm parents has the user's interpreter too.
  return stage.nodes_size() == 1 && stage.nodes(0).warm_parent() && are_samples(stage.outputs());
}

int say_trial(const process::TrialReport& report, int died) {
  switch (report.outcome) {
    case process::TrialOutcome::kShown:
      return report.status;
    case process::TrialOutcome::kInterrupted:
      fmt::print(stderr, "interrupted{}{}\n", report.text.empty() ? "" : ": ",
                 escaped(report.text));
      return kInterrupted;
    case process::TrialOutcome::kDied:
      fmt::print(stderr, "ringfeed: {}\n", escaped_lines(report.text));
      return died;
    case process::TrialOutcome::kNothing:
    case process::TrialOutcome::kUpstream:
      fmt::print(stderr, "ringfeed: {}\n", escaped_lines(report.text));
      return kFailure;
  }
  return kFailure;
}

void add_try(CLI::App& verb, int& result) {
  struct Given {
    ConfigArguments config;
    TryOptions options;
  };
  const auto given = std::make_shared<Given>();
  add_config(verb, given->config)->required();
  verb.add_option("--stage", given->options.stage, "the stage to be shown")
      ->type_name("STAGE")
      ->required();
  verb.add_option("--samples", given->options.samples,
                  fmt::format("how many samples it gets; of a source, and of a stage of several "
                              "inputs, how many it gives; default {}",
                              kDefaultSamples))
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  verb.add_flag("--pdb", given->options.pdb,
                "open Python's debugger where the stage raises an exception; `c` goes on with the "
                "next sample, `q` ends");
  verb.footer(
      "The sources and the stages before it run in processes of their own, one lane each, and end "
      "with this command; nothing is left behind. The stage has the terminal: print(), input() and "
      "breakpoint() do what they do in a script.\n"
      "The exit status is 1 if it raised or died, or if no sample came; 130 after Ctrl-C.\n"
      "Example: ringfeed try c4.textproto --stage tokens --samples 3 --pdb");
  verb.callback([=, &result] { result = try_stage(given->config, given->options); });
}

}  // namespace ringfeed::cli
