#include "workers/files/find_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "proto/config.pb.h"
#include "ringfeed/shm/file.h"
#include "ringfeed/shm/quote.h"
#include "workers/files/remote_kind.h"
#include "workers/files/wanted_paths.h"

namespace ringfeed {
namespace {

using Clock = std::chrono::steady_clock;

class Search {
 public:
  Search(const FilePathProviderConfig& config, std::size_t most, Clock::time_point until)
      : config_(config), wanted_(config), most_(most), until_(until) {}

  FilesFound found() {
    found_.directory = config_.directory();
    for (const std::string& list : wanted_.lists()) search_list(list);
    for (const std::string& root : wanted_.roots()) {
      struct stat info {};
      // One that is not there is said by the check of the configuration, which knows its place.
      if (::stat(root.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) search_directory(root);
    }
    if (found_.paths.empty() && found_.whole) found_.nothing = why_nothing();
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool is_over() {
    if (found_.paths.size() >= most_ || names_ >= kNamesPerFile * most_ || Clock::now() > until_) {
      found_.whole = false;
    }
    return !found_.whole;
  }

  void add(const std::string& path) {
    if (known_.insert(path).second) found_.paths.push_back(path);
  }

  void search_list(const std::string& path) {
    const Result<std::vector<std::string>> paths = read_list(path);
    if (!paths) return;  // likewise
    for (const std::string& file : *paths) {
      if (is_over()) return;
      struct stat info {};
      const int error = ::stat(file.c_str(), &info) != 0 ? errno : 0;
      if (error == 0 && S_ISREG(info.st_mode)) {
        add(file);
      } else {
        found_.unreadable.emplace_back(file, is_url(file) ? "a list of this host may not name URLs"
                                             : error != 0 ? std::strerror(error)
                                                          : "it is no file");
      }
    }
  }

  void search_directory(const std::string& path) {
    struct stat info {};
    if (is_over() || ::stat(path.c_str(), &info) != 0) return;
    if (!visited_.emplace(info.st_dev, info.st_ino).second) return;
    Result<std::vector<std::string>> names = shm::names_in(path);
    if (!names) {
      found_.unreadable.emplace_back(path, names.error().message());
      return;
    }
    std::ranges::sort(*names);
    std::vector<std::string> directories;
    for (const std::string& name : *names) {
      if (name.starts_with('.')) continue;
      if (is_over()) return;
      ++names_;
      std::string child = path + "/" + name;
      if (::stat(child.c_str(), &info) != 0) {
        const int error = errno;
        if (error == ENOENT && ::lstat(child.c_str(), &info) != 0) continue;
        found_.unreadable.emplace_back(
            child, error == ENOENT ? "it is a link to nothing" : std::strerror(error));
      } else if (S_ISDIR(info.st_mode)) {
        if (wanted_.reaches(child)) directories.push_back(std::move(child));
      } else if (S_ISREG(info.st_mode)) {
        ++files_;
        if (wanted_.wants(child)) add(child);
      }
    }
    for (const std::string& child : directories) search_directory(child);
  }

  [[nodiscard]] std::string why_nothing() const {
    if (config_.pattern().empty() && config_.list().empty()) return {};
    struct stat info {};
    const std::string& directory = config_.directory();
    if (!directory.empty() && (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))) {
      return {};
    }
    const std::string shown = escaped(wanted_.shown());
    if (config_.pattern().empty()) return fmt::format("{} names no file that is there", shown);
    const std::string pattern = in_quotes(config_.pattern(0));
    const std::string patterns =
        config_.pattern_size() == 1
            ? fmt::format("pattern {}", pattern)
            : fmt::format("any of {} patterns ({} and others)", config_.pattern_size(), pattern);
    return fmt::format("none of the files there ({}) matches {}", files_, patterns);
  }

  // Names that are looked at for each file that is wanted.
  static constexpr std::size_t kNamesPerFile = 10;

  const FilePathProviderConfig& config_;
  WantedPaths wanted_;
  std::size_t most_;
  Clock::time_point until_;
  FilesFound found_;
  std::set<std::string> known_;
  std::set<std::pair<dev_t, ino_t>> visited_;
  std::size_t names_ = 0;
  std::size_t files_ = 0;
};

}  // namespace

FileFinder file_finder(const FilePathProviderConfig& config) {
  return {[config](std::size_t most, Clock::time_point until) {
    try {
      return Search(config, most, until).found();
    } catch (const Error&) {  // of a pattern, and the provider's own problem
      return FilesFound{};
    }
  }};
}

}  // namespace ringfeed
