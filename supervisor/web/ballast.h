// Memory that is kept for the moment when there is none. A tree of JSON takes some when it goes
// away (nlohmann flattens it onto a stack of its own), and whoever is refused it there ends the
// process.
#pragma once

namespace ringfeed::web {

// Takes what was given up since, from now on for this whole process: a first allocation that fails
// gets a part, those of destructors while an exception passes get the rest, and any other one
// throws std::bad_alloc as usual. False: there is no memory for it, so nobody should make a tree.
[[nodiscard]] bool take_ballast() noexcept;

}  // namespace ringfeed::web
