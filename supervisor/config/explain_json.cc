#include <nlohmann/json.hpp>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "supervisor/config/check.h"
#include "supervisor/config/explain.h"
#include "supervisor/config/fields.h"

namespace ringfeed::config {
namespace {

using Json = nlohmann::ordered_json;

Json facts_json(const PortPlan& port) {
  Json facts = Json::object();
  for (const FactPlan& fact : port.facts()) facts[fact.name()] = fact.text();
  return facts;
}

Json stage_json(int stage, const DataLoaderConfig& config, const PipelinePlan& plan,
                const Wiring& wiring) {
  const StagePlan& planned = plan.stages(stage);
  Json out{{"name", config.stages(stage).name()}, {"kind", shown_kind(planned)}};
  for (const NodePlan& node : planned.nodes()) {
    out["nodes"].push_back({{"name", node.name()},
                            {"lanes", node.lanes()},
                            {"lanes_max", std::max(node.lanes(), node.lanes_max())}});
  }
  out["inputs"] = Json::array();
  for (const Edge& edge : wiring.edges) {
    if (edge.to_stage != stage) continue;
    out["inputs"].push_back({{"name", edge.to_port},
                             {"record_type", edge.record_type},
                             {"from_stage", config.stages(edge.from_stage).name()},
                             {"from_output", edge.from_port}});
  }
  for (Json& input : out["inputs"]) {
    for (const PortPlan& port : planned.inputs()) {
      if (port.name() == input["name"]) input["wishes"] = facts_json(port);
    }
  }
  out["outputs"] = Json::array();
  for (const PortPlan& port : planned.outputs()) {
    out["outputs"].push_back(
        {{"name", port.name()}, {"record_type", port.record_type()}, {"facts", facts_json(port)}});
  }
  return out;
}

Json batches_json(const BatchesPort& output, const DataLoaderConfig& config,
                  const PipelinePlan& plan) {
  const FeedOutputConfig& settings = output_settings(config, output.settings);
  const BatchSchema& schema = plan.stages(output.stage).batch();
  Json out{{"alias", settings.alias()},
           {"stage", config.stages(output.stage).name()},
           {"output", output.port},
           {"dispatch", FeedOutputConfig::Dispatch_Name(settings.dispatch())},
           {"rows_max", schema.rows_max()},
           {"bytes", schema.slot_bytes()},
           {"slots", slot_count(config, output)},
           {"keeps_newest", output.keep_newest}};
  for (const TensorSpec& tensor : schema.tensors()) {
    // -1: the rows of the batch; below: the first, second and so on of the lengths that vary.
    out["tensors"].push_back(
        {{"name", tensor.name()}, {"dtype", tensor.dtype()}, {"shape", tensor.shape()}});
  }
  out["groups"] = Json::array();
  for (const ConsumerGroupConfig& group : settings.groups()) {
    out["groups"].push_back(
        {{"name", group.name()},
         {"kind", ConsumerGroupConfig::Kind_Name(group.kind())},
         {"world", group.world()},
         {"policy", ConsumerGroupConfig::Policy_Name(output.keep_newest ? ConsumerGroupConfig::SKIP
                                                                        : group.policy())}});
  }
  return out;
}

}  // namespace

Json explain_json(const DataLoaderConfig& config, const PipelinePlan& plan, const Wiring& wiring,
                  std::span<const StageGroup> groups, std::span<const MemoryPart> memory) {
  Json out{{"feed", config.feed()},
           {"epochs", config.epochs()},
           {"from_batch", config.from_batch()},
           {"drop_remainder", config.drop_remainder()}};
  out["seed"] = config.has_seed() ? Json(config.seed()) : Json();
  out["groups"] = Json::array();
  for (const StageGroup& group : groups) {
    Json& added = out["groups"].emplace_back(Json{{"name", group.name}});
    for (const int stage : group.stages) {
      added["stages"].push_back(stage_json(stage, config, plan, wiring));
    }
  }
  out["batches"] = Json::array();
  for (const BatchesPort& output : wiring.outputs) {
    out["batches"].push_back(batches_json(output, config, plan));
  }
  std::uint64_t sum = 0;
  out["memory"] = Json::array();
  for (const MemoryPart& part : memory) {
    sum += part.bytes;
    out["memory"].push_back({{"part", part.part}, {"bytes", part.bytes}});
  }
  out["memory_bytes"] = sum;
  return out;
}

Json looks_json(const DataLoaderConfig& config, const DataLooks& looks) {
  Json out = Json::array();
  for (const DataLookPlan& look : looks.looks()) {
    out.push_back({{"stage", config.stages(static_cast<int>(look.stage())).name()},
                   {"files", look.files()},
                   {"files_are_more", look.files_are_more()},
                   {"files_passed_over", look.files_passed_over()},
                   {"files_looked_at", look.files_looked_at()},
                   {"samples", look.samples()},
                   {"samples_left_out", look.samples_left_out()}});
  }
  return out;
}

Json problems_json(std::span<const Problem> problems) {
  Json out = Json::array();
  for (const Problem& problem : problems) {
    out.push_back({{"file", problem.place.source},
                   {"line", problem.place.line},
                   {"column", problem.place.column},
                   {"stage", problem.stage},
                   {"path", problem.path},
                   {"text", problem.text}});
  }
  return out;
}

}  // namespace ringfeed::config
