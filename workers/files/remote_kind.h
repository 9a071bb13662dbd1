// What a file_path_provider is that was given URLs: the stage remote_files, which is in a domain
// that builds on this one (workers/python).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ringfeed/worker/stage.h"

namespace ringfeed {

// What a provider with URLs is to read.
struct UrlSettings {
  std::vector<std::string> urls;
  std::vector<std::string> lists;
  std::string cache;
  std::uint64_t cache_bytes = 0;
  std::string storage_options;
  std::optional<double> give_up_after_s;
};
// None: it is another stage, or has no URLs.
[[nodiscard]] std::optional<UrlSettings> url_settings(const StageConfig& stage);
// What is wrong with how it names files of this host and URLs together.
[[nodiscard]] std::vector<Problem> url_problems(const StageConfig& stage);

// "s3://bucket/games", and no path.
[[nodiscard]] bool is_url(std::string_view text) noexcept;

struct RemoteKind {
  std::function<std::vector<Problem>(const StageView&)> problems;
  std::function<std::vector<NodeSpec>(OutputSpec output)> nodes;
};
// Said once, when stages are registered.
void set_remote_kind(RemoteKind kind);
// Empty functions: this build has none.
[[nodiscard]] const RemoteKind& remote_kind() noexcept;

}  // namespace ringfeed
