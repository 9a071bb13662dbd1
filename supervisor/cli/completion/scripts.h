// The scripts of this folder, as cmake/embed.cmake writes them.
#pragma once

#include <string_view>

namespace ringfeed {

std::string_view completion_bash();
std::string_view completion_zsh();
std::string_view completion_fish();

}  // namespace ringfeed
