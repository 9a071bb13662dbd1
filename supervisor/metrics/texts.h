// Texts that metrics show beside the counters of a stage (TextPlan in proto/plan.proto), for
// instance the anchor of a pool: as last heard of.
#pragma once

#include <map>
#include <string>
#include <utility>

namespace ringfeed {
class PipelinePlan;
class StageControlAnswer;
class StageMetricProto;
class StagePlan;
}  // namespace ringfeed

namespace ringfeed::metrics {

class Texts {
 public:
  // What a new feed begins with.
  void take_configured(const PipelinePlan& plan);
  // A stage's answer to a message, which may have one in it.
  void take_answer(const PipelinePlan& plan, const StageControlAnswer& answer);
  // Those of a stage that are known.
  void fill(const StagePlan& stage, StageMetricProto& metrics) const;

 private:
  std::map<std::pair<std::string, std::string>, std::string> texts_;  // by stage and name
};

}  // namespace ringfeed::metrics
