#include "supervisor/metrics/openmetrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"

namespace ringfeed::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(OpenMetrics, EscapesLabels) {
  StatusReply status;
  status.add_groups()->set_name("a\\b\"c\nd");
  const MetricsReply metrics;
  const std::string text = metrics_text({{"f", &status, &metrics}}, TextForm::kPrometheus);
  EXPECT_THAT(text,
              HasSubstr(R"(ringfeed_group_lag_batches{feed="f",output="",group="a\\b\"c\nd"} 0)"));
}

TEST(OpenMetrics, HasNoSeriesOfAFeedThatDoesNotAnswer) {
  const std::string text = metrics_text({{"f", nullptr, nullptr}}, TextForm::kOpenMetrics);
  EXPECT_THAT(text, HasSubstr("ringfeed_feed_up{feed=\"f\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("_total{")));
  EXPECT_TRUE(text.ends_with("# EOF\n"));
}

TEST(OpenMetrics, CountsSkipsByReason) {
  StatusReply status;
  MetricsReply metrics;
  StageMetricProto& stage = *metrics.mutable_total()->add_stage_metrics();
  stage.set_name("pool");
  for (const char* name : {"skipped_too_large", "draws"}) {
    CounterMetricProto& counter = *stage.add_counters();
    counter.set_name(name);
    counter.set_value(7);
  }
  CounterMetricProto& unknown = *stage.add_counters();
  unknown.set_name("never_counted");
  const std::string text = metrics_text({{"f", &status, &metrics}}, TextForm::kPrometheus);
  EXPECT_THAT(
      text,
      HasSubstr("ringfeed_skipped_total{feed=\"f\",stage=\"pool\",reason=\"too_large\"} 7\n"));
  EXPECT_THAT(
      text,
      HasSubstr("ringfeed_stage_events_total{feed=\"f\",stage=\"pool\",counter=\"draws\"} 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("never_counted")));
}

// A number that is large keeps its last digit.
TEST(OpenMetrics, WritesWholeNumbersWhole) {
  StatusReply status;
  status.add_outputs()->set_batches_published(9'007'199'254'740'991);
  const MetricsReply metrics;
  EXPECT_THAT(
      metrics_text({{"f", &status, &metrics}}, TextForm::kPrometheus),
      HasSubstr("ringfeed_batches_published_total{feed=\"f\",output=\"\"} 9007199254740991\n"));
}

}  // namespace
}  // namespace ringfeed::metrics
