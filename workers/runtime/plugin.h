// Stages of plug-ins: which kinds they may be, and what is wrong with the options of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

class StageKind;

// The field of StageConfig that configures all of them.
inline constexpr std::string_view kPluginField = "plugin";

// What a program may not register: a name or an option that cannot be, a stage without nodes.
// Empty: nothing.
std::string fault_of_plugin(const StageType& type);

// What the options of a configured stage, and its inputs, are not as the kind declares them.
std::vector<Problem> plugin_problems(const StageType& type, const StageConfig& config);
// What the nodes of the stage leave out of its configuration.
std::vector<Problem> lane_problems(const StageConfig& config, const std::vector<NodeSpec>& nodes);

// The layout of its batches as trainers get it. What cannot be one is in `problems`, and then
// nothing is filled in.
void plan_batches(const BatchLayout& layout, std::vector<Problem>& problems, BatchSchema& schema);

// Text and options, for `ringfeed stages`.
void describe_plugin(const StageType& type, StageKind& kind);
// What every worker has to say of stages of plug-ins.
void describe_plugins(StageKind& kind);

}  // namespace ringfeed
