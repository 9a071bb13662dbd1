// Libraries that are loaded when they are needed.
#pragma once

#include <cerrno>
#include <cstring>
#include <string_view>

namespace ringfeed::formats {

// Did dlopen() fail for want of a descriptor or of memory? It says so in its text alone. The same
// call may succeed in a moment.
[[nodiscard]] inline bool is_starved_load(std::string_view why) noexcept {
  for (const int error : {EMFILE, ENFILE, ENOMEM}) {
    if (why.ends_with(::strerrordesc_np(error))) return true;
  }
  return false;
}

}  // namespace ringfeed::formats
