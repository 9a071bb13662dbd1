#include "workers/io/arrow_readers.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <mutex>

#include "workers/io/late_library.h"

namespace ringfeed::formats {
namespace {

constexpr const char* kLibrary = "libringfeed_arrow.so";

const ArrowReaders* g_given = nullptr;

// Directories of the program, or of the library, that this code is in.
std::vector<std::string> own_directories() {
  std::vector<std::string> directories;
  const auto add = [&](std::string_view path) {
    if (path.starts_with('/')) directories.emplace_back(path.substr(0, path.rfind('/') + 1));
  };
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&own_directories), &own) != 0) add(own.dli_fname);
  std::array<char, PATH_MAX> self;
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size());
  if (length > 0) add(std::string_view(self.data(), static_cast<std::size_t>(length)));
  return directories;
}

Error not_loaded(const std::string& why) {
  return {ErrorCode::kNotFound,
          fmt::format("what reads Parquet, Arrow and CSV files cannot be loaded: {}", why)};
}

Result<const ArrowReaders*> load() {
  std::string path;
  for (const std::string& directory : own_directories()) {
    // Installed, and in a build.
    for (const std::string_view beside :
         {"../lib/ringfeed/", "../lib/", "../ringfeed/", "ringfeed/", ""}) {
      std::string candidate = fmt::format("{}{}{}", directory, beside, kLibrary);
      if (path.empty() && ::access(candidate.c_str(), F_OK) == 0) path = std::move(candidate);
    }
  }
  if (path.empty()) {
    return not_loaded(fmt::format(
        "{} is not there: reinstall ringfeed, or, if you built it, `pip install pyarrow` and build "
        "it again",
        kLibrary));
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string why = ::dlerror();
    if (is_starved_load(why)) return Error{ErrorCode::kNoMemory, why};
    return not_loaded(fmt::format("{}: reinstall ringfeed", why));
  }
  using Entry = const ArrowReaders* (*)(const char*);
  auto* const entry = reinterpret_cast<Entry>(::dlsym(library, "ringfeed_arrow_readers"));
  const ArrowReaders* const readers = entry == nullptr ? nullptr : entry(RINGFEED_VERSION);
  if (readers == nullptr) {
    return not_loaded(
        fmt::format("{} is not of version {}: reinstall ringfeed", path, RINGFEED_VERSION));
  }
  return readers;
}

}  // namespace

Result<const ArrowReaders*> arrow_readers() {
  if (g_given != nullptr) return g_given;
  static std::mutex mutex;
  static const ArrowReaders* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  Result<const ArrowReaders*> readers = load();
  if (readers) loaded = *readers;
  return readers;
}

void set_arrow_readers(const ArrowReaders* readers) noexcept { g_given = readers; }

}  // namespace ringfeed::formats
