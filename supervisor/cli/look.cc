#include "supervisor/cli/look.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/fields.h"
#include "supervisor/group/plan_question.h"
#include "supervisor/group/spawn.h"

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
  // By the program that reads the data: "" is the worker itself.
  std::map<std::string, std::set<int>> stages;
  for (int i = 0; i < plan.stages_size(); ++i) {
    if (!plan.stages(i).looks_at_data()) continue;
    std::string program;
    for (const NodePlan& node : plan.stages(i).nodes()) {
      if (!node.program().empty()) program = node.program();
    }
    stages[program].insert(i);
  }
  DataLooks looks;
  for (const auto& [program, its] : stages) {
    DataLooks answer;
    try {
      const std::string& worker = prepared.worker_binary;
      answer = process::ask_looks(program.empty() ? worker : process::program_for(worker, program),
                                  message, kDataLookMs);
    } catch (const Error& error) {
      warn("", fmt::format("the data was not looked at: {}", error.message()));
    }
    for (const DataLookPlan& look : answer.looks()) {
      const int number = static_cast<int>(look.stage());
      if (!its.contains(number)) continue;
      *looks.add_looks() = look;
      const std::string path =
          fmt::format("{}.{}", config::stage_path(number), plan.stages(number).kind());
      for (const PlanProblem& found : look.warnings()) {
        warn(found.field().empty() ? path : path + "." + found.field(), found.text());
      }
    }
  }
  config::sort_problems(checked.warnings);
  return looks;
}

}  // namespace ringfeed::cli
