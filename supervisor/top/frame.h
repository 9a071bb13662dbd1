// The screen as lines of text: a function of what is known and of what somebody looks at, without a
// terminal.
#pragma once

#include <cstddef>

#include "supervisor/top/text.h"
#include "supervisor/top/view.h"

namespace ringfeed::top {

struct Size {
  std::size_t rows = 24;
  std::size_t columns = 80;
};
// On a smaller one it only says so.
inline constexpr Size kLeast{10, 40};

struct Frame {
  Lines lines = {};            // at most as many as there are rows, none wider than the screen
  std::size_t scroll_max = 0;  // of a page that is longer
};
[[nodiscard]] Frame frame(const Now& now, const View& view, Size size, bool utf8);

// Everything about a feed, as long as it is, without keys: for a file or a pipe.
[[nodiscard]] Lines printout(const Now& now, const View& view, std::size_t columns, bool utf8);

}  // namespace ringfeed::top
