#include "supervisor/config/grouping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/names.h"

namespace ringfeed::config {
namespace {

// The cut of a chain into exactly `groups` parts with the lightest heaviest part; among equals the
// most even one, so that no part is heavier than it need be.
std::vector<int> best_cut(const std::vector<double>& weights, std::size_t groups) {
  struct Best {
    double heaviest = std::numeric_limits<double>::infinity();
    double squares = std::numeric_limits<double>::infinity();
    std::size_t last_begin = 0;
  };
  const std::size_t count = weights.size();
  // table[g][n]: the first n stages in g groups.
  std::vector<std::vector<Best>> table(groups + 1, std::vector<Best>(count + 1));
  table[0][0] = {0, 0, 0};
  for (std::size_t g = 1; g <= groups; ++g) {
    for (std::size_t n = g; n <= count; ++n) {
      double part = 0;
      for (std::size_t begin = n; begin-- > g - 1;) {
        part += weights[begin];
        const Best& before = table[g - 1][begin];
        const double heaviest = std::max(before.heaviest, part);
        const double squares = before.squares + part * part;
        Best& best = table[g][n];
        if (heaviest < best.heaviest || (heaviest == best.heaviest && squares < best.squares)) {
          best = {heaviest, squares, begin};
        }
      }
    }
  }
  std::vector<int> sizes;
  std::size_t end = count;
  for (std::size_t g = groups; g > 0; --g) {
    const std::size_t begin = table[g][end].last_begin;
    sizes.insert(sizes.begin(), static_cast<int>(end - begin));
    end = begin;
  }
  return sizes;
}

// What has to run the stage: a program beside the worker, the worker itself, or (nothing) either.
struct Runner {
  std::string program = {};
  bool is_worker = false;

  [[nodiscard]] bool agrees_with(const Runner& other) const {
    if (is_worker) return other.program.empty();
    if (program.empty()) return true;
    return !other.is_worker && (other.program.empty() || other.program == program);
  }
  void add(const Runner& other) {
    if (!other.program.empty()) program = other.program;
    is_worker = is_worker || other.is_worker;
  }
};
Runner runner_of(const StagePlan& stage) {
  Runner runner;
  for (const NodePlan& node : stage.nodes()) {
    if (node.process_per_lane()) continue;  // in no group with others
    runner.add({node.program(), node.no_other_program()});
  }
  return runner;
}

// "loader+pool"; for many long names "loader+…" with the last one. Configured names have no '+'.
std::string default_name(const DataLoaderConfig& config, const std::vector<int>& stages) {
  std::string name;
  for (const int stage : stages) {
    name += (name.empty() ? "" : "+") + config.stages(stage).name();
  }
  if (name.size() <= kNameLengthMax) return name;
  return config.stages(stages.front()).name() + "+" + std::to_string(stages.size() - 1);
}

}  // namespace

std::vector<int> cut_chain(const std::vector<double>& weights, int cores) {
  const std::size_t count = weights.size();
  if (count == 0) return {};
  const std::size_t fewest = count >= 3 ? 2 : 1;
  const std::size_t most =
      std::clamp<std::size_t>(static_cast<std::size_t>(std::max(cores, 1)) + 1, fewest, count);
  const double cheap = kCheapShare * *std::max_element(weights.begin(), weights.end());

  std::vector<int> sizes = best_cut(weights, most);
  std::vector<double> sums;
  auto next = weights.begin();
  for (const int size : sizes) {
    sums.push_back(std::accumulate(next, next + size, 0.0));
    next += size;
  }
  while (sizes.size() > fewest) {
    std::size_t lightest = 0;
    for (std::size_t i = 1; i + 1 < sums.size(); ++i) {
      if (sums[i] + sums[i + 1] < sums[lightest] + sums[lightest + 1]) lightest = i;
    }
    if (sums[lightest] + sums[lightest + 1] > cheap) break;
    const auto second = static_cast<std::ptrdiff_t>(lightest + 1);
    sums[lightest] += sums[lightest + 1];
    sizes[lightest] += sizes[lightest + 1];
    sums.erase(sums.begin() + second);
    sizes.erase(sizes.begin() + second);
  }
  return sizes;
}

std::vector<StageGroup> stage_groups(const DataLoaderConfig& config, const PipelinePlan& plan,
                                     const Wiring& wiring, int cores) {
  std::vector<StageGroup> groups;
  for (const StageGroupConfig& configured : config.stage_groups()) {
    StageGroup group{configured.name(), {}};
    for (const int stage : wiring.order) {
      const std::string& name = config.stages(stage).name();
      if (std::find(configured.stages().begin(), configured.stages().end(), name) !=
          configured.stages().end()) {
        group.stages.push_back(stage);
      }
    }
    groups.push_back(std::move(group));
  }
  if (!groups.empty()) return groups;

  std::vector<double> weights;
  for (const int stage : wiring.order) {
    const auto& nodes = plan.stages(stage).nodes();
    weights.push_back(
        std::accumulate(nodes.begin(), nodes.end(), 0.0,
                        [](double sum, const NodePlan& n) { return sum + n.weight(); }));
  }
  std::size_t next = 0;
  for (const int size : cut_chain(weights, cores)) {
    StageGroup group;
    Runner runner;
    const auto close = [&] {
      group.name = default_name(config, group.stages);
      groups.push_back(std::exchange(group, {}));
      runner = {};
    };
    for (int i = 0; i < size; ++i) {
      const int stage = wiring.order[next++];
      const Runner own = runner_of(plan.stages(stage));
      if (!group.stages.empty() && !runner.agrees_with(own)) close();
      group.stages.push_back(stage);
      runner.add(own);
    }
    close();
  }
  return groups;
}

}  // namespace ringfeed::config
