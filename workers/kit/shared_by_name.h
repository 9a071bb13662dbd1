// What the lanes of a stage share in a process: one of each name and type.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace ringfeed {

// The T of this name in this process. The first caller creates it from the arguments; it lives as
// long as somebody holds it. Any thread.
template <typename T, typename... Arguments>
[[nodiscard]] std::shared_ptr<T> shared_by_name(const std::string& name,
                                                const Arguments&... arguments) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<T>> all;
  const std::lock_guard lock(mutex);
  std::shared_ptr<T> shared = all[name].lock();
  if (shared == nullptr) all[name] = shared = std::make_shared<T>(arguments...);
  return shared;
}

}  // namespace ringfeed
