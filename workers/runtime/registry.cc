#include "workers/runtime/registry.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "proto/batch.pb.h"
#include "proto/config.pb.h"
#include "proto/kinds.pb.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/abi.h"
#include "ringfeed/shm/arena.h"
#include "ringfeed/worker/batch.h"
#include "ringfeed/worker/plugin.h"
#include "workers/runtime/lane.h"
#include "workers/runtime/links.h"
#include "workers/runtime/plugin.h"

namespace ringfeed {

void Registry::add(StageType type) {
  RF_CHECK(find(type.kind) == nullptr, types_.size());
  types_.push_back(std::move(type));
}

namespace {

const StageType* named(const std::vector<StageType>& types, std::string_view kind) noexcept {
  const auto found = std::ranges::find(types, kind, &StageType::kind);
  return found == types.end() ? nullptr : &*found;
}

}  // namespace

void Registry::add_plugin(StageType type) {
  if (const std::string fault = fault_of_plugin(type); !fault.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fault);
  }
  if (named(plugins_, type.kind) != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is registered twice: give one of them another name", type.kind));
  }
  plugins_.push_back(std::move(type));
}

const StageType* Registry::find(std::string_view kind) const noexcept {
  return named(types_, kind);
}

const StageType* Registry::of(const StageConfig& config) const noexcept {
  const std::string kind = stage_kind(config);
  return kind == kPluginField ? named(plugins_, config.plugin().kind()) : find(kind);
}

std::string stage_kind(const StageConfig& config) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  config.GetReflection()->ListFields(config, &fields);
  std::string kind;
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!kind.empty()) return "";
    kind = field->name();
  }
  return kind;
}

const google::protobuf::Message& settings_of(const StageConfig& config) {
  const auto* const field = config.GetDescriptor()->FindFieldByName(stage_kind(config));
  RF_CHECK(field != nullptr);
  return config.GetReflection()->GetMessage(config, field);
}

std::vector<CounterSpec> counters_of(const StageType& type, const StageConfig& config) {
  std::vector<CounterSpec> counters = type.counters;
  if (type.more_counters) type.more_counters(config, counters);
  return counters;
}

std::vector<std::string> counter_names(const StageType& type, const StageConfig& config) {
  std::vector<std::string> names;
  for (const CounterSpec& counter : counters_of(type, config)) {
    if (counter.sum_of.empty()) names.push_back(counter.name);
  }
  return names;
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field of the stage's own configuration.
const FieldDescriptor* setting_of(const Message& own, const std::string& name,
                                  FieldDescriptor::CppType type) {
  const FieldDescriptor* const field = own.GetDescriptor()->FindFieldByName(name);
  RF_CHECK(field != nullptr && field->cpp_type() == type && !field->is_repeated());
  return field;
}

// A plug-in's option that is a number. What is below 0 is no capacity.
std::uint64_t whole_option(const StageType& type, const StageConfig& config,
                           const std::string& name) {
  const auto option = std::ranges::find(type.options, name, &OptionSpec::name);
  RF_CHECK(option != type.options.end(), type.options.size());
  const auto* const otherwise = std::get_if<std::int64_t>(&option->otherwise);
  const Option<std::int64_t> whole{
      .name = name, .help = "", .otherwise = otherwise ? *otherwise : 0};
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, plugin_settings(config).options.get(whole)));
}

