#include "supervisor/metrics/talk.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <mutex>

#include "ringfeed/shm/quote.h"
#include "supervisor/metrics/log_writer.h"

namespace ringfeed::metrics {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %l %n %v";

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

class WriterSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WriterSink(LogWriter& writer) : writer_(writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_.write({line.data(), line.size()}, true);
  }
  void flush_() override {}

 private:
  LogWriter& writer_;
};

std::string loss_line(std::uint64_t lines, const std::string& reason) {
  const std::string text =
      fmt::format("log_lines_lost lines={} reason={}", lines, in_quotes(reason));
  spdlog::pattern_formatter formatter(kPattern);
  spdlog::memory_buf_t line;
  formatter.format(spdlog::details::log_msg("supervisor", spdlog::level::warn, text), line);
  return {line.data(), line.size()};
}

}  // namespace

struct Talk::Writers {
  std::unique_ptr<LogWriter> file;  // of the events, if they go to one
  LogWriter screen;
  std::string progress;
  std::uint64_t last_ms = 0;  // of a progress that is no terminal's
  std::unique_ptr<spdlog::logger> events;

  explicit Writers(const std::string& path)
      : file(path.empty() ? nullptr : std::make_unique<LogWriter>(path, loss_line)),
        screen(loss_line) {}
  [[nodiscard]] LogWriter& log() { return file ? *file : screen; }
};

Talk::Talk(Level level, const std::string& file) : writers_(std::make_unique<Writers>(file)) {
  writers_->events =
      std::make_unique<spdlog::logger>("supervisor", std::make_shared<WriterSink>(writers_->log()));
  writers_->events->set_pattern(kPattern);
  writers_->events->set_level(spdlog_level(level));
}
Talk::~Talk() = default;

void Talk::event(Level level, std::string_view event, std::string_view values) {
  writers_->events->log(spdlog_level(level), "{}{}{}", event, values.empty() ? "" : " ",
                        escaped(values));
}

void Talk::line(std::string_view text) { writers_->log().write(escaped(text) + '\n', false); }

void Talk::say(std::string_view text) {
  std::string lines = escaped_lines(text);
  if (lines.empty() || lines.back() != '\n') lines += '\n';
  writers_->screen.write(std::move(lines), true);
}

void Talk::progress(std::string_view text, std::uint64_t now_ms) {
  Writers& to = *writers_;
  if (text == to.progress) return;
  if (!to.screen.is_terminal()) {
    if (now_ms - to.last_ms < kProgressMs && to.last_ms != 0) return;
    to.last_ms = now_ms;
    to.screen.write(escaped(text) + '\n', false);
  }
  to.progress = text;
  to.screen.set_progress(escaped(text));
}

void Talk::end_progress() {
  writers_->progress.clear();
  writers_->screen.set_progress({});
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

Level level_named(std::string_view name) {
  if (name == "debug" || name == "DEBUG") return Level::kDebug;
  if (name == "warn" || name == "WARN") return Level::kWarn;
  if (name == "error" || name == "ERROR") return Level::kError;
  return Level::kInfo;
}

}  // namespace ringfeed::metrics
