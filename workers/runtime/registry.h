// The kinds of stages that this worker can run, by the field of StageConfig that configures them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class KindList;
class PipelinePlan;

class Registry {
 public:
  void add(StageType type);
  [[nodiscard]] const StageType* find(std::string_view kind) const noexcept;
  [[nodiscard]] const std::vector<StageType>& types() const noexcept { return types_; }

 private:
  std::vector<StageType> types_;
};

// The kind that a stage's configuration names: the one field beside `name` that is set; "" if none
// or more than one.
std::string stage_kind(const StageConfig& config);

// The counters that a stage may have, those of the runtime not among them.
std::vector<CounterSpec> counters_of(const StageType& type, const StageConfig& config);
// The names that its lanes may ask for.
std::vector<std::string> counter_names(const StageType& type, const StageConfig& config);

// What each stage of the configuration needs, and what is wrong with its own settings. A stage that
// has problems and nodes runs all the same: its problems are warnings.
PipelinePlan plan_pipeline(const DataLoaderConfig& config, const Registry& registry);

// What can be said of each kind without a configuration, and by its example.
KindList list_kinds(const Registry& registry);
// The stages of a kind's example. RF_CHECK: its text is a configuration.
DataLoaderConfig example_of(const StageType& type);

// One node of a configured stage: which part it is, and its description.
// Errors: kConfiguration if the registry does not know the kind or the node.
NodeSpec find_node(const StageView& stage, const Registry& registry, std::string_view node);

// Makes the stage that runs on one lane of a node.
std::unique_ptr<Stage> create_stage(const NodeSpec& node, const StageContext& context);

}  // namespace ringfeed
