// Has the worker look at the first of a configuration's data, as `check` says it.
#pragma once

#include "supervisor/cli/prepare.h"

namespace ringfeed {
class DataLooks;
}  // namespace ringfeed

namespace ringfeed::cli {

// What it has found is among the warnings of `checked`, too. A worker that does not answer in time
// is a warning, and is ended.
[[nodiscard]] DataLooks look_at_data(const Prepared& prepared, config::Checked& checked);

}  // namespace ringfeed::cli
