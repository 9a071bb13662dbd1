// What a stage counts. A kind of stage declares each counter once (StageType::counters). Everything
// that shows counters follows from that: `ringfeed metrics` and `ringfeed status`, the kind of each
// number (does it only grow?), its capacity, and the sentence that says what it counts.
//
//   type.counters = {
//       {"rows", "Rows written to batches."},
//       {"frames_held", "Frames in the reservoirs.", kGauge},
//   };
//
// A stage asks for its counters by name when it is made (StageContext::counter). A name that is not
// declared is a bug, and ends the process. Declared counters that no lane asks for are not shown.
//
// The declarations are part of the plan (proto/plan.proto), so the supervisor itself knows no
// counter. If a worker of another version has a counter that the plan lacks, it is shown all the
// same, as one that only grows.
#pragma once

#include <string>
#include <vector>

namespace ringfeed {

enum class CounterKind {
  kCounter,  // only grows, over all lives of a lane; a window has what was added in it
  kGauge,    // may fall; a window has its latest value
};
using enum CounterKind;

// The most that a gauge can be: a setting of the stage.
struct CounterCapacity {
  std::string setting;        // a field of the stage's configuration, a number; "": no capacity
  std::string shown_as = {};  // what metrics call it; "": as the setting
  bool each_lane = false;     // the limit of each lane, not of the stage
};

struct CounterSpec {
  std::string name;  // at most 39 bytes
  std::string help;  // a sentence: what is counted, and its unit unless it is a number of things
  CounterKind kind = kCounter;
  std::string shown_as = {};  // what metrics call it; "": as its name
  CounterCapacity capacity = {};
  // The counters of the stage whose sum this is. No lane counts it; it is shown if one of them is.
  std::vector<std::string> sum_of = {};
  // In the JSON of metrics the stage's counters are members of an object. A counter whose name
  // comes from the configuration, or that says little about the stage, is in the list
  // `other_counters` instead.
  bool listed = false;
};

// A text that metrics show beside the counters. It is what the supervisor last heard: in an answer
// to a message, or before that from the configuration. It is absent if another supervisor has taken
// over the feed since.
struct MetricText {
  std::string name;
  std::string help;
  std::string setting;  // a field of the stage's configuration, a string
  std::string answer;   // its field in a StageControlResponse: "chunk_pool_response.chunk_anchor"
};

}  // namespace ringfeed
