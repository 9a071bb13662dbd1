// Patterns of paths, as a shell has them: `*` stands for any characters of a name, `?` for one,
// `[a-f]` for one of these; `**` for any number of directories, none included; `{jpg,png}` and
// `{000..146}` for each of these. A name that begins with a dot needs a pattern that does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/shm/result.h"

namespace ringfeed {

class PathPattern {
 public:
  explicit PathPattern(std::string_view text);

  // The deepest directory that all matching paths are below: what stands before the first
  // wildcard, without the last name. "." of a path without a directory.
  [[nodiscard]] const std::string& root() const noexcept { return root_; }
  [[nodiscard]] bool matches(std::string_view path) const;
  // Can there be a matching path below this directory?
  [[nodiscard]] bool reaches(std::string_view directory) const;

 private:
  std::string root_;
  std::vector<std::string> names_;
};

// Most that the braces of one pattern may stand for.
inline constexpr std::size_t kBracesMax = 100'000;

// A pattern without braces for each of what they stand for, in their order. kConfiguration: a brace
// without its other half, a range that is none or is too long.
[[nodiscard]] Result<std::vector<std::string>> expand_braces(const std::string& text);

}  // namespace ringfeed
