// What a feed finds its files with, and where it puts some.
#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ringfeed/shm/segment.h"
#include "supervisor/control/place.h"
#include "supervisor/doctor/checks.h"
#include "supervisor/doctor/places.h"
#include "supervisor/doctor/texts.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr const char* kScans =
    "an endless feed finds new files by reading all of its directories again and again";
constexpr std::uint64_t kLittleBytes = 1 << 20;

// The one of the two that stands lower: a user namespace has a limit of its own.
Remedy raise_inotify(const char* what, std::uint64_t wanted) {
  const std::string ours = fmt::format("user.max_inotify_{}", what);
  const std::string users = fmt::format("fs.inotify.max_user_{}", what);
  const auto value = [](std::string name) {
    for (char& c : name) c = c == '.' ? '/' : c;
    return limit_in(text_of("/proc/sys/" + name).value_or(""));
  };
  const std::uint64_t low = value(users).value_or(kNoLimit);
  const std::string name = value(ours).value_or(kNoLimit) < low ? ours : users;
  const std::uint64_t now = value(name).value_or(0);
  return {as_root(fmt::format("sysctl {}={}", name, std::max(wanted, 2 * now))),
          "a line in /etc/sysctl.d keeps it over the next boot"};
}

Finding too_little(const std::string& name, const Place& place, const char* cost) {
  const std::string what =
      place.free_files == 0
          ? fmt::format("{} {} has no room for another file", name, place.path)
          : fmt::format("{} {} has {} left", name, place.path, shown_bytes(place.free_bytes));
  return better(what, cost, make_room(place, 16 * kLittleBytes));
}

}  // namespace

Findings look_at_inotify() {
  const shm::Fd fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!fd) {
    const int error = errno;
    const std::string what = fmt::format("inotify is not to be had: {}", std::strerror(error));
    return {better(what, kScans,
                   error == EMFILE ? raise_inotify("instances", 1024)
                                   : Remedy{.advice = "a kernel with CONFIG_INOTIFY_USER has it"})};
  }
  if (::inotify_add_watch(fd.get(), "/", IN_CREATE | IN_ONLYDIR) < 0) {
    const int error = errno;
    return {better(fmt::format("no directory can be watched: {}", std::strerror(error)), kScans,
                   error == ENOSPC ? raise_inotify("watches", 524'288) : Remedy{})};
  }
  return {fine(fmt::format("new files are noticed (inotify; {} directories can be watched)",
                           line_of("/proc/sys/fs/inotify/max_user_watches").value_or("some")))};
}

Findings look_at_temporary_directory() {
  constexpr const char* kCost =
      "a DataLoader makes the directory of its own feed there; if it finds no other (/var/tmp, "
      "/usr/tmp), it cannot start";
  const char* const named = std::getenv("TMPDIR");
  const Place place = look_at_place(named != nullptr && *named != '\0' ? named : "/tmp");
  const Remedy other{"export TMPDIR=/var/tmp", ""};
  if (place.error != 0 || !place.is_directory) {
    return {better(fmt::format("the temporary directory {} cannot be used: {}", place.path,
                               place.error != 0 ? std::strerror(place.error) : "not a directory"),
                   kCost, other)};
  }
  if (place.write_error != 0) {
    return {better(fmt::format("the temporary directory {} cannot be written to: {}", place.path,
                               std::strerror(place.write_error)),
                   kCost, other)};
  }
  if (place.free_bytes < kLittleBytes || place.free_files == 0) {
    return {too_little("the temporary directory", place, kCost)};
  }
  return {fine(
      fmt::format("the temporary directory {} has {} left", place.path,
                  place.free_bytes == kNoLimit ? "any amount" : shown_bytes(place.free_bytes)))};
}

Findings look_at_dead_letters() {
  constexpr const char* kCost =
      "a record that kills its stage each time is not kept when it is set aside";
  const std::string directory = control::read_environment().state_home + "/ringfeed";
  const Place place = existing_above(directory);
  if (place.error != 0) {
    return {better(fmt::format("{} cannot be used: {}", directory, std::strerror(place.error)),
                   kCost, {make_directory_as_root(directory), ""})};
  }
  if (!place.is_directory || place.write_error != 0) {
    return {better(
        fmt::format("{} cannot be written to: {}", place.path,
                    place.is_directory ? std::strerror(place.write_error) : "not a directory"),
        kCost,
        place.write_error == EACCES
            ? Remedy{make_directory_as_root(directory), ""}
            : Remedy{.advice = "set restart.dead_letters to a directory of yours"})};
  }
  if (place.free_bytes < kLittleBytes || place.free_files == 0) {
    return {too_little("the directory of records that are set aside,", place, kCost)};
  }
  return {fine(fmt::format("records that are set aside go to {}", directory))};
}

}  // namespace ringfeed::doctor
