// The bytes of page/, as cmake/embed.cmake writes them.
#pragma once

#include <string_view>

namespace ringfeed {

std::string_view index_html();
std::string_view page_css();
std::string_view page_js();

}  // namespace ringfeed
