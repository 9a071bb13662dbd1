// What a worker writes to standard error: it is cut into lines and passed on; the last lines are
// kept for the reason of its death.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace ringfeed::process {

class LogTail {
 public:
  static constexpr std::size_t kLinesKept = 40;
  // Of a stack, native or Python's, the newest calls: the others would push out the lines before.
  static constexpr std::size_t kFramesKept = 12;
  // The line before a worker's backtrace (workers/runtime/fault.cc).
  static constexpr std::string_view kBacktraceTitle = "backtrace, newest call first:";
  // The line after a backtrace that it was asked for.
  static constexpr std::string_view kBacktraceEnd = "end of backtrace";
  static constexpr std::size_t kLineBytesMax = 4096;  // a longer line is cut here

  using Sink = std::function<void(std::string_view line)>;

  // Takes what was read and passes every whole line to `sink`.
  void take(std::string_view bytes, const Sink& sink);
  // The same of a pipe that is not to be waited for: all that a pipe holds, and a little more, but
  // not to the end, for a process that never ceases to talk would keep the others from their turn.
  // False: the pipe has ended.
  bool read(int pipe, const Sink& sink);
  // The process has ended: a rest without a line end is a line too.
  void finish(const Sink& sink);
  // A new process begins: forgets the lines of the last one.
  void clear() { lines_.clear(); }

  // How the title of a stack of Python ends (faulthandler).
  static constexpr std::string_view kPythonStackTitle = "(most recent call first):";
  // The most telling of the last lines: at most `lines` of them, joined by " | ", without a native
  // backtrace. Of a stack of Python what was said before it, and the newest calls.
  [[nodiscard]] std::string last_words(std::size_t lines) const;
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  void line(std::string text, const Sink& sink);

  std::string open_;  // the line that has not ended
  std::deque<std::string> lines_;
  bool in_stack_ = false;
  std::size_t frames_ = 0;  // of it
};

}  // namespace ringfeed::process
