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

// The room for segments in this storage: that of the file system with the directory; if segments
// are memory, also on a tmpfs, that of the machine and this process's control groups.
[[nodiscard]] Room room_for(const Storage& storage);

// The room in these control groups, version 1 and 2, and all above them. `cgroups` is the text of
// /proc/self/cgroup; their files are under `root`.
[[nodiscard]] Room room_of_cgroups(std::string_view cgroups, const std::string& root);

}  // namespace ringfeed::shm
