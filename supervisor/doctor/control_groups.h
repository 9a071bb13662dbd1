// The limits of this process's control groups, versions 1 and 2, its own and all above it.
//
// As in ringfeed/shm/room.h, which decides what a feed may take; here the file is named in which a
// limit stands, so that it can be mended. `groups` is the text of /proc/self/cgroup, `root` where
// the files are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ringfeed::doctor {

inline constexpr const char* kGroupsFile = "/proc/self/cgroup";
inline constexpr const char* kGroupsRoot = "/sys/fs/cgroup";

struct GroupLimit {
  std::string file;         // "/sys/fs/cgroup/user.slice/memory.max"
  std::uint64_t value = 0;  // that is written there
  std::uint64_t used = 0;
  [[nodiscard]] std::uint64_t left() const { return value > used ? value - used : 0; }
};
// The one that leaves least. nullopt: there is no limit.
[[nodiscard]] std::optional<GroupLimit> memory_limit(std::string_view groups,
                                                     const std::string& root);
// Above this the group is slowed down (memory.high); version 2 alone has it.
[[nodiscard]] std::optional<GroupLimit> memory_brake(std::string_view groups,
                                                     const std::string& root);
[[nodiscard]] std::optional<GroupLimit> process_limit(std::string_view groups,
                                                      const std::string& root);

struct ProcessorLimit {
  std::string file;
  double processors = 0;
  std::string none;  // what is written there for no limit
};
// The smallest.
[[nodiscard]] std::optional<ProcessorLimit> processor_limit(std::string_view groups,
                                                            const std::string& root);

}  // namespace ringfeed::doctor