void plan_counters(const StageType& type, const StageConfig& config, StagePlan& out) {
  const Message& own = settings_of(config);
  const auto add = [&](const CounterSpec& counter) {
    CounterPlan& to = *out.add_counters();
    to.set_name(counter.name);
    to.set_help(counter.help);
    if (counter.kind == kGauge) to.set_gauge(true);
    if (!counter.shown_as.empty()) to.set_shown_as(counter.shown_as);
    for (const std::string& part : counter.sum_of) to.add_sum_of(part);
    if (counter.listed) to.set_listed(true);
    const CounterCapacity& capacity = counter.capacity;
    if (capacity.setting.empty()) return;
    if (config.has_plugin()) {
      to.set_capacity(whole_option(type, config, capacity.setting));
    } else {
      const FieldDescriptor* const field =
          setting_of(own, capacity.setting, FieldDescriptor::CPPTYPE_UINT64);
      if (!own.GetReflection()->HasField(own, field) && !field->has_default_value()) return;
      to.set_capacity(own.GetReflection()->GetUInt64(own, field));
    }
    to.set_capacity_shown_as(capacity.shown_as.empty() ? capacity.setting : capacity.shown_as);
    if (capacity.each_lane) to.set_capacity_each_lane(true);
  };
  for (const CounterSpec& counter : counters_of(type, config)) add(counter);
  for (const CounterSpec& counter : LaneRuntime::own_counters()) add(counter);
  for (const MetricText& text : type.texts) {
    TextPlan& to = *out.add_texts();
    to.set_name(text.name);
    to.set_help(text.help);
    to.set_answer(text.answer);
    to.set_configured(own.GetReflection()->GetString(
        own, setting_of(own, text.setting, FieldDescriptor::CPPTYPE_STRING)));
  }
}

// What the stage says of the port, for `ringfeed check`.
void plan_facts(const PortFacts& said, PortPlan& port) {
  const auto found = said.find(port.name());
  if (found == said.end()) return;
  for (const auto& [name, text] : found->second.texts()) {
    if (text.empty()) continue;
    FactPlan& fact = *port.add_facts();
    fact.set_name(name);
    fact.set_text(text);
  }
}

void plan_node(const NodeSpec& node, NodePlan& to) {
  to.set_name(node.name);
  to.set_lanes(node.lanes);
  to.set_lanes_max(node.lanes_max);
  to.set_arena_bytes(node.state_bytes);
  to.set_arena_bytes_max(node.state_bytes_max);
  to.set_state_version(node.state_version);
  to.set_weight(node.weight);
  if (node.redraws) to.set_redraws(true);
  if (node.begins_anywhere) to.set_begins_anywhere(true);
  if (!node.steered_counter.empty()) to.set_steered_counter(node.steered_counter);
  to.set_private_bytes(node.private_bytes);
  if (!node.program.empty()) to.set_program(node.program);
  if (node.process_per_lane) to.set_process_per_lane(true);
  if (node.warm_parent) to.set_warm_parent(true);
  if (!node.parent_socket.empty()) to.set_parent_socket(node.parent_socket);
  if (!node.more_lanes.empty()) to.set_more_lanes(std::string(node.more_lanes));
  if (!node.on_request.empty()) to.set_on_request(std::string(node.on_request));
  if (!node.if_slow.empty()) to.set_if_slow(std::string(node.if_slow));
  if (!node.create) to.set_cannot_run(true);
  for (const InputSpec& input : node.inputs) {
    NodeInput& port = *to.add_inputs();
    port.set_port(input.port);
    port.set_from(input.from);
    port.set_block(input.block);
  }
  for (const OutputSpec& output : node.outputs) {
    NodeOutput& port = *to.add_outputs();
    port.set_port(output.port);
    port.set_record_type(output.record_type);
    port.set_exported(output.exported);
    port.set_queue_capacity(output.queue_capacity);
    port.set_queue_bytes(shm::align_up(output.queue_bytes, shm::kPageBytes));
    port.set_overflow(static_cast<OverflowBehavior>(output.overflow));
  }
}

