// A line of the log, and the forms in which it is written.
//
//   text      2026-07-01T12:30:00.123 warning supervisor worker_died feed=lc0 group=sampler signal=9
//   JSON      {"time":"2026-07-01T10:30:00.123456Z","level":"warning","event":"worker_died",
//              "process":"supervisor","feed":"lc0","group":"sampler","signal":9}
//   journal   fields of systemd's journal: MESSAGE, PRIORITY, RINGFEED_EVENT, RINGFEED_GROUP, ...
//
// Values are `key=value key="two words"`, and may end with a sentence: `key=value: no such file`.
// That becomes the member `message`. Text is escaped (ringfeed/shm/quote.h) when it is logged, so
// every form is valid UTF-8: other bytes appear as \xff.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringfeed::metrics {

enum class Level { kDebug, kInfo, kWarn, kError };

// "debug", "info", "warning", "error": as lines have it.
[[nodiscard]] std::string_view name_of(Level level);
// The same; also as in a configuration (WARN). nullopt for anything else.
[[nodiscard]] std::optional<Level> find_level(std::string_view name);
// The same; anything else is kInfo.
[[nodiscard]] Level level_named(std::string_view name);

struct LogLine {
  std::uint64_t time_us = 0;  // since 1970, UTC
  Level level = Level::kInfo;
  std::string process = "supervisor";
  std::string event;
  std::string values = {};
  std::string message = {};  // what is no value: a sentence, or what a stage has printed
  // Known beside the line; they win over values of the same name. 0 and "": unknown.
  std::string feed = {};
  std::string group = {};
  std::string stage = {};
  std::uint32_t pid = 0;
};

// Now, in microseconds since 1970.
[[nodiscard]] std::uint64_t wall_us();

[[nodiscard]] std::string text_form(const LogLine& line);
[[nodiscard]] std::string json_form(const LogLine& line);
// Without a length limit: the entry as systemd's native protocol has it.
[[nodiscard]] std::string journal_form(const LogLine& line);

// A line that the process of a stage group has written, at `now_us`. One that is none of the
// worker's log is what somebody has printed: event `output`.
[[nodiscard]] LogLine worker_line(std::string_view text, std::uint64_t now_us);

// A value as read from a line.
struct LogField {
  std::string name;
  std::string value;    // without quotation marks
  bool quoted = false;  // a number in quotation marks is a name
};
// What stands in `values`, and the sentence behind them.
[[nodiscard]] std::pair<std::vector<LogField>, std::string> split_values(std::string_view values);

}  // namespace ringfeed::metrics
