#include "supervisor/metrics/talk.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "ringfeed/shm/result.h"

namespace ringfeed::metrics {
namespace {

constexpr std::size_t kColumnsOtherwise = 80;

std::size_t columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kColumnsOtherwise;
}

// What does not fit loses its first notes: the later stages are those that are waited for.
std::string fitted(std::string text, std::size_t room) {
  constexpr std::string_view kBetween = " | ";
  const std::size_t first = text.find(": ") + 2;
  for (std::size_t cut = 0; text.size() > room && (cut = text.find(kBetween)) != text.npos;) {
    text.erase(first, cut + kBetween.size() - first);
  }
  return text.substr(0, room);
}

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

}  // namespace

// Standard error: whole lines, and below them the line of progress.
class Talk::Screen {
 public:
  void write_line(std::string_view text) {
    if (!progress_.empty() && terminal_) std::fputs("\r\x1b[K", stderr);
    std::fwrite(text.data(), 1, text.size(), stderr);
    if (text.empty() || text.back() != '\n') std::fputc('\n', stderr);
    if (terminal_) draw();
  }
  void set_progress(std::string_view text, std::uint64_t now_ms) {
    if (text == progress_) return;
    if (!terminal_) {
      if (now_ms - last_ms_ < kProgressMs && last_ms_ != 0) return;
      last_ms_ = now_ms;
      progress_ = text;
      write_line(text);
      return;
    }
    progress_ = text;
    draw();
  }
  void end_progress() {
    if (!progress_.empty() && terminal_) std::fputs("\r\x1b[K", stderr);
    progress_.clear();
  }

 private:
  void draw() {
    if (progress_.empty()) return;
    fmt::print(stderr, "\r\x1b[K{}", fitted(progress_, columns() - 1));
    std::fflush(stderr);
  }

  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  std::string progress_;
  std::uint64_t last_ms_ = 0;
};

namespace {

class ScreenSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ScreenSink(Talk::Screen& screen) : screen_(screen) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    screen_.write_line({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  Talk::Screen& screen_;
};

}  // namespace

struct Talk::Logger {
  std::shared_ptr<spdlog::logger> events;
  std::shared_ptr<spdlog::logger> lines;  // as they come, without a stamp of ours
};

Talk::Talk(Level level, const std::string& file)
    : screen_(std::make_unique<Screen>()), logger_(std::make_unique<Logger>()) {
  const auto make_sink = [&]() -> spdlog::sink_ptr {
    if (file.empty()) return std::make_shared<ScreenSink>(*screen_);
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
  };
  try {
    logger_->events = std::make_shared<spdlog::logger>("supervisor", make_sink());
    logger_->lines = std::make_shared<spdlog::logger>("lines", make_sink());
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(ErrorCode::kIo,
                fmt::format("log file {} cannot be opened: {}: set log.file to a file of yours",
                            file, error.what()));
  }
  logger_->events->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n %v");
  logger_->lines->set_pattern("%v");
  logger_->events->set_level(spdlog_level(level));
  logger_->events->flush_on(spdlog::level::info);
  logger_->lines->flush_on(spdlog::level::info);
}
Talk::~Talk() { screen_->end_progress(); }

void Talk::event(Level level, std::string_view event, std::string_view values) {
  logger_->events->log(spdlog_level(level), "{}{}{}", event, values.empty() ? "" : " ", values);
}
void Talk::line(std::string_view text) { logger_->lines->info("{}", text); }
void Talk::say(std::string_view text) { screen_->write_line(text); }
void Talk::progress(std::string_view text, std::uint64_t now_ms) {
  screen_->set_progress(text, now_ms);
}
void Talk::end_progress() { screen_->end_progress(); }

Level level_named(std::string_view name) {
  if (name == "debug" || name == "DEBUG") return Level::kDebug;
  if (name == "warn" || name == "WARN") return Level::kWarn;
  if (name == "error" || name == "ERROR") return Level::kError;
  return Level::kInfo;
}

}  // namespace ringfeed::metrics
