#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "supervisor/control/place.h"
#include "supervisor/doctor/feeds.h"
#include "supervisor/doctor/places.h"
#include "supervisor/os/text.h"

namespace ringfeed::doctor {
namespace {

constexpr std::size_t kPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::size_t kNameBytesMax = 64;  // of a feed
// A record of a feed with a hundred stages, and its successor beside it.
constexpr std::uint64_t kRecordBytes = 256 << 10;

constexpr const char* kNoFeed = "no feed can start there";

Remedy other_directory(const SocketPlace& sockets) {
  const std::string other = shell_word(short_directory());
  const std::string make = fmt::format("mkdir -p -m 700 {}", other);
  const std::string trainers =
      fmt::format("trainers need RINGFEED_SOCKET_DIR={} in their environment", other);
  if (sockets.named == SocketPlace::Named::kEnvironment) {
    return {fmt::format("{} && export RINGFEED_SOCKET_DIR={}", make, other),
            "trainers need it in their environment as well"};
  }
  const bool is_option = sockets.named == SocketPlace::Named::kOption;
  const std::string instead =
      fmt::format("give --socket-dir {}{}; {}", other,
                  is_option ? " in place of this one"
                            : ", which comes before control.directory, or change that",
                  trainers);
  if (sockets.file.empty() || sockets.file == "-") return {make, "then " + instead};
  return {
      fmt::format("{} && ringfeed run {} --socket-dir {}", make, shell_word(sockets.file), other),
      (is_option ? "in place of the directory that was given; "
                 : "--socket-dir comes before control.directory; ") +
          trainers};
}

// Bytes of the socket's path for a feed's name of `name` bytes.
std::size_t path_bytes(const std::string& directory, std::size_t name) {
  return control::socket_path(directory, std::string(name, 'x')).size();
}

void look_at_length(const SocketPlace& sockets, const std::string& feed, Findings& findings) {
  const std::string& directory = sockets.directory;
  const std::size_t least = path_bytes(directory, feed.empty() ? 1 : feed.size());
  if (least > kPathBytesMax) {
    findings.push_back(
        wrong(fmt::format("the path of a socket in {} has {} bytes{}, and {} are possible",
                          directory, least, feed.empty() ? " at least" : "", kPathBytesMax),
              kNoFeed, other_directory(sockets)));
  } else if (feed.empty() && path_bytes(directory, kNameBytesMax) > kPathBytesMax) {
    findings.push_back(better(
        fmt::format("in {} the name of a feed may have {} bytes only", directory,
                    kNameBytesMax + kPathBytesMax - path_bytes(directory, kNameBytesMax)),
        "a feed with a longer name, of up to 64, cannot start there", other_directory(sockets)));
  }
}

void look_at_missing(const SocketPlace& sockets, Findings& findings) {
  const std::string& directory = sockets.directory;
  const Place above = existing_above(directory);
  if (above.error == 0 && above.is_directory && above.write_error == 0) {
    findings.push_back(
        fine(fmt::format("{} is not there yet: the first feed makes it", directory)));
    return;
  }
  const int error = above.error != 0      ? above.error
                    : !above.is_directory ? ENOTDIR
                                          : above.write_error;
  findings.push_back(wrong(
      fmt::format("{} is not there and cannot be made: {}: {}", directory, above.path,
                  std::strerror(error)),
      kNoFeed,
      error == EACCES ? Remedy{make_directory_as_root(directory), ""} : other_directory(sockets)));
}

// For a directory that is not this user's. One in which something is, or in which this user cannot
// look, is left as it is: somebody needs it so (/tmp, /run, a home).
Remedy let_have(const SocketPlace& sockets, const Place& place) {
  std::error_code failed;
  const bool is_empty = std::filesystem::is_empty(place.path, failed);
  if (failed || !is_empty || (place.mode & S_ISVTX) != 0) return other_directory(sockets);
  return {as_root(fmt::format("chown {} {}", ::geteuid(), shell_word(place.path))), ""};
}

void look_at_owner(const SocketPlace& sockets, const Place& place, Findings& findings) {
  if (place.owner == ::geteuid() || place.owner == 0) return;
  findings.push_back(wrong(
      fmt::format("{} belongs to user {} and not to user {}", place.path, place.owner, ::geteuid()),
      "no feed starts there: that user could put a socket of his in the place of ours",
      let_have(sockets, place)));
}

void look_at_mode(const SocketPlace& sockets, const Place& place, Findings& findings) {
  const std::string path = shell_word(place.path);
  if (place.write_error == EACCES) {
    findings.push_back(wrong(
        fmt::format("{} (mode {:04o}) cannot be written to by this user", place.path, place.mode),
        kNoFeed,
        place.owner == ::geteuid() ? Remedy{"chmod u+rwx " + path, ""} : let_have(sockets, place)));
  } else if (place.write_error != 0) {
    findings.push_back(wrong(
        fmt::format("{} cannot be written to: {}", place.path, std::strerror(place.write_error)),
        "no feed can start there; one that runs goes on, and is not found by "
        "new trainers once its socket is gone",
        other_directory(sockets)));
  }
  constexpr mode_t kOthersWrite = 0022;
  if ((place.mode & kOthersWrite) == 0) return;
  const bool is_own = place.owner == ::geteuid() && (place.mode & S_ISVTX) == 0;
  findings.push_back(wrong(
      fmt::format("others may write to {} (mode {:04o})", place.path, place.mode),
      "another user can take the name of a feed before it starts, or, without the sticky bit, "
      "remove the socket and the record of one that runs",
      is_own ? Remedy{fmt::format("chmod go-w {}", path), ""} : other_directory(sockets)));
}

void look_at_room(const Place& place, Findings& findings) {
  if (place.free_bytes >= kRecordBytes && place.free_files != 0) return;
  findings.push_back(
      wrong(place.free_files == 0
                ? fmt::format("{} has no room for another file", place.path)
                : fmt::format("{} has {} left", place.path, shown_bytes(place.free_bytes)),
            "no feed can start there; one that runs goes on, but the record for its next "
            "supervisor stays an old one",
            make_room(place, 16 * kRecordBytes)));
}

}  // namespace

Findings look_at_socket_directory(const SocketPlace& sockets, const std::string& feed) {
  const std::string& directory = sockets.directory;
  Findings findings;
  look_at_length(sockets, feed, findings);
  const Place place = look_at_place(directory);
  if (place.error == ENOENT) {
    if (findings.empty()) look_at_missing(sockets, findings);
    return findings;
  }
  if (place.error != 0 || !place.is_directory) {
    const std::string path = shell_word(directory);
    findings.push_back(wrong(
        fmt::format("{} cannot be used for sockets: {}", directory,
                    place.error != 0 ? std::strerror(place.error) : "not a directory"),
        kNoFeed,
        place.error != 0 ? other_directory(sockets)
                         : Remedy{fmt::format("mv {0} {0}.old", path), "keeps what is there"}));
    return findings;
  }
  look_at_owner(sockets, place, findings);
  look_at_mode(sockets, place, findings);
  look_at_room(place, findings);
  if (findings.empty()) findings.push_back(fine(fmt::format("{} is ready for feeds", directory)));
  return findings;
}

}  // namespace ringfeed::doctor
