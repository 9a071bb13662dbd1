// The stages beside a stage, as the configuration wires them: for settings that follow from theirs.
#pragma once

#include <optional>
#include <string_view>

#include "proto/config.pb.h"

namespace ringfeed {

// The stage that a reference ("stage" or "stage.port") names; nullptr: there is none.
[[nodiscard]] const StageConfig* stage_named(const DataLoaderConfig& feed,
                                             std::string_view reference);

// The first stage that reads an output of the stage, and by which field; nullptr: none does.
struct Reader {
  const StageConfig* stage = nullptr;
  std::string_view field;  // "input", "variations"
};
[[nodiscard]] Reader reader_of(const DataLoaderConfig& feed, std::string_view stage);

// The epoch_planner whose plans the stage takes by its field `input`; nullptr: it takes none.
[[nodiscard]] const EpochPlannerConfig* planner_before(const BitextCollatorConfig& stage,
                                                       const DataLoaderConfig& feed);

// Whose random numbers a chess stage follows; nothing: it is none.
[[nodiscard]] std::optional<SampleOrder> sample_order(const StageConfig& stage);
// Whether it is there and EXACT.
[[nodiscard]] bool is_exact(const StageConfig* stage);

// The largest length_max of the stages that make sequences from this one upstream; 0: there is
// none.
[[nodiscard]] std::uint32_t sequence_length(const StageConfig& stage, const DataLoaderConfig& feed);
// Whether sequences with variations may come from this stage.
[[nodiscard]] bool makes_variations(const StageConfig& stage, const DataLoaderConfig& feed);

}  // namespace ringfeed
