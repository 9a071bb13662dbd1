// From a configuration file to a layout: what `run` and `check` have in common.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "supervisor/cli/verbs.h"
#include "supervisor/config/check.h"
#include "supervisor/config/grouping.h"
#include "supervisor/config/read.h"
#include "supervisor/layout/feed_layout.h"
#include "supervisor/layout/memory.h"

namespace ringfeed {
class DataLoaderConfig;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::cli {

struct Prepared {
  config::Configuration configuration;
  std::string worker_binary;
  std::unique_ptr<PipelinePlan> plan;
  config::Wiring wiring;
  std::vector<config::StageGroup> groups;
  layout::FeedLayout layout;

  Prepared(config::Configuration read);
  ~Prepared();
  Prepared(Prepared&&) noexcept;
};

// nullopt: there are problems, and all of them have been said on standard error. So are warnings.
[[nodiscard]] std::optional<Prepared> prepare(const ConfigArguments& arguments);
// The same, but nothing is said: what was found, problems and warnings, is in `checked`.
[[nodiscard]] std::optional<Prepared> prepare(const ConfigArguments& arguments,
                                              config::Checked& checked);

// The program that runs the stages: `worker` of the configuration, else the one that
// process::find_worker_binary() finds. Throws Error (kNotFound) if it cannot be one.
[[nodiscard]] std::string worker_of(const DataLoaderConfig& config);
// Its plan. Throws Error: kTimeout after `timeout_ms` (-1: two minutes); kIncompatible if the
// worker is a plug-in of another version.
[[nodiscard]] PipelinePlan plan_of(const DataLoaderConfig& config, const std::string& worker,
                                   int timeout_ms = -1);

[[nodiscard]] layout::MemoryLimits memory_limits(const Prepared& prepared);

// CPUs that this process may use.
[[nodiscard]] int usable_cores();

}  // namespace ringfeed::cli
