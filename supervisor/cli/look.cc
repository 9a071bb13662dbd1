#include "supervisor/cli/look.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/group/plan_question.h"

namespace ringfeed::cli {
namespace {

// A look takes seconds at most, unless a file system does not answer.
constexpr int kDataLookMs = 15'000;

}  // namespace

DataLooks look_at_data(const Prepared& prepared, config::Checked& checked) {
  const PipelinePlan& plan = *prepared.plan;
  const config::Configuration& configuration = prepared.configuration;
  const DataLoaderConfig& message = configuration.message();
  const auto warn = [&](const std::string& path, std::string text) {
    if (checked.warnings.size() >= config::kProblemsKept) return;
    checked.warnings.push_back({configuration.places().find(path),
                                config::stage_label(message, path), std::move(text), path});
  };
  DataLooks looks;
  if (std::ranges::none_of(plan.stages(), &StagePlan::looks_at_data)) return looks;
  try {
    looks = process::ask_looks(prepared.worker_binary, message, kDataLookMs);
  } catch (const Error& error) {
    warn("", fmt::format("the data was not looked at: {}", error.message()));
    return looks;
  }
  for (const DataLookPlan& look : looks.looks()) {
    const int number = static_cast<int>(look.stage());
    if (number >= plan.stages_size()) continue;
    const std::string path =
        fmt::format("{}.{}", config::stage_path(number), plan.stages(number).kind());
    for (const PlanProblem& found : look.warnings()) {
      warn(found.field().empty() ? path : path + "." + found.field(), found.text());
    }
  }
  config::sort_problems(checked.warnings);
  return looks;
}

}  // namespace ringfeed::cli
