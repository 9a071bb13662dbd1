// Reports an event of the feed: its level, its name, its values.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "supervisor/metrics/talk.h"

namespace ringfeed::process {

using Report =
    std::function<void(metrics::Level, std::string_view event, const std::string& values)>;

}  // namespace ringfeed::process
