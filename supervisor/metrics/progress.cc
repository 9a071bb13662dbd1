#include "supervisor/metrics/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "proto/control.pb.h"
#include "supervisor/os/text.h"

namespace ringfeed::metrics {
namespace {

constexpr std::uint64_t kWindowMs = 30'000;
constexpr std::uint64_t kMarkMs = 500;     // between two marks
constexpr std::uint64_t kKnownMs = 1'000;  // a pace is believed after this time
constexpr std::uint64_t kMostMs = std::uint64_t{99} * 24 * 3600 * 1000;  // beyond: who knows
constexpr std::uint64_t kCells = 20;

double share(const Progress& progress) {
  return static_cast<double>(progress.done) / static_cast<double>(progress.total);
}

}  // namespace

std::optional<std::uint64_t> Pace::left_ms(std::uint64_t done, std::uint64_t total,
                                           std::uint64_t now_ms) {
  if (!marks_.empty() && done < marks_.back().second) marks_.clear();
  if (marks_.empty() || now_ms >= marks_.back().first + kMarkMs) marks_.emplace_back(now_ms, done);
  while (marks_.size() > 2 && marks_[1].first + kWindowMs <= now_ms) marks_.pop_front();
  const auto& [since_ms, before] = marks_.front();
  if (done <= before || now_ms < since_ms + kKnownMs || done > total) return std::nullopt;
  const double left = static_cast<double>(now_ms - since_ms) / static_cast<double>(done - before) *
                      static_cast<double>(total - done);
  if (left > static_cast<double>(kMostMs)) return std::nullopt;
  return static_cast<std::uint64_t>(left);
}

void Paces::look(std::vector<Progress>& all, std::uint64_t now_ms) {
  std::set<std::string> there;
  for (Progress& progress : all) {
    there.insert(progress.name);
    if (progress.total == 0) continue;
    progress.left_ms = paces_[progress.name].left_ms(progress.done, progress.total, now_ms);
  }
  std::erase_if(paces_, [&](const auto& entry) { return !there.contains(entry.first); });
}

const Progress* longest(const std::vector<Progress>& all) {
  const auto is_longer = [](const Progress& one, const Progress& other) {
    if (one.left_ms && other.left_ms) return *one.left_ms > *other.left_ms;
    return share(one) < share(other);
  };
  const Progress* found = nullptr;
  for (const Progress& progress : all) {
    if (progress.over()) continue;
    if (found == nullptr || is_longer(progress, *found)) found = &progress;
  }
  return found;
}

Progress progress_of(const ProgressStatus& told) {
  Progress progress{
      .name = told.name(), .text = told.text(), .done = told.done(), .total = told.total()};
  if (told.has_left_ms()) progress.left_ms = told.left_ms();
  return progress;
}

std::string left_text(const Progress& progress) {
  if (!progress.left_ms || progress.over()) return {};
  // Of a second nobody needs to be told less.
  return fmt::format("about {} left", shown_time(std::max<std::uint64_t>(*progress.left_ms, 1000)));
}

std::string progress_line(const Progress& progress) {
  const std::string left = left_text(progress);
  return fmt::format("{}: {}{}{}", progress.name, progress.text, left.empty() ? "" : ", ", left);
}

std::string progress_bar(const Progress& progress, bool utf8) {
  if (progress.total == 0) return {};
  const auto filled = static_cast<std::uint64_t>(share(progress) * static_cast<double>(kCells));
  std::string bar = "[";
  for (std::uint64_t cell = 0; cell < kCells; ++cell) {
    bar += cell < filled ? utf8 ? "█" : "#" : utf8 ? "░" : ".";
  }
  return fmt::format("{}] {} %", bar, static_cast<std::uint64_t>(share(progress) * 100));
}

}  // namespace ringfeed::metrics
