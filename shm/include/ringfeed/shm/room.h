// How much memory may still be taken, and what sets that bound.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "ringfeed/shm/segment.h"

namespace ringfeed::shm {

struct Room {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::string
      place;  // "this machine", "control group /user.slice", "tmpfs /dev/shm", "directory /data"
};

// For segments that lie there: of the file system that holds the directory; of the machine and this
// process's control groups where segments are memory, on a tmpfs too.
[[nodiscard]] Room room_for(const Storage& storage);

// Of control groups, version 1 and 2, and of all above them: `cgroups` is the text of
// /proc/self/cgroup, `root` where their files are.
[[nodiscard]] Room room_of_cgroups(std::string_view cgroups, const std::string& root);

}  // namespace ringfeed::shm
