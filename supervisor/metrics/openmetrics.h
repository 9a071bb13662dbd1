// Feeds in the text formats that Prometheus and OpenMetrics collectors read.
//
// The same families in both: OpenMetrics names a counter without `_total` in its TYPE line, and
// ends with `# EOF`. The number of series is bounded by the configuration (stages, lanes, ports,
// the counters that a kind of stage declares) and by the places for groups and members; nothing in
// a label comes from data.
#pragma once

#include <string>
#include <vector>

namespace ringfeed {
class MetricsReply;
class StatusReply;
}  // namespace ringfeed

namespace ringfeed::metrics {

enum class TextForm { kPrometheus, kOpenMetrics };
[[nodiscard]] std::string_view content_type(TextForm form);

// What is known of a feed. Null: its supervisor has not answered.
struct FeedNumbers {
  std::string feed;
  const StatusReply* status = nullptr;
  const MetricsReply* metrics = nullptr;
  std::string_view ended = {};   // of one without a supervisor: "FAILED", "DEAD", "ORPHANED"
  std::string_view reason = {};  // it does not answer
};
[[nodiscard]] std::string metrics_text(const std::vector<FeedNumbers>& feeds, TextForm form);

}  // namespace ringfeed::metrics
