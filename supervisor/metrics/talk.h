// What the supervisor says on standard error, to the journal or into its log file: events, the
// workers' lines, and while a feed is waited for one line of progress, which is drawn anew on a
// terminal; elsewhere lines now and then.
//
// An event is one line (log_line.h has its forms): time, level, process, event, key=value. Values
// with spaces are quoted; what comes from elsewhere is escaped (ringfeed/shm/quote.h), so that it
// is one line whatever it says. Where lines are JSON, or go to the journal, everything is: also
// what is said to the person who started the feed.
//
// Nothing here waits for a reader (log_writer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "supervisor/metrics/log_line.h"

namespace ringfeed::metrics {

struct LogSettings {
  std::string feed = {};
  Level level = Level::kInfo;
  bool json = false;
  // Empty: standard error; if that is the journal's, entries with fields go there instead, unless
  // JSON is asked for.
  std::string file = {};
  std::uint64_t rotate_bytes = 0;  // 0: never
  std::uint32_t rotate_keep = 1;
};

class Talk {
 public:
  // Throws Error (kIo) if the file cannot be opened.
  explicit Talk(const LogSettings& settings);
  ~Talk();
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  void event(Level level, std::string_view event, std::string_view values);
  // A line that another process has made. 0 and "": unknown.
  struct Source {
    std::string process;
    std::string group = {};
    std::uint32_t pid = 0;
  };
  void line(const Source& from, std::string_view text);
  // For the person who started it: not an event, always on standard error.
  void say(std::string_view text);

  // What the feed is waiting for.
  struct Wait {
    std::string kind = {};  // what is waited for: of another kind it is news
    std::string text = {};  // "pool: window: 812 of 100000 chunks | ..."
    std::string bar = {};   // how far it is; "": that is not known
  };
  // At `now_ms`. On a terminal the line is replaced; elsewhere a new one is written when the text
  // has changed, at most once in kProgressMs, or in kNewsMs where it is news.
  void progress(const Wait& wait, std::uint64_t now_ms);
  void end_progress();

  // Events below it are left out. Any thread may ask.
  [[nodiscard]] Level level() const;
  void set_level(Level level);
  [[nodiscard]] bool json() const;
  // Where lines go: the file, "journal" or "standard error".
  [[nodiscard]] std::string destination() const;

  // Opens the log file anew, for whoever has moved it away. False: there is none.
  bool reopen();
  // What is wrong with the log now, a sentence each.
  [[nodiscard]] std::vector<std::string> problems() const;

  static constexpr std::uint64_t kProgressMs = 10'000;
  static constexpr std::uint64_t kNewsMs = 1'000;

 private:
  struct Writers;
  std::unique_ptr<Writers> writers_;
};

}  // namespace ringfeed::metrics
