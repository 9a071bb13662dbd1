#include "supervisor/metrics/talk.h"

#include <fmt/format.h>

#include <atomic>

#include "ringfeed/shm/quote.h"
#include "supervisor/metrics/log_writer.h"
#include "supervisor/os/journal.h"

namespace ringfeed::metrics {
namespace {

enum class Form { kText, kJson, kJournal };

std::string in_form(const LogLine& line, Form form) {
  switch (form) {
    case Form::kText:
      return text_form(line);
    case Form::kJson:
      return json_form(line);
    case Form::kJournal:
      return journal_form(line);
  }
  return {};
}

LogWriter::OwnLine own_line(Form form, const std::string& feed) {
  return [form, feed](std::string_view event, const std::string& values) {
    return in_form({.time_us = wall_us(),
                    .level = Level::kWarn,
                    .event = std::string(event),
                    .values = values,
                    .feed = feed},
                   form);
  };
}

std::unique_ptr<LogWriter> file_writer(const LogSettings& settings) {
  if (settings.file.empty()) return nullptr;
  LogWriter::Target target{.file = settings.file,
                           .rotate_bytes = settings.rotate_bytes,
                           .rotate_keep = settings.rotate_keep};
  return std::make_unique<LogWriter>(
      std::move(target), own_line(settings.json ? Form::kJson : Form::kText, settings.feed));
}

// What standard error gets: with a log file only words for people.
Form screen_form(const LogSettings& settings) {
  if (settings.file.empty() && settings.json) return Form::kJson;
  return process::stderr_is_journal() ? Form::kJournal : Form::kText;
}

LogWriter::Target screen_target(Form form) {
  return {.journal = form == Form::kJournal ? process::Journal::kSocket : ""};
}

}  // namespace

struct Talk::Writers {
  LogSettings settings;
  std::atomic<Level> level;
  Form screen_form;
  std::unique_ptr<LogWriter> file;  // of the events, if they go to one
  LogWriter screen;
  std::string progress;
  std::string kind;           // of that progress
  std::uint64_t last_ms = 0;  // of a progress that is no terminal's

  explicit Writers(const LogSettings& given)
      : settings(given),
        level(given.level),
        screen_form(metrics::screen_form(given)),
        file(file_writer(given)),
        screen(screen_target(screen_form), own_line(screen_form, given.feed)) {}

  [[nodiscard]] Form log_form() const {
    if (!file) return screen_form;
    return settings.json ? Form::kJson : Form::kText;
  }
  void log(LogLine line, bool patient) {
    line.feed = settings.feed;
    (file ? *file : screen).write(in_form(line, log_form()), patient);
  }
  // For people: plain text where it is not read by machines.
  void say(std::string_view text, std::string_view event, bool patient) {
    if (screen_form == Form::kText) {
      std::string lines = escaped_lines(text);
      if (lines.empty() || lines.back() != '\n') lines += '\n';
      return screen.write(std::move(lines), patient);
    }
    std::string message = escaped_lines(text);
    while (message.ends_with('\n')) message.pop_back();
    screen.write(in_form({.time_us = wall_us(),
                          .event = std::string(event),
                          .message = std::move(message),
                          .feed = settings.feed},
                         screen_form),
                 patient);
  }
};

Talk::Talk(const LogSettings& settings) : writers_(std::make_unique<Writers>(settings)) {}
Talk::~Talk() = default;

void Talk::event(Level level, std::string_view event, std::string_view values) {
  if (level < this->level()) return;
  writers_->log({.time_us = wall_us(),
                 .level = level,
                 .event = std::string(event),
                 .values = escaped(values)},
                true);
}

void Talk::line(const Source& from, std::string_view text) {
  Writers& to = *writers_;
  if (to.log_form() == Form::kText) {
    // As it is: it has the form already, or is what somebody has printed.
    return (to.file ? *to.file : to.screen).write(escaped(text) + '\n', false);
  }
  LogLine line = worker_line(text, wall_us());
  line.process = from.process;
  line.group = from.group;
  line.pid = from.pid;
  to.log(std::move(line), false);
}

void Talk::say(std::string_view text) { writers_->say(text, "notice", true); }

void Talk::progress(const Wait& wait, std::uint64_t now_ms) {
  Writers& to = *writers_;
  const std::string feed = to.settings.feed + ": ";
  if (to.screen.is_terminal() && to.screen_form == Form::kText) {
    const std::string line =
        feed + (wait.bar.empty() ? wait.text : fmt::format("{} {}", wait.bar, wait.text));
    if (line == to.progress) return;
    to.progress = line;
    to.screen.set_progress(escaped(line));
    return;
  }
  if (wait.text == to.progress) return;
  const std::uint64_t pause = wait.kind == to.kind ? kProgressMs : kNewsMs;
  if (to.last_ms != 0 && now_ms - to.last_ms < pause) return;
  to.last_ms = now_ms;
  to.progress = wait.text;
  to.kind = wait.kind;
  to.say(feed + wait.text, "progress", false);
}

void Talk::end_progress() {
  writers_->progress.clear();
  writers_->kind.clear();
  writers_->screen.set_progress({});
}

Level Talk::level() const {
  // relaxed: nothing else is handed over with it.
  return writers_->level.load(std::memory_order_relaxed);
}

void Talk::set_level(Level level) { writers_->level.store(level, std::memory_order_relaxed); }

bool Talk::json() const { return writers_->settings.json; }

std::string Talk::destination() const {
  if (writers_->file) return writers_->settings.file;
  return writers_->screen_form == Form::kJournal ? "journal" : "standard error";
}

bool Talk::reopen() {
  if (writers_->file) writers_->file->reopen();
  return writers_->file != nullptr;
}

std::vector<std::string> Talk::problems() const {
  std::vector<std::string> found;
  if (writers_->file) found.push_back(writers_->file->problem());
  found.push_back(writers_->screen.problem());
  std::erase(found, std::string());
  return found;
}

}  // namespace ringfeed::metrics
