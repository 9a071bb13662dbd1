#include "supervisor/metrics/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <set>

#include "ringfeed/shm/quote.h"
#include "supervisor/metrics/json_writer.h"

namespace ringfeed::metrics {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
// syslog's, in the order of Level.
constexpr std::array<int, 4> kPriorities = {7, 6, 4, 3};
// A reader of JSON may keep numbers as double.
constexpr std::int64_t kWholeMax = std::int64_t{1} << 53;

std::string shown_time(std::uint64_t time_us, const char* pattern, bool utc) {
  const auto seconds = static_cast<std::time_t>(time_us / 1'000'000);
  std::tm parts{};
  utc ? ::gmtime_r(&seconds, &parts) : ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), pattern, &parts)};
}

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// The text in quotation marks at the start of `rest`, which is moved behind them. Other escapes
// than these two stand for what cannot be shown, and stay.
std::string take_quoted(std::string_view& rest) {
  std::string value;
  std::size_t i = 1;
  for (; i < rest.size() && rest[i] != '"'; ++i) {
    const bool marked =
        rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\');
    value += rest[marked ? ++i : i];
  }
  rest.remove_prefix(std::min(i + 1, rest.size()));
  return value;
}

std::string without_spaces_before(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string() : std::string(text.substr(first));
}

// A feed may be called 2024.
bool is_identity(std::string_view name) {
  return name == "feed" || name == "group" || name == "stage" || name == "lane" || name == "output";
}

// As a number where it is one.
void write_value(const LogField& field, JsonWriter& out) {
  const std::string& text = field.value;
  if (field.quoted || text.empty() || is_identity(field.name)) return out.value(text);
  const char* const end = text.data() + text.size();
  const std::size_t digits = text[0] == '-' ? 1 : 0;
  // 007 is none.
  if (text.size() > digits + 1 && text[digits] == '0' && text[digits + 1] != '.') {
    return out.value(text);
  }
  std::int64_t whole = 0;
  if (const auto read = std::from_chars(text.data(), end, whole); read.ptr == end) {
    if (read.ec == std::errc() && whole >= -kWholeMax && whole <= kWholeMax) {
      return out.value(whole);
    }
    return out.value(text);
  }
  if (text.find_first_not_of("0123456789.-") != std::string::npos) return out.value(text);
  double number = 0;
  const auto read = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (read.ec == std::errc() && read.ptr == end) return out.value(number);
  out.value(text);
}

// What a line has beside time, level, event and process: each name once, what is known of it first.
struct Parts {
  std::vector<LogField> fields;
  std::string message;
};

Parts parts_of(const LogLine& line) {
  Parts parts;
  std::set<std::string> taken = {"time", "level", "event", "process", "message"};
  const auto add = [&](LogField field) {
    // A foreign `level` does not take the place of the line's own.
    while (!taken.insert(field.name).second) field.name += '_';
    parts.fields.push_back(std::move(field));
  };
  auto split = split_values(line.values);
  std::vector<LogField>& fields = split.first;  // no structured binding: Clang 14 captures none
  const std::string& sentence = split.second;
  const auto known = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    std::erase_if(
        fields, [&](const LogField& field) { return field.name == name && field.value == value; });
    add({name, value, false});
  };
  known("feed", line.feed);
  known("group", line.group);
  known("stage", line.stage);
  known("pid", line.pid == 0 ? std::string() : std::to_string(line.pid));
  for (LogField& field : fields) add(std::move(field));
  parts.message = line.message;
  if (!sentence.empty()) parts.message += (parts.message.empty() ? "" : ": ") + sentence;
  return parts;
}

void add_to_journal(std::string& entry, std::string_view name, std::string_view value) {
  entry += name;
  if (value.find('\n') == std::string_view::npos) {
    entry += '=';
    entry += value;
  } else {
    entry += '\n';
    for (std::uint64_t size = value.size(), i = 0; i < 8; ++i, size >>= 8) {
      entry += static_cast<char>(size & 0xff);
    }
    entry += value;
  }
  entry += '\n';
}

// A name of the journal: capital letters, digits and underscores, at most 64.
std::string journal_name(std::string_view name) {
  std::string field = "RINGFEED_";
  for (const char c : name.substr(0, 48)) {
    field += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return field;
}

// 2026-07-01T12:30:00.123 of the local clock, as workers write it. An hour that the clock shows
// twice is the one nearer to `now_us`.
std::optional<std::uint64_t> local_time_us(std::string_view text, std::uint64_t now_us) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00.000";
  const bool fits =
      text.size() == kForm.size() && std::ranges::equal(text, kForm, [](char c, char as) {
        return as == '0' ? c >= '0' && c <= '9' : c == as;
      });
  if (!fits) return std::nullopt;
  const auto number = [&](std::size_t from, std::size_t digits) {
    int value = 0;
    std::from_chars(text.data() + from, text.data() + from + digits, value);
    return value;
  };
  std::optional<std::uint64_t> nearest;
  for (const int summer : {0, 1}) {
    std::tm parts{};
    parts.tm_year = number(0, 4) - 1900;
    parts.tm_mon = number(5, 2) - 1;
    parts.tm_mday = number(8, 2);
    parts.tm_hour = number(11, 2);
    parts.tm_min = number(14, 2);
    parts.tm_sec = number(17, 2);
    parts.tm_isdst = summer;
    const int hour = parts.tm_hour;
    const std::time_t seconds = std::mktime(&parts);
    if (seconds < 0 || parts.tm_hour != hour || parts.tm_isdst != summer) continue;
    const std::uint64_t time = static_cast<std::uint64_t>(seconds) * 1'000'000 +
                               static_cast<std::uint64_t>(number(20, 3)) * 1'000;
    const auto away = [&](std::uint64_t t) { return t > now_us ? t - now_us : now_us - t; };
    if (!nearest || away(time) < away(*nearest)) nearest = time;
  }
  return nearest;
}

