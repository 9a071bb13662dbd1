// A worker's log: lines on a pipe that the supervisor empties, which is standard error unless that
// is something else in this process.
#pragma once

#include <string>

namespace ringfeed {

class LogConfig;

// The log is this descriptor from here on: what is written to stderr, too.
void lead_log(int fd);
[[nodiscard]] int log_descriptor() noexcept;
// From here on spdlog writes as `worker/GROUP`, one line an event whatever its values hold.
void start_log(const std::string& group, const LogConfig& settings);
// Events below it (LogConfig.Level) are left out from now on. Any thread.
void set_log_level(int level);

}  // namespace ringfeed