void plan_stage(const PipelineLinks& links, int number, const StageType& type, StagePlan& out) {
  const StageView stage = links.view(number);
  for (const PortSpec& port : links.inputs(number)) {
    PortPlan& to = *out.add_inputs();
    to.set_name(port.name);
    to.set_record_type(port.record_type);
    if (!port.from.empty()) to.set_from(port.from);
    plan_facts(links.wishes(number), to);
  }
  for (const PortSpec& port : links.outputs(number)) {
    PortPlan& to = *out.add_outputs();
    to.set_name(port.name);
    to.set_record_type(port.record_type);
    plan_facts(links.facts(number), to);
  }
  for (const std::string& request : type.answers) out.add_answers(request);
  std::vector<Problem> problems;
  std::vector<NodeSpec> nodes;
  const bool plugged = stage.config.has_plugin();
  if (plugged) problems = plugin_problems(type, stage.config);
  // Options that are wrong are no matter for the stage itself.
  if (type.problems && problems.empty()) problems = type.problems(stage);
  if (plugged && std::ranges::all_of(problems, &Problem::warning)) {
    nodes = type.nodes(stage);
    const std::vector<Problem> of_lanes = lane_problems(stage.config, nodes);
    problems.insert(problems.end(), of_lanes.begin(), of_lanes.end());
    if (type.batch_layout) plan_batches(type.batch_layout(stage), problems, *out.mutable_batch());
  }
  if (!problems.empty()) {
    const bool runs = std::ranges::all_of(problems, &Problem::warning);
    for (const Problem& problem : problems) {
      // Of a stage that cannot run, what it might do without is no matter yet.
      if (problem.warning && !runs) continue;
      PlanProblem& to = *out.add_problems();
      to.set_field(problem.field);
      to.set_text(problem.text);
    }
    if (!runs) return;
  }
  if (!plugged) nodes = type.nodes(stage);
  for (const NodeSpec& node : nodes) {
    plan_node(node, *out.add_nodes());
    if (plugged) out.mutable_nodes(out.nodes_size() - 1)->set_no_other_program(true);
  }
  plan_counters(type, stage.config, out);
  if (type.look) out.set_looks_at_data(true);
  if (type.batch) type.batch(stage, *out.mutable_batch());
}

PlanProblem unknown_plugin(const StageConfig& stage, const Registry& registry) {
  const std::string& kind = stage.plugin().kind();
  std::string known;
  for (const StageType& type : registry.plugins()) known += (known.empty() ? "" : ", ") + type.kind;
  PlanProblem problem;
  problem.set_field(fmt::format("{}.kind", kPluginField));
  if (kind.empty()) {
    problem.set_text(fmt::format("kind is missing; give the name of a plug-in's stage{}{}",
                                 known.empty() ? "" : ": ", known));
  } else if (known.empty()) {
    problem.set_text(
        fmt::format("kind is \"{}\", a plug-in's stage, and this worker has none; give the plug-in "
                    "that has it with --worker PATH, or worker: \"PATH\"",
                    kind));
  } else {
    problem.set_text(fmt::format(
        "kind is \"{}\", which this plug-in does not have; it has {}: give one of them, or the "
        "plug-in that has it with --worker PATH",
        kind, known));
  }
  return problem;
}

}  // namespace

PipelinePlan plan_pipeline(const DataLoaderConfig& config, const Registry& registry) {
  PipelinePlan plan;
  plan.set_worker_version(RINGFEED_VERSION);
  plan.set_abi(shm::kAbiMajor);
  const PipelineLinks links(config, registry);
  for (int number = 0; number < config.stages_size(); ++number) {
    StagePlan& out = *plan.add_stages();
    out.set_name(config.stages(number).name());
    const StageConfig& stage = config.stages(number);
    out.set_kind(stage_kind(stage));
    if (out.kind() == kPluginField) out.set_plugin(stage.plugin().kind());
    if (const StageType* const type = registry.of(stage)) {
      plan_stage(links, number, *type, out);
    } else if (out.kind() == kPluginField) {
      // Nothing is known of its ports, so that nothing else is to be said of them.
      out.clear_kind();
      *out.add_problems() = unknown_plugin(stage, registry);
    } else if (!out.kind().empty()) {
      PlanProblem& problem = *out.add_problems();
      problem.set_text(
          fmt::format("this worker has no stage of kind {}; use a worker that has", out.kind()));
    }
  }
  return plan;
}

