// The bytes of page/, as cmake/embed.cmake writes them.
#pragma once

#include <string_view>

namespace ringfeed {

std::string_view report_css();

}  // namespace ringfeed
