#include "supervisor/config/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace ringfeed::config {
namespace {

bool is_letter_or_digit(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Not std::tolower: a locale must not change what a name means.
char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool valid_name(std::string_view name, std::string_view marks) noexcept {
  return !name.empty() && name.size() <= kNameLengthMax && name.front() != '-' &&
         name.front() != '.' && std::all_of(name.begin(), name.end(), [marks](char c) {
           return is_letter_or_digit(c) || marks.find(c) != std::string_view::npos;
         });
}

bool begins_with(std::string_view longer, std::string_view shorter) noexcept {
  return longer.size() > shorter.size() &&
         std::equal(shorter.begin(), shorter.end(), longer.begin(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

}  // namespace

bool valid_feed_name(std::string_view name) noexcept { return valid_name(name, "_.-"); }
bool valid_stage_name(std::string_view name) noexcept { return valid_name(name, "_-"); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: a swap looks back two.
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0U : 1U)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string_view nearest;
  std::size_t nearest_distance = 0;
  for (const std::string& candidate : candidates) {
    // Both sizes bound the work: a name may be a whole pasted file.
    if (candidate.empty() || name.empty() || name.size() > 4 * kNameLengthMax) continue;
    const std::size_t distance = edit_distance(name, candidate);
    const std::size_t allowed =
        std::max<std::size_t>(1, std::max(name.size(), candidate.size()) / 3);
    // A single letter is one edit away from every other single letter: that says nothing.
    // Whoever mistypes rarely begins with another letter, and a short word is near many others:
    // `stop` is not what is meant by `top`.
    const bool near = distance <= allowed && distance < std::min(name.size(), candidate.size()) &&
                      (lower(name.front()) == lower(candidate.front()) ||
                       std::min(name.size(), candidate.size()) > 4);
    const bool prefix = std::min(name.size(), candidate.size()) >= 3 &&
                        (begins_with(name, candidate) || begins_with(candidate, name));
    if ((near || prefix) && (nearest.empty() || distance < nearest_distance)) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates,
                         std::string_view otherwise) {
  if (const std::string_view nearest = nearest_name(name, candidates); !nearest.empty()) {
    return fmt::format("; did you mean '{}'?", nearest);
  }
  if (candidates.empty()) return {};
  return fmt::format("; {} {}", otherwise, listed(candidates));
}

std::string listed(std::span<const std::string> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace ringfeed::config
