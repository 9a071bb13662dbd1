#include "supervisor/group/log_tail.h"

#include <algorithm>
#include <utility>

namespace ringfeed::process {

void LogTail::line(std::string text, const Sink& sink) {
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (text.empty()) return;
  sink(text);
  lines_.push_back(std::move(text));
  if (lines_.size() > kLinesKept) lines_.pop_front();
}

void LogTail::take(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    open_ += bytes.substr(0, end);
    if (end == std::string_view::npos && open_.size() < kLineBytesMax) return;
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    std::string whole = std::exchange(open_, {});
    while (whole.size() > kLineBytesMax) {
      line(whole.substr(0, kLineBytesMax), sink);
      whole.erase(0, kLineBytesMax);
    }
    line(std::move(whole), sink);
  }
}

void LogTail::finish(const Sink& sink) { line(std::exchange(open_, {}), sink); }

std::string LogTail::last_words(std::size_t lines) const {
  std::string text;
  const auto end = static_cast<std::size_t>(
      std::find(lines_.begin(), lines_.end(), kBacktraceTitle) - lines_.begin());
  const std::size_t first = end > lines ? end - lines : 0;
  for (std::size_t i = first; i < end; ++i) {
    text += (text.empty() ? "" : " | ") + lines_[i];
  }
  return text;
}

}  // namespace ringfeed::process
