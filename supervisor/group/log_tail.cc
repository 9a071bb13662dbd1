#include "supervisor/group/log_tail.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace ringfeed::process {

namespace {

constexpr int kReadsPerTurn = 20;

bool is_title(std::string_view line) {
  return line == LogTail::kBacktraceTitle || line.ends_with(LogTail::kPythonStackTitle);
}
// '  File "counts.py", line 8 in count', "/lib/libc.so.6(+0x3c050)[0x7f47f52d8050]".
bool is_frame(std::string_view line) {
  return line.starts_with("  File ") ||
         (line.ends_with(']') && line.find("[0x") != std::string_view::npos);
}

}  // namespace

void LogTail::line(std::string text, const Sink& sink) {
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (text.empty()) return;
  sink(text);
  if (is_title(text)) {
    in_stack_ = true;
    frames_ = 0;
  } else if (in_stack_) {
    in_stack_ = is_frame(text);
    if (in_stack_ && ++frames_ > kFramesKept) return;
  }
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

bool LogTail::read(int pipe, const Sink& sink) {
  std::array<char, 65536> bytes;
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    const ssize_t n = ::read(pipe, bytes.data(), bytes.size());
    if (n > 0) {
      take({bytes.data(), static_cast<std::size_t>(n)}, sink);
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
  return true;
}

void LogTail::finish(const Sink& sink) { line(std::exchange(open_, {}), sink); }

std::string LogTail::last_words(std::size_t lines) const {
  std::string text;
  auto end = static_cast<std::size_t>(std::find(lines_.begin(), lines_.end(), kBacktraceTitle) -
                                      lines_.begin());
  std::size_t first = end > lines ? end - lines : 0;
  const auto stack = static_cast<std::size_t>(
      std::ranges::find_if(
          lines_, [](const std::string& line) { return line.ends_with(kPythonStackTitle); }) -
      lines_.begin());
  if (stack < end) {
    first = stack == 0 ? 0 : stack - 1;
    end = std::min(end, first + lines + 1);  // the title says nothing
  }
  for (std::size_t i = first; i < end; ++i) {
    if (i == stack) continue;
    const std::size_t indent = std::min(lines_[i].find_first_not_of(' '), lines_[i].size());
    text += (text.empty() ? "" : " | ") + lines_[i].substr(indent);
  }
  return text;
}

}  // namespace ringfeed::process
