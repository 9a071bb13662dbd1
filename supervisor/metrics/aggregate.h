// Counters of two looks as the messages of proto/metrics.proto.
#pragma once

#include "supervisor/metrics/history.h"
#include "supervisor/metrics/texts.h"

namespace ringfeed {
class DataLoaderConfig;
class DataLoaderMetricsProto;
class MetricsReply;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::metrics {

// What is known of a feed beside its numbers.
struct FeedFacts {
  const DataLoaderConfig& config;
  const PipelinePlan& plan;
  const layout::FeedLayout& layout;
  const FeedShape& shape;
  const CounterTable& counters;
  const Texts& texts;
};

// Everything since the feed's beginning.
void fill_total(const FeedFacts& facts, const History& history, DataLoaderMetricsProto& metrics);
// What was added since look `begin`.
void fill_window(const FeedFacts& facts, const History& history, std::size_t begin,
                 DataLoaderMetricsProto& metrics);
// The totals and the windows of 1, 10 and 60 seconds.
void fill_metrics(const FeedFacts& facts, const History& history, MetricsReply& reply);

}  // namespace ringfeed::metrics
