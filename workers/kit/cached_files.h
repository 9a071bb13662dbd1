// Opens files that may be copies in a cache of remote objects: they may be gone, and come back when
// they are wished for.
//
// A cache is a directory with a file `ringfeed-cache` in it; copies lie below `objects`. The
// processes that fetch (pyclient/ringfeed/remote) share three directories beside it with readers:
//   wanted/   symbolic links: 0-HASH for a file that somebody waits for, 1-HASH for one that will
//             be read soon, to its name below objects/; HASH is FNV-1a of the name, 16 digits
//   failed/   HASH: a line with the name, then why it does not come
//   objects/  a copy is there whole or not at all, and its access time says when it was opened last.
//             Its time says whether it is as it was fetched (copy_time_s). What somebody has cut,
//             written to or put in its place since is wished for as if it were not there.
// A wished-for copy that has come stays until open() has opened it; a copy that is open stays too.
// A wish that nobody renews for two minutes is nobody's.
//
// Nothing here outlives the process but wishes: a successor makes its own. For other files it is
// shm::open_regular().
#pragma once

#include <sys/stat.h>

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
  // Is it a copy that is not as it was fetched any more, and that open() would wish for?
  [[nodiscard]] bool is_damaged(const std::string& path, const struct stat& file);

 private:
  using Clock = std::chrono::steady_clock;
  struct Copy {
    std::string root;  // of the cache
    std::string name;  // below objects/
    bool timed;        // Root::kTimed
  };
  enum class Root {
    kNone,
    kCache,
    kTimed,  // the seconds of its copies' times are copy_time_s()
  };
  [[nodiscard]] Root root_at(const std::string& directory);
  [[nodiscard]] std::optional<Copy> copy_of(const std::string& path);
  [[nodiscard]] Error miss(const std::string& path, const Copy& copy);

  std::unordered_map<std::string, Root> roots_;                // what may be a cache: is it one?
  std::unordered_map<std::string, Clock::time_point> wished_;  // paths: when last
};

// The hash that wishes are named by.
[[nodiscard]] std::string wish_hash(std::string_view name);

// The seconds that the time of a copy has as it was fetched, 2001 to 2018; its nanoseconds are a
// digest of the object's version. pyclient/ringfeed/remote/names.py has the same.
[[nodiscard]] std::int64_t copy_time_s(std::uint64_t bytes, std::uint32_t nanoseconds);

}  // namespace ringfeed
