// What takes its time, how far it is, and what is said of it to the person who waits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "supervisor/feed/feed.h"
#include "supervisor/metrics/status.h"
#include "supervisor/os/locale.h"

namespace ringfeed::process {

// What takes its time just now, with how long it will still take.
void Feed::look_at_progress() {
  under_way_.clear();
  const bool warms =
      memory_.batches_published() == 0 && (phase_ == Phase::kStarting || phase_ == Phase::kRunning);
  if (warms) {
    for (metrics::StageWork& work : metrics::stage_work(memory_)) {
      under_way_.push_back(
          {std::move(work.stage), std::move(work.text), work.done, work.total, std::nullopt});
    }
  }
  if (phase_ == Phase::kDraining || phase_ == Phase::kLingering) look_at_drain();
  if (std::optional<metrics::Progress> saving = snapshots_.progress()) {
    under_way_.push_back(std::move(*saving));
  }
  paces_.look(under_way_, now_ms());
}

// What is still on its way, against the most that was. A record may become several on its way, so
// that there may be more of them than there were.
void Feed::look_at_drain() {
  const std::uint64_t records = metrics::records_under_way(memory_);
  std::uint64_t batches = 0;
  for (const std::unique_ptr<Output>& output : outputs_) {
    if (output->memory.layout().keep_newest) continue;
    batches += output->groups.slots_used();
  }
  const std::uint64_t left = records + batches;
  drain_most_ = std::max(drain_most_, left);
  if (left == 0) return;
  under_way_.push_back({"drain",
                        fmt::format("{} records and {} batches are on their way", records, batches),
                        drain_most_ - left, drain_most_, std::nullopt});
}

// What the stages say while there is no batch: first the one that is waited for longest, then the
// last ones, so that a short line is about what is waited for.
std::string Feed::warming_text(const metrics::Progress* longest) const {
  std::vector<std::string> lines = metrics::progress_notes(memory_);
  std::ranges::reverse(lines);
  if (longest != nullptr) {
    const std::string name = longest->name + ": ";
    std::erase_if(lines, [&](const std::string& line) { return line.starts_with(name); });
    lines.insert(lines.begin(), metrics::progress_line(*longest));
  }
  return lines.empty() ? "starting" : fmt::format("{}", fmt::join(lines, " | "));
}

// What whoever started the feed waits for.
metrics::Talk::Wait Feed::awaited() const {
  metrics::Talk::Wait wait;
  const metrics::Progress* const longest = metrics::longest(under_way_);
  if (longest != nullptr) wait.bar = metrics::progress_bar(*longest, locale_is_utf8());
  if (phase_ == Phase::kDraining) {
    wait.kind = "drain";
    wait.text = "draining: " + waiting_text();
    for (const metrics::Progress& one : under_way_)
      wait.text += " | " + metrics::progress_line(one);
    return wait;
  }
  if (phase_ == Phase::kStarting || phase_ == Phase::kRunning) {
    if (memory_.batches_published() == 0) {
      wait.kind = "start";
      wait.text = warming_text(longest);
      return wait;
    }
    // A feed that is quicker than its trainers is no news.
    if (ever_joined()) return {};
  }
  wait.kind = "trainers";
  wait.text = waiting_text();
  return wait;
}

void Feed::show_progress() {
  look_at_progress();
  if (!first_batch_ && memory_.batches_published() > 0) {
    first_batch_ = true;
    event(metrics::Level::kInfo, "first_batch", fmt::format("after_ms={}", now_ms() - started_ms_));
  }
  const metrics::Talk::Wait wait = awaited();
  if (wait.text.empty()) return talk_.end_progress();
  talk_.progress(wait, now_ms());
}

}  // namespace ringfeed::process
