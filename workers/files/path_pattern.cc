#include "workers/files/path_pattern.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>

namespace ringfeed {
namespace {

using Names = std::span<const std::string>;

std::vector<std::string> names_of(std::string_view path) {
  std::vector<std::string> names;
  // The first name of an absolute path is empty; later ones are slashes too many.
  for (bool first = true;; first = false) {
    const std::size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    if (first || !name.empty()) names.emplace_back(name);
    if (slash == std::string_view::npos) return names;
    path.remove_prefix(slash + 1);
  }
}

bool is_name(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

// `below`: the path is a directory, and something below it is to match.
bool match(Names pattern, Names path, bool below) {
  for (;;) {
    if (path.empty()) {
      if (below) return !pattern.empty();
      return std::ranges::all_of(pattern, [](const std::string& name) { return name == "**"; });
    }
    if (pattern.empty()) return false;
    if (pattern.front() == "**") {
      if (match(pattern.subspan(1), path, below)) return true;
      if (path.front().starts_with('.')) return false;
      path = path.subspan(1);
      continue;
    }
    if (!is_name(pattern.front(), path.front())) return false;
    pattern = pattern.subspan(1);
    path = path.subspan(1);
  }
}

Error wrong(std::string text) { return {ErrorCode::kConfiguration, std::move(text)}; }

// "000..146": the numbers, as wide as the first is written if it has leading zeros; nothing: no
// range.
std::optional<Result<std::vector<std::string>>> range_of(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const std::string_view first = text.substr(0, dots);
  const std::string_view last = text.substr(dots + 2);
  const auto number = [](std::string_view digits) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  };
  const std::optional<std::uint64_t> begin = number(first);
  const std::optional<std::uint64_t> end = number(last);
  if (!begin || !end || *end < *begin) {
    return wrong(fmt::format("{{{}}} is no range of numbers: write {{000..146}}", text));
  }
  if (*end - *begin >= kBracesMax) {
    return wrong(fmt::format("{{{}}} stands for more than {} names", text, kBracesMax));
  }
  const std::size_t width = first.size() > 1 && first.front() == '0' ? first.size() : 0;
  std::vector<std::string> all;
  for (std::uint64_t i = *begin; i <= *end; ++i) all.push_back(fmt::format("{:0{}}", i, width));
  return all;
}

}  // namespace

PathPattern::PathPattern(std::string_view text) : names_(names_of(text)) {
  std::size_t plain = 0;
  while (plain + 1 < names_.size() && names_[plain].find_first_of("*?[\\") == std::string::npos) {
    ++plain;
  }
  for (std::size_t i = 0; i < plain; ++i) root_ += (i == 0 ? "" : "/") + names_[i];
  if (root_.empty()) root_ = text.starts_with('/') ? "/" : ".";
  // What is found below "." begins with it.
  if (root_ == "." && names_.front() != ".") names_.insert(names_.begin(), ".");
}

bool PathPattern::matches(std::string_view path) const {
  return match(names_, names_of(path), false);
}

bool PathPattern::reaches(std::string_view directory) const {
  return match(names_, names_of(directory), true);
}

Result<std::vector<std::string>> expand_braces(const std::string& text) {
  const std::size_t open = text.find('{');
  const std::size_t shut = text.find('}', open == std::string::npos ? 0 : open);
  if (open == std::string::npos) {
    if (shut != std::string::npos) return wrong("a } without its {");
    return std::vector{text};
  }
  if (shut == std::string::npos) return wrong("a { without its }");
  const std::string inside = text.substr(open + 1, shut - open - 1);
  if (inside.find('{') != std::string::npos) return wrong("braces inside of braces");
  std::vector<std::string> choices;
  if (const std::optional<Result<std::vector<std::string>>> all = range_of(inside)) {
    if (!*all) return all->error();
    choices = **all;
  } else {
    for (std::size_t at = 0;;) {
      const std::size_t comma = inside.find(',', at);
      choices.push_back(inside.substr(at, comma - at));
      if (comma == std::string::npos) break;
      at = comma + 1;
    }
  }
  const Result<std::vector<std::string>> rest = expand_braces(text.substr(shut + 1));
  if (!rest) return rest.error();
  if (choices.size() * rest->size() > kBracesMax) {
    return wrong(fmt::format("its braces stand for more than {} names", kBracesMax));
  }
  std::vector<std::string> all;
  for (const std::string& choice : choices) {
    for (const std::string& end : *rest) all.push_back(text.substr(0, open) + choice + end);
  }
  return all;
}

}  // namespace ringfeed
