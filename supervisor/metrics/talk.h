// What the supervisor says on standard error, or into its log file: events, the workers' lines, and
// while a feed warms up one line of progress that updates on a terminal and is plain lines
// elsewhere.
//
// An event is one line: time, level, process, event, key=value. Values with spaces are quoted; what
// comes from elsewhere is escaped (ringfeed/shm/quote.h), so that it is one line whatever it says.
//
// Nothing here waits for a reader (log_writer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

  // Opens the log file anew, for whoever has moved it away. False: there is none.
  bool reopen();
  // What is wrong with the log now, a sentence each.
  [[nodiscard]] std::vector<std::string> problems() const;

  static constexpr std::uint64_t kProgressMs = 1'000;

 private:
  struct Writers;
  std::unique_ptr<Writers> writers_;
};

[[nodiscard]] Level level_named(std::string_view name);

}  // namespace ringfeed::metrics