std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  return word;
}

// What the worker's log says of itself: `worker/GROUP event values`.
void read_event(std::string_view rest, LogLine& line) {
  const std::string_view event = take_word(rest);
  if (is_name(event)) {
    line.event = event;
    line.values = rest;
  } else {
    line.event = "output";
    line.message = std::string(event) + (rest.empty() ? "" : " ") + std::string(rest);
    if (line.message.starts_with("| ")) line.message.erase(0, 2);  // of a stack of Python
  }
}

}  // namespace

std::string_view name_of(Level level) { return kNames[static_cast<std::size_t>(level)]; }

std::optional<Level> find_level(std::string_view name) {
  if (name == "debug" || name == "DEBUG") return Level::kDebug;
  if (name == "info" || name == "INFO") return Level::kInfo;
  if (name == "warning" || name == "warn" || name == "WARN") return Level::kWarn;
  if (name == "error" || name == "ERROR") return Level::kError;
  return std::nullopt;
}

Level level_named(std::string_view name) { return find_level(name).value_or(Level::kInfo); }

std::uint64_t wall_us() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

std::pair<std::vector<LogField>, std::string> split_values(std::string_view values) {
  std::vector<LogField> fields;
  std::string_view rest = values;
  while (!rest.empty()) {
    if (rest[0] == ' ') {
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t sign = rest.find('=');
    if (sign == std::string_view::npos || !is_name(rest.substr(0, sign))) break;
    LogField field{.name = std::string(rest.substr(0, sign)), .value = {}};
    rest.remove_prefix(sign + 1);
    field.quoted = !rest.empty() && rest[0] == '"';
    bool last = false;
    if (field.quoted) {
      field.value = take_quoted(rest);
      last = rest.starts_with(':');
    } else {
      std::string_view word = rest.substr(0, rest.find(' '));
      rest.remove_prefix(word.size());
      // Only before a sentence: a path may end so.
      last = word.ends_with(':') && !rest.empty();
      if (last) word.remove_suffix(1);
      field.value = word;
    }
    fields.push_back(std::move(field));
    if (!last) continue;
    if (rest.starts_with(':')) rest.remove_prefix(1);
    break;
  }
  if (rest.starts_with(": ")) rest.remove_prefix(2);  // a sentence without any value before it
  return {std::move(fields), without_spaces_before(rest)};
}

std::string text_form(const LogLine& line) {
  std::string text =
      fmt::format("{}.{:03} {} {} {}", shown_time(line.time_us, "%Y-%m-%dT%H:%M:%S", false),
                  line.time_us / 1'000 % 1'000, name_of(line.level), line.process, line.event);
  if (!line.values.empty()) text += ' ' + line.values;
  if (!line.message.empty()) text += ": " + line.message;
  return text + '\n';
}

std::string json_form(const LogLine& line) {
  JsonWriter out;
  const auto write = [&out](std::string_view name, std::string_view text) {
    out.name(name);
    out.value(text);
  };
  out.begin_object();
  write("time", fmt::format("{}.{:06}Z", shown_time(line.time_us, "%Y-%m-%dT%H:%M:%S", true),
                            line.time_us % 1'000'000));
  write("level", name_of(line.level));
  write("event", line.event);
  write("process", line.process);
  const Parts parts = parts_of(line);
  for (const LogField& field : parts.fields) {
    out.name(field.name);
    write_value(field, out);
  }
  if (!parts.message.empty()) write("message", parts.message);
  out.end_object();
  return out.take() + '\n';
}

std::string journal_form(const LogLine& line) {
  std::string entry;
  std::string message =
      line.event == "output" || line.event == "notice" ? std::string() : line.event;
  for (const std::string& part : {line.values, line.message}) {
    if (!part.empty()) message += (message.empty() ? "" : " ") + part;
  }
  add_to_journal(entry, "MESSAGE", message);
  add_to_journal(entry, "PRIORITY",
                 std::to_string(kPriorities[static_cast<std::size_t>(line.level)]));
  add_to_journal(entry, "SYSLOG_IDENTIFIER", "ringfeed");
  add_to_journal(entry, "RINGFEED_EVENT", line.event);
  add_to_journal(entry, "RINGFEED_PROCESS", line.process);
  for (const LogField& field : parts_of(line).fields) {
    add_to_journal(entry, journal_name(field.name), field.value);
  }
  return entry;
}

LogLine worker_line(std::string_view text, std::uint64_t now_us) {
  LogLine line;
  line.time_us = now_us;
  std::string_view rest = text;
  const std::optional<std::uint64_t> time = local_time_us(take_word(rest), now_us);
  const std::optional<Level> level = find_level(take_word(rest));
  const std::string process(take_word(rest));
  if (!time || !level || process.empty()) {
    line.event = "output";
    line.message = escaped(text);
    return line;
  }
  line.time_us = *time;
  line.level = *level;
  if (rest.starts_with("| ")) {
    // A Python stage has printed it: `stage.lane | text`.
    line.event = "output";
    line.stage = process.substr(0, process.rfind('.'));
    line.message = escaped(rest.substr(2));
  } else {
    line.process = escaped(process);
    read_event(escaped(rest), line);
  }
  return line;
}

}  // namespace ringfeed::metrics
