#include "supervisor/control/place.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "ringfeed/shm/file.h"
#include "ringfeed/shm/result.h"

namespace ringfeed::control {
namespace {

constexpr std::string_view kSocketEnding = ".sock";
constexpr std::string_view kLockEnding = ".lock";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

Environment read_environment() {
  std::string state_home = variable("XDG_STATE_HOME");
  if (state_home.empty()) state_home = variable("HOME") + "/.local/state";
  return {variable("RINGFEED_SOCKET_DIR"), variable("XDG_RUNTIME_DIR"), std::move(state_home)};
}

std::string socket_directory(const std::string& configured, const Environment& env) {
  if (!configured.empty()) return configured;
  if (!env.socket_dir.empty()) return env.socket_dir;
  if (!env.runtime_dir.empty()) return env.runtime_dir + "/ringfeed";
  return std::string(kSystemDirectory);
}

std::vector<std::string> search_directories(const std::string& given, const Environment& env) {
  if (!given.empty()) return {given};
  if (!env.socket_dir.empty()) return {env.socket_dir};
  if (!env.runtime_dir.empty()) {
    return {env.runtime_dir + "/ringfeed", std::string(kSystemDirectory)};
  }
  return {std::string(kSystemDirectory)};
}

std::string dead_letter_directory(const std::string& configured, const std::string& feed,
                                  const Environment& env) {
  if (!configured.empty()) return std::filesystem::absolute(configured).string();
  return fmt::format("{}/ringfeed/{}/dead-letters", env.state_home, feed);
}

std::string socket_path(const std::string& directory, const std::string& feed) {
  return fmt::format("{}/{}{}", directory, feed, kSocketEnding);
}
std::string lock_path(const std::string& directory, const std::string& feed) {
  return fmt::format("{}/{}{}", directory, feed, kLockEnding);
}

void prepare_directory(const std::string& directory, const std::string& feed) {
  constexpr std::string_view kAdvice =
      "set control.directory, RINGFEED_SOCKET_DIR or XDG_RUNTIME_DIR to a directory of yours";
  const std::string path = socket_path(directory, feed);
  constexpr std::size_t kPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kPathBytesMax) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("the path of the control socket, {}, has {} bytes, but at most {} are "
                    "possible: set control.directory or RINGFEED_SOCKET_DIR to a shorter one",
                    path, path.size(), kPathBytesMax));
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(directory).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorCode::kIo, fmt::format("directory {} for the control socket cannot be "
                                            "created: {}: {}",
                                            directory, std::strerror(errno), kAdvice));
  }
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
      ::access(directory.c_str(), W_OK | X_OK) != 0) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{} cannot be used for the control socket: {}: {}", directory,
                    S_ISDIR(info.st_mode) ? std::strerror(errno) : "not a directory", kAdvice));
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("directory {} for the control socket belongs to user {} and not to "
                            "user {}: {}",
                            directory, info.st_uid, ::geteuid(), kAdvice));
  }
}

std::vector<std::string> feeds_in(const std::string& directory) {
  std::set<std::string> names;
  const Result<std::vector<std::string>> found = shm::names_in(directory);
  if (!found) return {};
  for (const std::string& name : *found) {
    for (const std::string_view ending : {kSocketEnding, kLockEnding}) {
      if (name.size() > ending.size() && name.ends_with(ending)) {
        names.insert(name.substr(0, name.size() - ending.size()));
      }
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace ringfeed::control
