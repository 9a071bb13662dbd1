// The kinds of stages that this worker can run, by the field of StageConfig that configures them;
// those of a plug-in, which share a field, by the name that its settings give.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace google::protobuf {
class Message;
}

namespace ringfeed {

class DataLooks;
class KindList;
class PipelinePlan;

class Registry {
 public:
  void add(StageType type);
  // Throws Error (kInvalidArgument) for what is wrong with the type (plugin.h).
  void add_plugin(StageType type);
  // Of ringfeed's own kinds.
  [[nodiscard]] const StageType* find(std::string_view kind) const noexcept;
  // The kind that configures the stage, of either sort; nullptr: not here, or not exactly one.
  [[nodiscard]] const StageType* of(const StageConfig& config) const noexcept;
  [[nodiscard]] const std::vector<StageType>& types() const noexcept { return types_; }
  [[nodiscard]] const std::vector<StageType>& plugins() const noexcept { return plugins_; }

 private:
  std::vector<StageType> types_;
  std::vector<StageType> plugins_;
};

// The kind that a stage's configuration names: the one field beside `name` that is set; "" if none
// or more than one.
std::string stage_kind(const StageConfig& config);

// Its settings. RF_CHECK: exactly one such field is set.
const google::protobuf::Message& settings_of(const StageConfig& config);

// The counters that a stage may have, those of the runtime not among them.
std::vector<CounterSpec> counters_of(const StageType& type, const StageConfig& config);
// The names that its lanes may ask for.
std::vector<std::string> counter_names(const StageType& type, const StageConfig& config);

// What each stage of the configuration needs, and what is wrong with its own settings. A stage that
// has problems and nodes runs all the same: its problems are warnings.
PipelinePlan plan_pipeline(const DataLoaderConfig& config, const Registry& registry);

// What the first of the data is like of those stages that can say it; a configuration that can run.
DataLooks look_at_data(const DataLoaderConfig& config, const Registry& registry);

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
