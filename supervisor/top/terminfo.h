// Descriptions of the usual types of terminals, as this program was built with them: for a system
// whose database lacks a type, or is not where ncurses looks.
#pragma once

#include <string>
#include <string_view>

namespace ringfeed::top {

struct Description {
  std::string type = {};   // "": there is none
  std::string entry = {};  // as $TERMINFO may hold it
};

// One that is right for a terminal of this type, if the type says which those are:
// "xterm-kitty" is an xterm.
[[nodiscard]] Description description_of(const std::string& type);

// The description of exactly this type, of those that CMake has taken from the system that it ran
// on; "": there is none.
[[nodiscard]] std::string_view built_in_entry(std::string_view type);

}  // namespace ringfeed::top
