// What a worker says on its standard error: cut into lines, passed on, and the last ones kept for
// the reason of its death.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace ringfeed::process {

class LogTail {
 public:
  static constexpr std::size_t kLinesKept = 20;
  // What a worker says before its backtrace (workers/runtime/fault.cc).
  static constexpr std::string_view kBacktraceTitle = "backtrace, newest call first:";
  // And behind one that it was asked for.
  static constexpr std::string_view kBacktraceEnd = "end of backtrace";
  static constexpr std::size_t kLineBytesMax = 4096;  // a longer line is cut here

  using Sink = std::function<void(std::string_view line)>;

  // Takes what was read and hands every whole line to `sink`.
  void take(std::string_view bytes, const Sink& sink);
  // The process has ended: what has no line end yet is a line too.
  void finish(const Sink& sink);
  // A new process: the lines of the last one are not its own.
  void clear() { lines_.clear(); }

  // The last lines, the most telling ones: at most `lines` of them, joined by " | "; a backtrace
  // is left out.
  [[nodiscard]] std::string last_words(std::size_t lines) const;
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  void line(std::string text, const Sink& sink);

  std::string open_;  // the line that has not ended
  std::deque<std::string> lines_;
};

}  // namespace ringfeed::process
