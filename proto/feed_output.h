// The output settings of a feed, also where its configuration says nothing about them.
#pragma once

#include "proto/config.pb.h"

namespace ringfeed {

// The i-th feed_output; the defaults if there are not so many.
[[nodiscard]] inline const FeedOutputConfig& output_settings(const DataLoaderConfig& config,
                                                             int i = 0) {
  return i >= 0 && i < config.feed_output_size() ? config.feed_output(i)
                                                 : FeedOutputConfig::default_instance();
}

// Do consuming lanes take turns (FeedOutputConfig.dispatch)? One answer for the whole feed.
[[nodiscard]] inline bool ordered_dispatch(const DataLoaderConfig& config) {
  return output_settings(config).dispatch() == FeedOutputConfig::ORDERED;
}

}  // namespace ringfeed
