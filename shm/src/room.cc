#include "ringfeed/shm/room.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ringfeed::shm {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

std::uint64_t read_number(const std::string& path, std::uint64_t otherwise) {
  std::ifstream in(path);
  std::string text;
  if (!(in >> text) || text == "max") return otherwise;
  return std::strtoull(text.c_str(), nullptr, 10);
}

void take_smaller(Room& room, const Room& other) {
  if (other.bytes < room.bytes) room = other;
}

// From the process's own group up to the root. In a container the path may be that of the machine
// outside, and nothing is found there: the root is the own group then.
Room tightest(const std::string& base, std::string path, const std::string& limit_file,
              const std::string& used_file) {
  Room room;
  for (;;) {
    const std::string directory = base + (path == "/" ? "" : path) + "/";
    const std::uint64_t limit = read_number(directory + limit_file, kNone);
    if (limit != kNone) {
      const std::uint64_t used = read_number(directory + used_file, 0);
      take_smaller(room, {limit > used ? limit - used : 0, "control group " + path});
    }
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos || path == "/") return room;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
}

Room room_of_memory() {
  Room room{kNone, "this machine"};
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t value = 0;
  std::string unit;
  while (meminfo >> key >> value) {
    std::getline(meminfo, unit);
    if (key != "MemAvailable:") continue;
    room.bytes = value * 1024;
    break;
  }
  std::ifstream cgroups("/proc/self/cgroup");
  const std::string text(std::istreambuf_iterator<char>(cgroups), {});
  take_smaller(room, room_of_cgroups(text, "/sys/fs/cgroup"));
  return room;
}

}  // namespace

Room room_of_cgroups(std::string_view cgroups, const std::string& root) {
  Room room;
  std::istringstream lines{std::string(cgroups)};
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" of version 2, "4:cpu,memory:/path" of version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      take_smaller(room, tightest(root, path, "memory.max", "memory.current"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      take_smaller(
          room, tightest(root + "/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    }
  }
  return room;
}

Room room_for(const Storage& storage) {
  if (storage.directory.empty()) return room_of_memory();
  struct statfs info {};
  Room room{kNone, "directory " + storage.directory};
  if (::statfs(storage.directory.c_str(), &info) != 0) return room;
  // A tmpfs without a size has no blocks to count.
  if (info.f_type == TMPFS_MAGIC && info.f_blocks == 0) return room_of_memory();
  room.bytes = static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
  if (info.f_type == TMPFS_MAGIC) {
    room.place = "tmpfs " + storage.directory;
    take_smaller(room, room_of_memory());
  }
  return room;
}

}  // namespace ringfeed::shm