DataLooks look_at_data(const DataLoaderConfig& config, const Registry& registry) {
  DataLooks looks;
  const PipelineLinks links(config, registry);
  for (int number = 0; number < config.stages_size(); ++number) {
    const StageType* const type = registry.of(config.stages(number));
    if (type == nullptr || !type->look) continue;
    const StageView stage = links.view(number);
    // What a stage refuses is no setting to read data by.
    if (type->problems && !std::ranges::all_of(type->problems(stage), &Problem::warning)) continue;
    const std::optional<DataLook> look = type->look(stage);
    if (!look) continue;
    DataLookPlan& to = *looks.add_looks();
    to.set_stage(static_cast<std::uint32_t>(number));
    to.set_files(look->files);
    to.set_files_are_more(look->files_are_more);
    to.set_files_passed_over(look->files_passed_over);
    to.set_files_looked_at(look->files_looked_at);
    to.set_samples(look->samples);
    to.set_samples_left_out(look->samples_left_out);
    for (const Problem& warning : look->warnings) {
      PlanProblem& problem = *to.add_warnings();
      problem.set_field(warning.field);
      problem.set_text(warning.text);
    }
  }
  return looks;
}

DataLoaderConfig example_of(const StageType& type) {
  DataLoaderConfig config;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(type.example.text, &config);
  RF_CHECK(parsed && config.stages_size() > 0, type.example.text.size());
  return config;
}

KindList list_kinds(const Registry& registry) {
  KindList list;
  list.set_worker_version(RINGFEED_VERSION);
  const auto add_ports = [](const std::vector<PortSpec>& ports, auto& to) {
    for (const PortSpec& port : ports) {
      PortPlan& added = *to.Add();
      added.set_name(port.name);
      added.set_record_type(port.record_type);
    }
  };
  const auto add_kind = [&](const StageType& type, bool plugged) {
    StageKind& kind = *list.add_kinds();
    kind.set_kind(type.kind);
    if (plugged) describe_plugin(type, kind);
    add_ports(type.inputs, *kind.mutable_inputs());
    add_ports(type.outputs, *kind.mutable_outputs());
    if (type.more_ports) kind.set_more_ports(true);
    if (type.example.text.empty()) {
      for (const CounterSpec& counter : plugged ? type.counters : std::vector<CounterSpec>()) {
        CounterPlan& to = *kind.add_counters();
        to.set_name(counter.name);
        to.set_help(counter.help);
        if (counter.kind == kGauge) to.set_gauge(true);
        if (!counter.shown_as.empty()) to.set_shown_as(counter.shown_as);
      }
      return;
    }
    kind.mutable_example()->set_text(type.example.text);
    kind.mutable_example()->set_maker(type.example.maker);
    const PipelinePlan plan = plan_pipeline(example_of(type), registry);
    for (const StagePlan& stage : plan.stages()) {
      if ((plugged ? stage.plugin() : stage.kind()) != type.kind) continue;
      for (const CounterPlan& counter : stage.counters()) {
        const auto of_runtime = [&counter](const CounterSpec& own) {
          return own.name == counter.name();
        };
        if (std::ranges::any_of(LaneRuntime::own_counters(), of_runtime)) continue;
        *kind.add_counters() = counter;
      }
      for (const NodePlan& node : stage.nodes()) {
        if (node.has_program()) kind.set_program(node.program());
      }
    }
  };
  for (const StageType& type : registry.types()) add_kind(type, false);
  // Every worker has what all plug-ins' stages have in common.
  describe_plugins(*list.add_kinds());
  for (const StageType& type : registry.plugins()) add_kind(type, true);
  return list;
}

namespace {

std::string shown_kind(const StageConfig& config) {
  std::string kind = stage_kind(config);
  return kind == kPluginField ? config.plugin().kind() : kind;
}

}  // namespace

NodeSpec find_node(const StageView& stage, const Registry& registry, std::string_view node) {
  const StageType* type = registry.of(stage.config);
  if (type != nullptr) {
    for (NodeSpec& spec : type->nodes(stage)) {
      if (spec.name == node) return std::move(spec);
    }
  }
  throw Error(ErrorCode::kConfiguration,
              fmt::format("stage '{}': this worker has no part '{}' of a {}; supervisor and worker "
                          "must have the same version",
                          stage.config.name(), node, shown_kind(stage.config)));
}

std::unique_ptr<Stage> create_stage(const NodeSpec& node, const StageContext& context) {
  if (!node.create) {
    throw Error(ErrorCode::kConfiguration,
                fmt::format("stage '{}': this program cannot run a {}; {} can", context.stage,
                            shown_kind(context.config), node.program));
  }
  return node.create(context);
}

}  // namespace ringfeed
