#include "workers/runtime/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "proto/config.pb.h"
#include "ringfeed/shm/quote.h"

namespace ringfeed {
namespace {

// The text of a log line, which may hold names of files, as one line.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    const std::string text = escaped({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedText>();
  }
};

int lines_fd = STDERR_FILENO;

}  // namespace

void lead_log(int fd) {
  if (fd == STDERR_FILENO) return;
  std::FILE* const stream = ::fdopen(fd, "w");
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, _IONBF, 0);
  lines_fd = fd;
  stderr = stream;  // a variable, in glibc and as its manual says
}

int log_descriptor() noexcept { return lines_fd; }

void start_log(const std::string& group, const LogConfig& settings) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("worker/" + group));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedText>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %n %*");
  spdlog::set_formatter(std::move(formatter));
  set_log_level(settings.level());
}

void set_log_level(int level) {
  switch (level) {
    case LogConfig::DEBUG:
      return spdlog::set_level(spdlog::level::debug);
    case LogConfig::WARN:
      return spdlog::set_level(spdlog::level::warn);
    case LogConfig::ERROR:
      return spdlog::set_level(spdlog::level::err);
    default:
      return spdlog::set_level(spdlog::level::info);
  }
}

}  // namespace ringfeed
