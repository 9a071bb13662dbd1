// A worker's log: lines on standard error, which the supervisor gathers.
#pragma once

#include <string>

namespace ringfeed {

class LogConfig;

// From here on spdlog writes as `worker/GROUP`, one line an event whatever its values hold.
void start_log(const std::string& group, const LogConfig& settings);
// Events below it (LogConfig.Level) are left out from now on. Any thread.
void set_log_level(int level);

}  // namespace ringfeed
