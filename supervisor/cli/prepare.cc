#include "supervisor/cli/prepare.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/room.h"
#include "supervisor/cli/link.h"
#include "supervisor/config/paths.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"
#include "supervisor/os/processors.h"

namespace ringfeed::cli {

Prepared::Prepared(config::Configuration read) : configuration(std::move(read)) {}
Prepared::~Prepared() = default;
Prepared::Prepared(Prepared&&) noexcept = default;

int usable_cores() { return std::max(1, static_cast<int>(process::usable_processors().size())); }

namespace {

constexpr std::string_view kInstallAnew = "reinstall ringfeed";
// A program that is no plug-in may never answer.
constexpr int kPluginPlanMs = 30'000;
// What a stage group needs beside the worker must be there, and start, before the feed does. Its
// plan: it may know more of its stages.
PipelinePlan require_program(const Prepared& prepared, const layout::GroupPlan& group) {
  const auto refuse = [&](const std::string& fault, std::string_view remedy) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("stage group '{}' needs the program {}, which cannot be used: {}; {}",
                            group.name, group.program, fault, remedy));
  };
  std::string program;
  try {
    program = process::program_for(prepared.worker_binary, group.program);
  } catch (const Error& error) {
    refuse(error.message(), kInstallAnew);
  }
  PipelinePlan plan;
  try {
    plan = process::ask_plan(program, prepared.configuration.message());
  } catch (const Error& error) {
    refuse(error.message(), kInstallAnew);
  }
  if (plan.worker_version() != prepared.plan->worker_version() ||
      plan.abi() != prepared.plan->abi()) {
    refuse(fmt::format("{} is version {}, {} is version {}", group.program, plan.worker_version(),
                       prepared.worker_binary, prepared.plan->worker_version()),
           kInstallAnew);
  }
  return plan;
}

// Stages in which only the program that runs them finds problems. True: there are some.
bool take_problems(const PipelinePlan& from, const std::string& program, PipelinePlan& to) {
  bool found = false;
  for (int i = 0; i < std::min(from.stages_size(), to.stages_size()); ++i) {
    const auto is_its = [&](const NodePlan& node) { return node.program() == program; };
    if (std::ranges::none_of(to.stages(i).nodes(), is_its)) continue;
    if (from.stages(i).problems_size() <= to.stages(i).problems_size()) continue;
    *to.mutable_stages(i) = from.stages(i);
    found = true;
  }
  return found;
}

// Each program is asked once. True: one has found problems.
bool ask_programs(Prepared& prepared) {
  std::set<std::string> asked;
  bool found = false;
  for (const layout::GroupPlan& group : prepared.layout.groups) {
    // Processes of a parent that was given are no program's.
    if (group.program.empty() || !group.parent_socket.empty()) continue;
    if (!asked.insert(group.program).second) continue;
    found = take_problems(require_program(prepared, group), group.program, *prepared.plan) || found;
  }
  return found;
}

void require_version(const std::string& worker, const PipelinePlan& plan) {
  if (!plan.has_worker_version()) {
    throw Error(ErrorCode::kIncompatible,
                fmt::format("worker {} is no program of ringfeed's: give that of a plug-in, whose "
                            "main() calls ringfeed::worker_main()",
                            worker));
  }
  if (plan.worker_version() == RINGFEED_VERSION && plan.abi() == shm::kAbiMajor) return;
  throw Error(
      ErrorCode::kIncompatible,
      fmt::format("worker {} was built with ringfeed {} (ABI {}), and this is {} (ABI {}): "
                  "build it again with this one",
                  worker, plan.worker_version(), plan.abi(), RINGFEED_VERSION, shm::kAbiMajor));
}

}  // namespace

