// What the terminal of whoever calls can show.
#pragma once

#include <cstddef>

namespace ringfeed {

// Are texts in UTF-8, by the environment (LC_ALL, LC_CTYPE, LANG)? Where the locale that it names
// is not installed, its name tells.
[[nodiscard]] bool locale_is_utf8();

// How wide the terminal behind this descriptor is; 80 if it does not say.
[[nodiscard]] std::size_t columns_of(int fd);
// Does it take no sequences at all (TERM=dumb), so that nothing on it is redrawn?
[[nodiscard]] bool terminal_is_dumb();
// Does it want colours? Not where NO_COLOR is set and not empty (no-color.org), and not
// where TERM is not set, or is "dumb".
[[nodiscard]] bool wants_colours();
// The same of standard output: it must be a terminal.
[[nodiscard]] bool output_wants_colours();

}  // namespace ringfeed
