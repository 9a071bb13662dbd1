// Opens files that may be copies in a cache of remote objects: they may be gone, and come back when
// they are wished for.
//
// A cache is a directory with a file `ringfeed-cache` in it; copies lie below `objects`. The
// processes that fetch (pyclient/ringfeed/remote) share three directories beside it with readers:
//   wanted/   symbolic links: 0-HASH for a file that somebody waits for, 1-HASH for one that will
//             be read soon, to its name below objects/; HASH is FNV-1a of the name, 16 digits
//   failed/   HASH: a line with the name, then why it does not come
//   objects/  a copy is there whole or not at all, and its access time says when it was opened last
// A wished-for copy that has come stays until open() has opened it; a copy that is open stays too.
// A wish that nobody renews for two minutes is nobody's.
//
// Nothing here outlives the process but wishes: a successor makes its own. For other files it is
// shm::open_regular().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ringfeed/shm/file.h"

namespace ringfeed {

class CachedFiles {
 public:
  enum class Wish {
    kDrop,  // whoever opens it reads it: it need not be kept for him any more
    kKeep,  // it is only looked at
  };

  // As shm::open_regular(). kBusy: it is a copy that is not there now, and has been wished for;
  // call again (StepStatus::kIdle). kNotFound of a copy: the text says why it cannot be had.
  [[nodiscard]] Result<shm::Fd> open(const std::string& path, Wish wish = Wish::kDrop);
  // It will be opened soon: a copy is fetched, or kept, as far as there is room.
  void ask_ahead(const std::string& path);
  // Is it the path of a copy? Then another time of the file means another version of the object.
  [[nodiscard]] bool is_copy(const std::string& path) { return copy_of(path).has_value(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Copy {
    std::string root;  // of the cache
    std::string name;  // below objects/
  };
  [[nodiscard]] std::optional<Copy> copy_of(const std::string& path);
  [[nodiscard]] Error miss(const std::string& path, const Copy& copy);

  std::unordered_map<std::string, bool> roots_;                // what may be a cache: is it one?
  std::unordered_map<std::string, Clock::time_point> wished_;  // paths: when last
};

// The hash that wishes are named by.
[[nodiscard]] std::string wish_hash(std::string_view name);

}  // namespace ringfeed
