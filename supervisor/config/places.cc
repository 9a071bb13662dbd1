#include "supervisor/config/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace ringfeed::config {

std::string Place::text() const {
  return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
}

Place Places::find(std::string_view path) const {
  for (;;) {
    if (const auto found = places_.find(path); found != places_.end()) return found->second;
    const std::size_t cut = path.find_last_of(".[");
    if (cut == std::string_view::npos) return source_;
    path = path.substr(0, cut);
  }
}

void Places::erase_below(std::string_view path) {
  const auto below = [path](const auto& entry) {
    const std::string_view key = entry.first;
    return key.starts_with(path) && key.size() > path.size() &&
           (key[path.size()] == '.' || key[path.size()] == '[');
  };
  std::erase_if(places_, below);
  std::erase_if(doubtful_, [&](const auto& entry) { return entry.first == path || below(entry); });
}

std::string Problem::message() const {
  if (stage.empty()) return fmt::format("{}: {}", place.text(), text);
  return fmt::format("{}: stage '{}': {}", place.text(), stage, text);
}

void sort_problems(std::vector<Problem>& problems) {
  const auto key = [](const Problem& problem) {
    return std::make_tuple(problem.place.source.starts_with(kOverride), problem.place.line == 0,
                           std::cref(problem.place.source), problem.place.line,
                           problem.place.column);
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const Problem& a, const Problem& b) { return key(a) < key(b); });
  std::unordered_set<std::string> seen;
  std::erase_if(problems,
                [&](const Problem& problem) { return !seen.insert(problem.message()).second; });
}

std::string problem_report(std::span<const Problem> problems, std::size_t left_out) {
  std::string report;
  for (const Problem& problem : problems.first(std::min(problems.size(), kProblemsShown))) {
    report += problem.message() + "\n";
  }
  if (problems.size() > kProblemsShown) left_out += problems.size() - kProblemsShown;
  if (left_out != 0) {
    report +=
        fmt::format("and {} more problem{}: fix these first\n", left_out, left_out == 1 ? "" : "s");
  }
  return report;
}

}  // namespace ringfeed::config
