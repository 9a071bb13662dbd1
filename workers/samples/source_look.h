// What the first samples of a sample_source's files are like: its part of `ringfeed check`.
#pragma once

#include <optional>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

// Nothing: the files are elsewhere, or nobody says which they are.
[[nodiscard]] std::optional<DataLook> look_at_source(const StageView& stage);

}  // namespace ringfeed
