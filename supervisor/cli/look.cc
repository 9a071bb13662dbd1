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
  const auto looks_at = [](const StagePlan& stage) { return stage.looks_at_data(); };
  DataLooks looks;
  if (std::ranges::none_of(plan.stages(), looks_at)) return looks;
  DataLooks answer;
  try {
    answer = process::ask_looks(prepared.worker_binary, message, kDataLookMs);
  } catch (const Error& error) {
    warn("", fmt::format("the data was not looked at: {}", error.message()));
  }
  for (const DataLookPlan& look : answer.looks()) {
    if (look.stage() >= static_cast<std::uint32_t>(plan.stages_size())) continue;
    const int number = static_cast<int>(look.stage());
    if (!plan.stages(number).looks_at_data()) continue;
    *looks.add_looks() = look;
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
