// Paths in a configuration: the fields that the schema marks with its option `path_use`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ringfeed {
class DataLoaderConfig;
}

namespace ringfeed::config {

// Relative paths count from `directory`: the one in which the program was started, also for paths
// in a file that lies elsewhere, because the same path may come from --set. Made absolute at once,
// they mean the same to a supervisor that takes the feed over from another directory.
void make_paths_absolute(DataLoaderConfig& config, const std::filesystem::path& directory);

// Is it the address of an object store ("s3://bucket/games"), and no path?
[[nodiscard]] bool is_address(std::string_view path) noexcept;
// What is to be done about it where only a path can be.
[[nodiscard]] std::string address_text(std::string_view path);

// What a person should know of a directory from which an endless (or finite) run is to read: "" if
// it holds a file, or cannot be looked into.
[[nodiscard]] std::string doubt_about_data(const std::filesystem::path& directory, bool finite);

// The same of a file that is to be read.
[[nodiscard]] std::string doubt_about_file(const std::filesystem::path& file, bool finite);
// And of one that the data are not to be understood without: a dictionary, say.
[[nodiscard]] std::string doubt_about_setting(const std::filesystem::path& file);

}  // namespace ringfeed::config
