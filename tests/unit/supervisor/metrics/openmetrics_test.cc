#include "supervisor/metrics/openmetrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/control.pb.h"
#include "proto/metrics.pb.h"
#include "ringfeed/shm/quote.h"

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

// One series that is no UTF-8 would cost the collector all of them.
TEST(OpenMetrics, TellsWhyAFeedDoesNotAnswerInUtf8) {
  for (const std::string& reason : {std::string(299, 'a') + "\u00e9 and more",
                                    std::string("a name: \xff"), std::string(5000, 'b')}) {
    const std::string text =
        metrics_text({{.feed = "f", .ended = "FAILED", .reason = reason}}, TextForm::kPrometheus);
    EXPECT_THAT(text, HasSubstr("ringfeed_feed_state{feed=\"f\",state=\"FAILED\"} 1\n"));
    const std::size_t at = text.find("ringfeed_feed_reason{");
    ASSERT_NE(at, std::string::npos);
    const std::string line = text.substr(at, text.find('\n', at) - at);
    EXPECT_EQ(escaped(line), line) << "UTF-8, and no character cut in two";
    EXPECT_LT(line.size(), 400U);
  }
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

// Members write these numbers: whatever they are, the text can be read.
TEST(OpenMetrics, HasWaitsAsAHistogram) {
  StatusReply status;
  ConsumerGroupStatus& group = *status.add_groups();
  group.set_name("g");
  for (const std::uint64_t bound : {2'500, 1'000'000}) group.add_wait_bounds_us(bound);
  for (const std::uint64_t count : {5, 3, 2}) group.add_wait_counts(count);
  group.set_wait_ns(1'500'000'000);
  const MetricsReply metrics;
  const std::string text = metrics_text({{"f", &status, &metrics}}, TextForm::kOpenMetrics);
  EXPECT_THAT(text, HasSubstr("# TYPE ringfeed_trainer_wait_seconds histogram\n"));
  const std::string labels = R"({feed="f",output="",group="g")";
  const std::string name = "ringfeed_trainer_wait_seconds";
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + R"(,le="0.0025"} 5)"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + R"(,le="1.0"} 8)"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket" + labels + R"(,le="+Inf"} 10)"));
  EXPECT_THAT(text, HasSubstr(name + "_sum" + labels + "} 1.5\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count" + labels + "} 10\n"));
  group.set_wait_counts(0, ~std::uint64_t{0});
  group.set_wait_counts(1, ~std::uint64_t{0});
  EXPECT_THAT(metrics_text({{"f", &status, &metrics}}, TextForm::kOpenMetrics),
              HasSubstr(R"(le="+Inf"} 3.6893488147419103e+19)"));
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
