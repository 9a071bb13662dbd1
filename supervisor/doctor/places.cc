#include "supervisor/doctor/places.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {

Place look_at_place(const std::string& path) {
  Place place;
  place.path = path;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    place.error = errno;
    return place;
  }
  place.is_directory = S_ISDIR(info.st_mode);
  place.owner = info.st_uid;
  place.mode = info.st_mode & 07777;
  if (::access(path.c_str(), place.is_directory ? W_OK | X_OK : W_OK) != 0) {
    place.write_error = errno;
  }
  struct statvfs room {};
  if (::statvfs(path.c_str(), &room) == 0) {
    place.bytes = std::uint64_t{room.f_blocks} * room.f_frsize;
    // A tmpfs without a size has no blocks to count, nor inodes.
    place.free_bytes = room.f_blocks == 0 ? kNoLimit : std::uint64_t{room.f_bavail} * room.f_frsize;
    place.free_files = room.f_files == 0 ? kNoLimit : std::uint64_t{room.f_favail};
  }
  struct statfs system {};
  place.is_tmpfs = ::statfs(path.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  std::error_code failed;
  const std::string real = std::filesystem::canonical(path, failed).string();
  const std::vector<Mount> mounts = mounts_in(text_of("/proc/self/mountinfo").value_or(""));
  const Mount* const mount = failed ? nullptr : mount_of(mounts, real);
  if (mount != nullptr) place.mount = mount->point;
  return place;
}

Place existing_above(const std::string& path) {
  std::filesystem::path at = std::filesystem::absolute(path);
  for (;;) {
    Place place = look_at_place(at.string());
    if (place.error != ENOENT || at == at.parent_path()) return place;
    at = at.parent_path();
  }
}

Remedy make_room(const Place& place, std::uint64_t bytes) {
  const std::uint64_t lacking = bytes > place.free_bytes ? bytes - place.free_bytes : 0;
  if (place.is_tmpfs && !place.mount.empty() && place.bytes != 0) {
    const std::string inodes = place.free_files == 0 ? ",nr_inodes=0" : "";
    // In KiB, rounded up, and a little for what the file system itself takes.
    const std::uint64_t kib = (place.bytes + lacking + lacking / 64) / 1024 + 64;
    return {as_root(fmt::format("mount -o remount,size={}k{} {}", kib, inodes,
                                shell_word(place.mount))),
            "gives the tmpfs more; it takes memory only as it fills"};
  }
  return {.advice = fmt::format("remove {} there, or name another directory: du -xh {} | sort -h | "
                                "tail shows what takes most",
                                place.free_files == 0 ? "files" : shown_bytes(lacking),
                                shell_word(place.mount.empty() ? place.path : place.mount))};
}

std::string make_directory_as_root(const std::string& path) {
  return as_root(fmt::format("install -d -m 700 -o {} {}", ::geteuid(), shell_word(path)));
}

std::string short_directory() {
  return ::geteuid() == 0 ? "/run/ringfeed" : fmt::format("/tmp/ringfeed-{}", ::geteuid());
}

}  // namespace ringfeed::doctor
