// A status as people read it, and as programs read it.
#pragma once

#include <string>

#include "supervisor/metrics/json.h"

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::metrics {

// Text for a terminal. `before` is an earlier status of the same feed, for rates; it may be null.
// `all`: counters that are 0 as well.
[[nodiscard]] std::string show_status(const StatusReply& status, const StatusReply* before,
                                      bool all = false);

// JSON with the names of control.proto (metrics/json.h). With `before`, every lane has
// records_per_s and the output has batches_per_s.
[[nodiscard]] std::string status_json(const StatusReply& status, const StatusReply* before);
// The same in one line, for whoever asks again and again: without a tree.
[[nodiscard]] std::string status_line(const StatusReply& status, const StatusReply* before);

// Numbers of a feed, and who limits it; rates are over the window of 10 seconds.
[[nodiscard]] std::string show_metrics(const MetricsReply& metrics);
[[nodiscard]] std::string show_bottlenecks(const MetricsReply& metrics);

}  // namespace ringfeed::metrics
