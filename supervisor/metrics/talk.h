// What the supervisor says on standard error, or into its log file: events, the workers' lines, and
// while a feed warms up one line of progress that updates on a terminal and is plain lines
// elsewhere.
//
// An event is one line: time, level, process, event, key=value. Values with spaces are quoted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ringfeed::metrics {

enum class Level { kDebug, kInfo, kWarn, kError };

class Talk {
 public:
  // Events below `level` are left out; an empty `file` is standard error. Throws Error (kIo) if the
  // file cannot be opened.
  Talk(Level level, const std::string& file);
  ~Talk();
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  void event(Level level, std::string_view event, std::string_view values);
  // A line that a worker has made.
  void line(std::string_view text);
  // For the person who started it: not an event, always on standard error.
  void say(std::string_view text);

  // What the feed is waiting for, at `now_ms`. On a terminal the line is replaced; elsewhere a new
  // one is written when the text has changed, at most once in kProgressMs.
  void progress(std::string_view text, std::uint64_t now_ms);
  void end_progress();

  static constexpr std::uint64_t kProgressMs = 1'000;

  class Screen;

 private:
  std::unique_ptr<Screen> screen_;
  struct Logger;
  std::unique_ptr<Logger> logger_;
};

[[nodiscard]] Level level_named(std::string_view name);

}  // namespace ringfeed::metrics