std::string worker_of(const DataLoaderConfig& config) {
  const std::string& worker = config.worker();
  if (worker.empty()) return process::find_worker_binary();
  const auto refuse = [&worker](std::string_view fault) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("worker {} {}: give the program of a plug-in, and build it first",
                            worker, fault));
  };
  struct stat info {};
  if (::stat(worker.c_str(), &info) != 0) {
    refuse(errno == ENOENT ? "does not exist" : std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) refuse("is a directory");
  if (::access(worker.c_str(), X_OK) != 0) refuse("may not be run by this user");
  return worker;
}

PipelinePlan plan_of(const DataLoaderConfig& config, const std::string& worker, int timeout_ms) {
  const bool plugged = !config.worker().empty();
  PipelinePlan plan =
      process::ask_plan(worker, config, plugged && timeout_ms < 0 ? kPluginPlanMs : timeout_ms);
  if (plugged) require_version(worker, plan);
  return plan;
}

std::optional<Prepared> prepare(const ConfigArguments& arguments) {
  config::Checked checked;
  std::optional<Prepared> prepared = prepare(arguments, checked);
  if (!prepared) {
    fmt::print(stderr, "{}", config::problem_report(checked.problems, checked.left_out));
    return std::nullopt;
  }
  for (const config::Problem& warning : checked.warnings) {
    fmt::print(stderr, "warning: {}\n", escaped_lines(warning.message()));
  }
  return prepared;
}

std::optional<Prepared> prepare(const ConfigArguments& arguments, config::Checked& checked) {
  Prepared prepared(arguments.text.empty()
                        ? config::read_config(arguments.file, arguments.overrides)
                        : config::parse_config(arguments.text, arguments.file, arguments.overrides,
                                               config::Format::kText));
  if (!arguments.worker.empty()) {
    prepared.configuration.message().set_worker(arguments.worker);
    prepared.configuration.places().set("worker", {"--worker", 0, 0});
  }
  config::make_paths_absolute(prepared.configuration.message(), std::filesystem::current_path());
  prepared.plan = std::make_unique<PipelinePlan>();
  if (prepared.configuration.complete()) {
    const DataLoaderConfig& message = prepared.configuration.message();
    try {
      prepared.worker_binary = worker_of(message);
      std::optional<PipelinePlan> given;
      if (arguments.link >= 0 && message.worker().empty()) given = plan_on(arguments.link);
      *prepared.plan = given ? std::move(*given) : plan_of(message, prepared.worker_binary);
    } catch (const Error& error) {
      if (message.worker().empty()) throw;
      // The configuration names it, so it is one of its mistakes.
      checked.problems = prepared.configuration.problems();
      checked.problems.push_back(
          {prepared.configuration.places().find("worker"), {}, error.message(), "worker"});
      return std::nullopt;
    }
  }
  checked = config::check_config(prepared.configuration, *prepared.plan);
  if (!checked.ok()) return std::nullopt;
  const DataLoaderConfig& message = prepared.configuration.message();
  prepared.wiring = checked.wiring;
  prepared.groups = config::stage_groups(message, *prepared.plan, prepared.wiring, usable_cores());
  prepared.layout = layout::lay_out(message, *prepared.plan, prepared.wiring, prepared.groups);
  if (ask_programs(prepared)) {
    checked = config::check_config(prepared.configuration, *prepared.plan);
    if (!checked.ok()) return std::nullopt;
  }
  return prepared;
}

layout::MemoryLimits memory_limits(const Prepared& prepared) {
  const StorageConfig& storage = prepared.configuration.message().storage();
  layout::MemoryLimits limits;
  if (!storage.directory().empty() && !std::filesystem::is_directory(storage.directory())) {
    throw Error(ErrorCode::kNotFound, fmt::format("storage.directory {} is not a directory: create "
                                                  "it, or leave it out for unnamed memory",
                                                  storage.directory()));
  }
  const shm::Room room = shm::room_for(shm::Storage{storage.directory()});
  limits.available_bytes = room.bytes;
  limits.place = room.place;
  rlimit address{};
  if (::getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY) {
    limits.address_bytes = address.rlim_cur;
  }
  limits.budget_bytes = storage.memory_budget_bytes();
  return limits;
}

}  // namespace ringfeed::cli
