#include "workers/bitext/shared_token_files.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace ringfeed {
namespace {

struct OpenFiles {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<const formats::TokenFile>> by_prefix;
};

// Never destroyed: a file may be closed while the process ends.
OpenFiles& open_files() {
  static auto& files = *new OpenFiles;
  return files;
}

void close(const std::string& prefix, const formats::TokenFile* file) noexcept {
  {
    const std::lock_guard lock(open_files().mutex);
    auto& files = open_files().by_prefix;
    const auto at = files.find(prefix);
    // It may have been opened anew since its last owner went.
    if (at != files.end() && at->second.expired()) files.erase(at);
  }
  delete file;
}

}  // namespace

Result<std::shared_ptr<const formats::TokenFile>> open_shared_token_file(
    const std::string& prefix) {
  const std::lock_guard lock(open_files().mutex);
  auto& files = open_files().by_prefix;
  if (const auto at = files.find(prefix); at != files.end()) {
    if (std::shared_ptr<const formats::TokenFile> file = at->second.lock()) return file;
  }
  Result<formats::TokenFile> opened = formats::TokenFile::open(prefix);
  if (!opened) return opened.error();
  const std::shared_ptr<const formats::TokenFile> file(
      new formats::TokenFile(std::move(*opened)),
      [prefix](const formats::TokenFile* old) { close(prefix, old); });
  files[prefix] = file;
  return file;
}

}  // namespace ringfeed
