// Plans as a worker would make them, and configurations to go with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "supervisor/config/check.h"

namespace ringfeed::config {

// The plan of any configuration of Lc0 stages: ports and record types by kind, lanes by `threads`,
// weights chosen for games of 90 positions at sampling rate 1. A stage without a kind, or with
// two, gets an empty plan.
PipelinePlan lc0_plan(const DataLoaderConfig& config);

// A whole configuration in text format that is right: the six stages, from provider to tensors.
// Beginning on line 1, one stage a line.
std::string lc0_text();
// The same with one piece of the text replaced by another one; the piece must occur, once.
std::string lc0_text_with(std::string_view from, std::string_view to);

// What `ringfeed check` would say about a text, each problem with its place: read, planned,
// checked. The source is called "lc0.textproto" or, for JSON, "lc0.json".
std::vector<std::string> messages(std::string_view text,
                                  const std::vector<std::string>& overrides = {});

// The same as an object, for tests that look at more than messages.
struct CheckedText {
  Configuration configuration;
  PipelinePlan plan;
  Checked checked;
};
CheckedText checked_text(std::string_view text, const std::vector<std::string>& overrides = {});

}  // namespace ringfeed::config
