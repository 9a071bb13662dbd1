// What stages that name files say of them (ringfeed/worker/facts.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/facts.h"

namespace ringfeed {

// The files that a stage would name if it ran now, in its order.
struct FilesFound {
  std::vector<std::string> paths = {};
  bool whole = true;           // false: the search ended at its bounds, and there may be more
  std::string directory = {};  // that all paths are below, where the configuration says one
  // Names at which there is no file to be read, and why.
  std::vector<std::pair<std::string, std::string>> unreadable = {};
  std::string nothing = {};  // why there are no paths, unless the configuration's check says it
};
// Looks for at most `most` files, until a time.
struct FileFinder {
  std::function<FilesFound(std::size_t most, std::chrono::steady_clock::time_point until)> find;
};
inline std::string fact_text(const FileFinder&) { return {}; }  // it is for stages alone

// The patterns that all paths follow, one a line.
inline constexpr Fact<std::string> kFilePatterns{"files.patterns"};
// Finds them; not said of files that are elsewhere.
inline constexpr Fact<FileFinder> kFileFinder{"files.finder"};

}  // namespace ringfeed
