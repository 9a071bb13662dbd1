#include "workers/files/wanted_paths.h"

#include <algorithm>
#include <fstream>

#include "ringfeed/shm/file.h"
#include "workers/files/remote_kind.h"

namespace ringfeed {
namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string below(const std::string& directory, const std::string& path) {
  if (directory.empty() || path.starts_with('/')) return path;
  return directory + "/" + path;
}

bool is_within(const std::string& path, const std::string& directory) {
  return path == directory || directory == "/" || path.starts_with(directory + "/");
}

}  // namespace

WantedPaths::WantedPaths(const FilePathProviderConfig& config) {
  const std::string directory = without_slashes(config.directory());
  for (const std::string& list : config.list()) lists_.push_back(list);
  std::vector<std::string> roots;
  for (const std::string& text : config.pattern()) {
    const Result<std::vector<std::string>> texts = expand_braces(below(directory, text));
    if (!texts) throw Error(texts.error());
    for (const std::string& plain : *texts) {
      PathPattern pattern(plain);
      if (roots.empty() || roots.back() != pattern.root()) roots.push_back(pattern.root());
      if (plain.find_first_of("*?[\\") != std::string::npos) {
        patterns_.push_back(std::move(pattern));
        continue;
      }
      const std::size_t slash = plain.rfind('/');
      exact_.insert(slash == std::string::npos ? "./" + plain : plain);
      std::string within = pattern.root();
      while (exact_within_.insert(within).second) {
        const std::size_t up = within.rfind('/');
        if (up == std::string::npos || within == "/") break;
        within = up == 0 ? "/" : within.substr(0, up);
      }
    }
  }
  all_ = !directory.empty() && config.pattern().empty();
  if (all_) roots = {directory};
  shown_ = !directory.empty()          ? directory
           : !config.pattern().empty() ? config.pattern(0)
           : !lists_.empty()           ? lists_.front()
                                       : "";
  // In the order of the configuration, without those that another one has in it.
  for (const std::string& root : roots) {
    const bool known = std::ranges::any_of(
        roots_, [&](const std::string& other) { return is_within(root, other); });
    if (known) continue;
    std::erase_if(roots_, [&](const std::string& other) { return is_within(other, root); });
    roots_.push_back(root);
  }
}

bool WantedPaths::wants(const std::string& path) const {
  return all_ || exact_.contains(path) ||
         std::ranges::any_of(patterns_,
                             [&](const PathPattern& pattern) { return pattern.matches(path); });
}

bool WantedPaths::reaches(const std::string& directory) const {
  return all_ || exact_within_.contains(directory) ||
         std::ranges::any_of(
             patterns_, [&](const PathPattern& pattern) { return pattern.reaches(directory); });
}

Result<std::vector<std::string>> read_list(const std::string& path) {
  if (const Result<shm::Fd> fd = shm::open_regular(path); !fd) return fd.error();
  std::ifstream file(path);
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash);
  std::vector<std::string> paths;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    paths.push_back(is_url(line) ? line : below(directory, line));
  }
  if (file.bad()) return Error{ErrorCode::kIo, path + ": it cannot be read to its end"};
  return paths;
}

}  // namespace ringfeed
