// Which files a file_path_provider looks for: below a directory, by patterns, out of lists.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ringfeed/shm/result.h"
#include "workers/files/path_pattern.h"

namespace ringfeed {

class FilePathProviderConfig;

class WantedPaths {
 public:
  // Throws Error (kConfiguration) for what problems_of() says.
  explicit WantedPaths(const FilePathProviderConfig& config);

  // The directories to search, each once, none of them below another.
  [[nodiscard]] const std::vector<std::string>& roots() const noexcept { return roots_; }
  [[nodiscard]] const std::vector<std::string>& lists() const noexcept { return lists_; }
  // As the configuration has it, for messages: the directory, the first pattern or list.
  [[nodiscard]] const std::string& shown() const noexcept { return shown_; }

  [[nodiscard]] bool wants(const std::string& path) const;
  // Can a wanted file be below this directory?
  [[nodiscard]] bool reaches(const std::string& directory) const;

 private:
  bool all_ = false;  // whatever is below the one root
  std::string shown_;
  std::vector<std::string> roots_;
  std::vector<std::string> lists_;
  std::vector<PathPattern> patterns_;
  std::unordered_set<std::string> exact_;         // paths without a wildcard
  std::unordered_set<std::string> exact_within_;  // the directories that they are in
};

// The paths in a list: a line each, below the list's own directory unless they begin with a slash.
// Empty lines and those that begin with # are passed over. kNotFound, kIo: it cannot be read.
[[nodiscard]] Result<std::vector<std::string>> read_list(const std::string& path);

}  // namespace ringfeed
