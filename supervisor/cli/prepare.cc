#include "supervisor/cli/prepare.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "ringfeed/shm/room.h"
#include "supervisor/config/paths.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"

namespace ringfeed::cli {

Prepared::Prepared(config::Configuration read) : configuration(std::move(read)) {}
Prepared::~Prepared() = default;
Prepared::Prepared(Prepared&&) noexcept = default;

int usable_cores() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

namespace {

constexpr std::string_view kHowToBuild =
    "pip install pyarrow, then rebuild and reinstall ringfeed, which then finds it";
constexpr std::string_view kInstallAnew = "reinstall ringfeed";
#ifdef RINGFEED_PYARROW
constexpr std::string_view kHowToInstall =
    "which come with pyarrow " RINGFEED_PYARROW ": pip install 'pyarrow==" RINGFEED_PYARROW
    ".*' where ringfeed is installed";
#else
constexpr std::string_view kHowToInstall =
    "which are missing: install Apache Arrow and its Parquet library";
#endif

// What a stage group needs beside the worker must be there, and start, before the feed does.
void require_program(const Prepared& prepared, const layout::GroupPlan& group) {
  const auto refuse = [&](const std::string& fault, std::string_view remedy) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("stage group '{}' needs the program {}, which cannot be used: {}; {}",
                            group.name, group.program, fault, remedy));
  };
  std::string program;
  try {
    program = process::program_for(prepared.worker_binary, group.program);
  } catch (const Error& error) {
    refuse(error.message(), kHowToBuild);
  }
  require_libraries(program, fmt::format("stage group '{}'", group.name));
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
}

}  // namespace

void require_libraries(const std::string& binary, std::string_view who) {
  if (process::libraries_found(binary)) return;
  const std::size_t slash = binary.rfind('/') + 1;
  throw Error(ErrorCode::kNotFound,
              fmt::format("{} needs {}, and that needs Arrow's libraries, {}", who,
                          std::string_view(binary).substr(slash), kHowToInstall));
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
  config::make_paths_absolute(prepared.configuration.message(), std::filesystem::current_path());
  prepared.plan = std::make_unique<PipelinePlan>();
  if (prepared.configuration.complete()) {
    prepared.worker_binary = process::find_worker_binary();
    *prepared.plan = process::ask_plan(prepared.worker_binary, prepared.configuration.message());
  }
  checked = config::check_config(prepared.configuration, *prepared.plan);
  if (!checked.ok()) return std::nullopt;
  const DataLoaderConfig& message = prepared.configuration.message();
  prepared.wiring = checked.wiring;
  prepared.groups = config::stage_groups(message, *prepared.plan, prepared.wiring, usable_cores());
  prepared.layout = layout::lay_out(message, *prepared.plan, prepared.wiring, prepared.groups);
  for (const layout::GroupPlan& group : prepared.layout.groups) {
    if (!group.program.empty()) require_program(prepared, group);
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
