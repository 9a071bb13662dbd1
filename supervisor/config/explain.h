// What `ringfeed check` shows of a configuration that is right: groups, stages, ports, batches, and
// the memory per part and in total.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "supervisor/config/grouping.h"
#include "supervisor/config/places.h"
#include "supervisor/config/wiring.h"

namespace ringfeed {
class DataLooks;
}  // namespace ringfeed

namespace ringfeed::config {

// One line of the memory table; what the parts are, the layout of the feed decides.
struct MemoryPart {
  std::string part;  // "reservoir of sampler, 1 lane"
  std::uint64_t bytes = 0;
};

[[nodiscard]] std::string explain(const DataLoaderConfig& config, const PipelinePlan& plan,
                                  const Wiring& wiring, std::span<const StageGroup> groups,
                                  std::span<const MemoryPart> memory);
// The same for programs: `feed`, `epochs`, `groups` of `stages`, `batches`, `memory`.
[[nodiscard]] nlohmann::ordered_json explain_json(const DataLoaderConfig& config,
                                                  const PipelinePlan& plan, const Wiring& wiring,
                                                  std::span<const StageGroup> groups,
                                                  std::span<const MemoryPart> memory);
// What the first of the data is like, a line for each stage that reads some; "": none does.
[[nodiscard]] std::string looks_text(const DataLoaderConfig& config, const DataLooks& looks);
// The same for programs: a list.
[[nodiscard]] nlohmann::ordered_json looks_json(const DataLoaderConfig& config,
                                                const DataLooks& looks);
// A list of `file`, `line`, `column`, `stage`, `path` and `text`.
[[nodiscard]] nlohmann::ordered_json problems_json(std::span<const Problem> problems);

}  // namespace ringfeed::config
