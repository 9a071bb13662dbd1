// Directories as a feed would use them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "supervisor/doctor/finding.h"

namespace ringfeed::doctor {

struct Place {
  std::string path;
  int error = 0;  // errno: it cannot be looked at (ENOENT: there is none)
  bool is_directory = false;
  uid_t owner = 0;
  mode_t mode = 0;
  int write_error = 0;  // why nothing can be put there; 0: it can
  std::uint64_t free_bytes = 0;
  std::uint64_t free_files = 0;  // inodes; kNoLimit: they do not count there
  std::uint64_t bytes = 0;       // of the file system
  std::string mount;             // where that is mounted; "" if not known
  bool is_tmpfs = false;
};
[[nodiscard]] Place look_at_place(const std::string& path);
// The nearest directory above that exists; itself, if it does.
[[nodiscard]] Place existing_above(const std::string& path);

// How the file system of a place gets `bytes` more, if that can be done by a command.
[[nodiscard]] Remedy make_room(const Place& place, std::uint64_t bytes);

// A directory, as root makes it for this user.
[[nodiscard]] std::string make_directory_as_root(const std::string& path);
// A directory of this user's own with a short path, for sockets.
[[nodiscard]] std::string short_directory();

}  // namespace ringfeed::doctor
