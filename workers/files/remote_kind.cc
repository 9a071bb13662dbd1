#include "workers/files/remote_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "proto/config.pb.h"

namespace ringfeed {
namespace {

RemoteKind& kind_of_urls() {
  static RemoteKind kind;
  return kind;
}

// What is below a directory.
std::string below(std::string directory, std::string_view pattern) {
  if (!directory.ends_with('/')) directory += '/';
  return directory.append(pattern);
}

}  // namespace

void set_remote_kind(RemoteKind kind) { kind_of_urls() = std::move(kind); }
const RemoteKind& remote_kind() noexcept { return kind_of_urls(); }

bool is_url(std::string_view text) noexcept {
  const std::size_t mark = text.find("://");
  return mark != std::string_view::npos && mark > 1 &&
         text.substr(0, mark).find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-") ==
             std::string_view::npos;
}

std::optional<UrlSettings> url_settings(const StageConfig& stage) {
  if (!stage.has_file_path_provider()) return std::nullopt;
  const FilePathProviderConfig& own = stage.file_path_provider();
  if (!is_url(own.directory()) && std::ranges::none_of(own.pattern(), is_url) &&
      std::ranges::none_of(own.list(), is_url)) {
    return std::nullopt;
  }
  UrlSettings settings{{},
                       {own.list().begin(), own.list().end()},
                       own.cache(),
                       own.cache_bytes(),
                       own.storage_options(),
                       {}};
  if (own.has_give_up_after_s()) settings.give_up_after_s = own.give_up_after_s();
  for (const std::string& pattern : own.pattern()) {
    settings.urls.push_back(is_url(pattern) ? pattern : below(own.directory(), pattern));
  }
  if (!own.directory().empty() && own.pattern_size() == 0) {
    settings.urls.push_back(below(own.directory(), ""));
  }
  return settings;
}

std::vector<Problem> url_problems(const StageConfig& stage) {
  const FilePathProviderConfig& own = stage.file_path_provider();
  constexpr std::string_view kBoth =
      "and the stage is given URLs too; use one stage for files of this host and another for URLs";
  std::vector<Problem> problems;
  const bool below_url = is_url(own.directory());
  if (!own.directory().empty() && !below_url) {
    problems.push_back(
        {"directory", fmt::format("{} is of this host, {}", own.directory(), kBoth)});
  }
  for (int i = 0; i < own.pattern_size(); ++i) {
    if (is_url(own.pattern(i)) || (below_url && !own.pattern(i).starts_with('/'))) continue;
    problems.push_back({fmt::format("pattern[{}]", i),
                        fmt::format("{} is of this host, {}", own.pattern(i), kBoth)});
  }
  return problems;
}

}  // namespace ringfeed
