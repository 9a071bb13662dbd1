// Counters of two looks as the messages of proto/metrics.proto.
#pragma once

#include <map>
#include <string>

#include "supervisor/metrics/history.h"

namespace ringfeed {
class DataLoaderConfig;
class DataLoaderMetricsProto;
class MetricsReply;
class PipelinePlan;
}  // namespace ringfeed

namespace ringfeed::metrics {

// What does not change while a feed runs.
struct FeedFacts {
  const DataLoaderConfig& config;
  const PipelinePlan& plan;
  const layout::FeedLayout& layout;
  const FeedShape& shape;
  const CounterTable& counters;
};

// The sort key that a pool's chunks are counted from, by the pool's name; unknown: not there.
using Anchors = std::map<std::string, std::string>;

// Everything since the feed's beginning.
void fill_total(const FeedFacts& facts, const History& history, const Anchors& anchors,
                DataLoaderMetricsProto& metrics);
// What was added since look `begin`.
void fill_window(const FeedFacts& facts, const History& history, const Anchors& anchors,
                 std::size_t begin, DataLoaderMetricsProto& metrics);
// The totals and the windows of 1, 10 and 60 seconds.
void fill_metrics(const FeedFacts& facts, const History& history, const Anchors& anchors,
                  MetricsReply& reply);

}  // namespace ringfeed::metrics
