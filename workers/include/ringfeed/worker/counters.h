// What a stage counts. A kind of stage declares each counter once (StageType::counters), and all
// that shows counters follows from that: `ringfeed metrics` and `ringfeed status`, the kind of a
// number (does it only grow?), its capacity, and the sentence that says what it counts.
//
//   type.counters = {
//       {"rows", "Rows written to batches."},
//       {"frames_held", "Frames in the reservoirs.", kGauge},
//   };
//
// A stage asks for its counters by name when it is made (StageContext::counter); one that is not
// declared is a bug, and ends the process. Declared ones that no lane asks for are not shown.
//
// The declarations are part of the plan (proto/plan.proto), so the supervisor knows no counter by
// itself. A counter that a worker of another version has, and the plan has not, is shown all the
// same, as one that only grows.
#pragma once

#include <string>
#include <vector>

namespace ringfeed {

enum class CounterKind {
  kCounter,  // only grows, over all lives of a lane: over a window, what was added in it
  kGauge,    // may fall: over a window, too, its latest value
};
using enum CounterKind;

// What a gauge can be at most: a setting of the stage.
struct CounterCapacity {
  std::string setting;        // a field of the stage's configuration, a number; "": no capacity
  std::string shown_as = {};  // what metrics call it; "": as the setting
  bool each_lane = false;     // and not of the whole stage
};

struct CounterSpec {
  std::string name;  // at most 39 bytes
  std::string help;  // a sentence: what is counted, and its unit unless it is a number of things
  CounterKind kind = kCounter;
  std::string shown_as = {};  // what metrics call it; "": as its name
  CounterCapacity capacity = {};
  // Counters of the stage whose sum this is. No lane counts it: it is shown where one of them is.
  std::vector<std::string> sum_of = {};
  // In the JSON of metrics the stage's counters are members of an object. One whose name comes from
  // the configuration, or says little about the stage, is in the list `other_counters` instead.
  bool listed = false;
};

// A text that metrics show beside the counters, as the supervisor has heard it last: with an answer
// to a message, before that from the configuration; not there if the feed was taken over since.
struct MetricText {
  std::string name;
  std::string help;
  std::string setting;  // a field of the stage's configuration, a string
  std::string answer;   // where it is in a StageControlResponse: "chunk_pool_response.chunk_anchor"
};

}  // namespace ringfeed
