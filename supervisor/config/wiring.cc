#include "supervisor/config/wiring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/lane_page.h"
#include "ringfeed/shm/result.h"
#include "supervisor/config/fields.h"
#include "supervisor/config/names.h"

namespace ringfeed::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr std::string_view kBatches = "batches";
constexpr std::string_view kDefaultPort = "output";

// A string field of a stage's configuration that wires an input port.
struct Reference {
  std::string text;  // "stage" or "stage.port"
  std::string path;
};

const PortPlan* find_port(const google::protobuf::RepeatedPtrField<PortPlan>& ports,
                          std::string_view name) {
  const auto found = std::find_if(ports.begin(), ports.end(),
                                  [name](const PortPlan& port) { return port.name() == name; });
  return found == ports.end() ? nullptr : &*found;
}

std::vector<std::string> port_names(const google::protobuf::RepeatedPtrField<PortPlan>& ports) {
  std::vector<std::string> names;
  for (const PortPlan& port : ports) names.push_back(port.name());
  return names;
}

class Wirer {
 public:
  Wirer(const DataLoaderConfig& config, const PipelinePlan& plan, const Places& places,
        std::vector<Problem>& problems)
      : config_(config), plan_(plan), places_(places), problems_(problems) {}

  Wiring wire() {
    for (int i = 0; i < config_.stages_size(); ++i) {
      const std::string& name = config_.stages(i).name();
      if (name.empty()) continue;
      if (by_name_.try_emplace(name, i).second) {
        names_.push_back(name);
      } else {
        duplicates_.insert(i);
      }
    }
    for (int i = 0; i < config_.stages_size(); ++i) {
      if (usable(i)) wire_inputs(i);
    }
    find_batches();
    report_unread();
    sort_stages();
    return std::move(wiring_);
  }

 private:
  [[nodiscard]] bool usable(int stage) const { return !plan_.stages(stage).kind().empty(); }
  [[nodiscard]] std::string label(int stage) const {
    return stage_label(config_, stage_path(stage));
  }

  void problem(int stage, const std::string& path, std::string text) {
    problems_.push_back(
        {places_.find(path), stage < 0 ? std::string() : label(stage), std::move(text), path});
  }

  void wire_inputs(int stage) {
    for (const PortPlan& port : plan_.stages(stage).inputs()) {
      const std::vector<Reference> references = references_of(stage, port);
      if (references.empty()) {
        unresolved_types_.insert(port.record_type());
        report_missing(stage, port);
      }
      for (const Reference& reference : references) connect(stage, port, reference);
    }
  }

  // What the configuration says about an input port: the string field of its name, or, of a port
  // "name[2]", the third element of the repeated field `name`, whose first is also "name"; unless
  // the plan says it itself.
  std::vector<Reference> references_of(int stage, const PortPlan& planned) {
    const std::string& port = planned.name();
    const std::string path =
        fmt::format("{}.{}.{}", stage_path(stage), plan_.stages(stage).kind(), port);
    if (planned.has_from()) return {{planned.from(), path}};
    const std::string& kind = plan_.stages(stage).kind();
    const FieldDescriptor* kind_field = StageConfig::descriptor()->FindFieldByName(kind);
    const std::size_t bracket = port.find('[');
    const FieldDescriptor* field =
        kind_field == nullptr || kind_field->message_type() == nullptr
            ? nullptr
            : kind_field->message_type()->FindFieldByName(port.substr(0, bracket));
    const bool one_of_many = bracket != std::string::npos;
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING ||
        (one_of_many && !field->is_repeated())) {
      throw Error(
          ErrorCode::kIncompatible,
          fmt::format("the worker plans stage '{}' as {} with an input port '{}', which the "
                      "configuration of this supervisor does not have; install both from one build",
                      label(stage), kind, port));
    }
    const Message& stage_config = config_.stages(stage);
    const Message& message = stage_config.GetReflection()->GetMessage(stage_config, kind_field);
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    std::string text;
    if (field->is_repeated()) {
      const int i = one_of_many ? std::atoi(port.c_str() + bracket + 1) : 0;
      if (i < reflection.FieldSize(message, field)) {
        text = reflection.GetRepeatedString(message, field, i);
      }
    } else {
      text = reflection.GetString(message, field);
    }
    if (text.empty()) return {};
    return {{std::move(text), path}};
  }

  void report_missing(int stage, const PortPlan& port) {
    const std::string path =
        fmt::format("{}.{}.{}", stage_path(stage), plan_.stages(stage).kind(), port.name());
    std::vector<std::string> sources;
    for (int i = 0; i < plan_.stages_size(); ++i) {
      for (const PortPlan& output : plan_.stages(i).outputs()) {
        if (i != stage && output.record_type() == port.record_type()) {
          sources.push_back(output.name() == kDefaultPort
                                ? label(i)
                                : fmt::format("{}.{}", label(i), output.name()));
        }
      }
    }
    problem(
        stage, path,
        fmt::format("{} is missing; {}", port.name(),
                    sources.empty() ? fmt::format("add a stage that outputs {}, and name it here",
                                                  port.record_type())
                                    : fmt::format("name the stage that outputs {}: {}",
                                                  port.record_type(), listed(sources))));
  }

  void connect(int stage, const PortPlan& port, const Reference& reference) {
    const std::string_view text = reference.text;
    const std::size_t dot = text.find('.');
    const std::string producer_name(text.substr(0, dot));
    auto found = by_name_.find(producer_name);
    if (found == by_name_.end()) {
      problem(stage, reference.path,
              fmt::format("{} is \"{}\", but there is no stage '{}'{}", port.name(), text,
                          producer_name, did_you_mean(producer_name, names_, "there are")));
      found = by_name_.find(std::string(nearest_name(producer_name, names_)));
      if (found == by_name_.end()) {
        unresolved_types_.insert(port.record_type());
        return;
      }
    }
    const int producer = found->second;
    if (!usable(producer)) return;  // what it has is not known; that has been reported
    const StagePlan& planned = plan_.stages(producer);
    const std::optional<std::string> asked = dot == std::string_view::npos
                                                 ? std::nullopt
                                                 : std::optional<std::string>(text.substr(dot + 1));
    const PortPlan* output = find_port(planned.outputs(), asked ? *asked : kDefaultPort);
    if (output == nullptr && !asked && planned.outputs_size() == 1) output = &planned.outputs(0);
    if (output == nullptr) {
      report_no_port(stage, port, reference, producer, asked);
      if (planned.outputs_size() == 1) read_.insert({producer, planned.outputs(0).name()});
      unresolved_types_.insert(port.record_type());
      return;
    }
    if (output->record_type() != port.record_type()) {
      report_type(stage, port, reference, producer, *output);
      read_.insert({producer, output->name()});
      unresolved_types_.insert(port.record_type());
      return;
    }
    read_.insert({producer, output->name()});
    const auto reader =
        std::find_if(wiring_.edges.begin(), wiring_.edges.end(), [&](const Edge& edge) {
          return edge.from_stage == producer && edge.from_port == output->name();
        });
    if (reader != wiring_.edges.end()) {
      problem(stage, reference.path,
              fmt::format("{}.{} is already read by stage '{}'; an output feeds only one input: "
                          "read another output, or put one stage after the other",
                          label(producer), output->name(), label(reader->to_stage)));
      return;
    }
    wiring_.edges.push_back(
        {producer, output->name(), stage, port.name(), port.record_type(), port.has_from()});
  }

  void report_no_port(int stage, const PortPlan& port, const Reference& reference, int producer,
                      const std::optional<std::string>& asked) {
    const std::vector<std::string> names = port_names(plan_.stages(producer).outputs());
    std::string text;
    if (names.empty()) {
      text = fmt::format("stage '{}' has no output", label(producer));
    } else if (asked) {
      text = fmt::format("stage '{}' has no output '{}'{}", label(producer), *asked,
                         did_you_mean(*asked, names, "it has"));
    } else {
      text = fmt::format("stage '{0}' has several outputs; write {0}.PORT with one of {1}",
                         label(producer), listed(names));
    }
    problem(stage, reference.path,
            fmt::format("{} is \"{}\", but {}", port.name(), reference.text, text));
  }

  void report_type(int stage, const PortPlan& port, const Reference& reference, int producer,
                   const PortPlan& output) {
    std::vector<std::string> fitting;
    for (int i = 0; i < plan_.stages_size(); ++i) {
      for (const PortPlan& candidate : plan_.stages(i).outputs()) {
        if (i != stage && candidate.record_type() == port.record_type()) {
          fitting.push_back(fmt::format("{}.{}", label(i), candidate.name()));
        }
      }
    }
    problem(stage, reference.path,
            fmt::format("{}.{} carries {}, {}.{} takes {}; {}", label(producer), output.name(),
                        output.record_type(), label(stage), port.name(), port.record_type(),
                        fitting.empty()
                            ? fmt::format("add a stage that outputs {}", port.record_type())
                            : fmt::format("{} come from {}", port.record_type(), listed(fitting))));
  }

  // The outputs of batches that no stage reads are the feed's.
  void find_batches() {
    for (int i = 0; i < plan_.stages_size(); ++i) {
      for (const PortPlan& output : plan_.stages(i).outputs()) {
        if (output.record_type() != kBatches || read_.contains({i, output.name()})) continue;
        if (duplicates_.contains(i)) continue;
        wiring_.outputs.push_back({i, output.name(), -1, keeps_newest(i, output.name())});
      }
    }
    for (int i = 0; i < config_.feed_output_size(); ++i) settle(i);
    report_unsettled();
    const auto place = [this](const BatchesPort& output) {
      const bool named = !output_settings(config_, output.settings).alias().empty();
      return std::pair(named, output.settings);
    };
    std::stable_sort(
        wiring_.outputs.begin(), wiring_.outputs.end(),
        [&](const BatchesPort& x, const BatchesPort& y) { return place(x) < place(y); });
  }

  [[nodiscard]] bool keeps_newest(int stage, const std::string& port) const {
    for (const NodePlan& node : plan_.stages(stage).nodes()) {
      for (const NodeOutput& output : node.outputs()) {
        if (output.exported() && output.port() == port) return output.overflow() == KEEP_NEWEST;
      }
    }
    return false;
  }

  [[nodiscard]] std::string shown(const BatchesPort& output) const {
    return output.port == kDefaultPort ? label(output.stage)
                                       : fmt::format("{}.{}", label(output.stage), output.port);
  }

  [[nodiscard]] std::vector<std::string> shown_outputs() const {
    std::vector<std::string> names;
    for (const BatchesPort& output : wiring_.outputs) names.push_back(shown(output));
    return names;
  }

  // Which output a feed_output is about.
  void settle(int i) {
    const FeedOutputConfig& settings = config_.feed_output(i);
    const std::string path = fmt::format("feed_output[{}]", i);
    BatchesPort* found = nullptr;
    if (settings.has_stage()) {
      for (BatchesPort& output : wiring_.outputs) {
        const std::string& name = config_.stages(output.stage).name();
        if (settings.stage() == fmt::format("{}.{}", name, output.port) ||
            (settings.stage() == name && (found == nullptr || output.port == kDefaultPort))) {
          found = &output;
        }
      }
      if (found == nullptr) {
        if (wiring_.outputs.empty()) return;  // reported as such
        doubtful_outputs_ = true;
        return problem(-1, path + ".stage",
                       fmt::format("stage is \"{}\", but no output of batches has that name{}",
                                   settings.stage(),
                                   did_you_mean(settings.stage(), shown_outputs(), "there are")));
      }
    } else if (wiring_.outputs.size() == 1) {
      found = &wiring_.outputs.front();
    } else {
      if (wiring_.outputs.empty()) return;
      doubtful_outputs_ = true;
      return problem(-1, path,
                     fmt::format("it does not say which output of batches it configures; add "
                                 "stage: \"NAME\" with one of {}",
                                 listed(shown_outputs())));
    }
    if (found->settings >= 0) {
      return problem(-1, path,
                     fmt::format("it configures the output of batches {}, and so does "
                                 "feed_output[{}]; keep one of the two",
                                 shown(*found), found->settings));
    }
    found->settings = i;
    for (int j = 0; j < i; ++j) {
      if (config_.feed_output(j).alias() != settings.alias()) continue;
      problem(
          -1, settings.has_alias() ? path + ".alias" : path,
          settings.alias().empty()
              ? fmt::format("neither it nor feed_output[{}] has an alias; give one of them a name "
                            "that trainers can ask for: alias: \"validation\"",
                            j)
              : fmt::format("its alias '{}' is also that of feed_output[{}]; rename one of them",
                            settings.alias(), j));
    }
  }

  void report_unsettled() {
    if (wiring_.outputs.size() > shm::kOutputsMax) {
      problem(-1, "stages",
              fmt::format("{} stages output batches; a feed has at most {} outputs",
                          wiring_.outputs.size(), shm::kOutputsMax));
    }
    if (wiring_.outputs.size() < 2 || doubtful_outputs_) return;
    for (const BatchesPort& output : wiring_.outputs) {
      if (output.settings >= 0) continue;
      problem(
          output.stage, stage_path(output.stage),
          fmt::format("its output '{}' carries batches, but it is not the only one; give it a name "
                      "that trainers can ask for: feed_output {{ stage: \"{}\" alias: \"...\" }}",
                      output.port, shown(output)));
    }
  }

  void report_unread() {
    struct Unread {
      int stage;
      const PortPlan* port;
    };
    std::vector<Unread> unread;
    bool all_usable = true;
    for (int i = 0; i < plan_.stages_size(); ++i) {
      all_usable = all_usable && usable(i);
      if (duplicates_.contains(i)) continue;  // nobody can name it
      for (const PortPlan& output : plan_.stages(i).outputs()) {
        if (output.record_type() != kBatches && !read_.contains({i, output.name()})) {
          unread.push_back({i, &output});
        }
      }
    }
    if (config_.stages_size() == 0 || !all_usable) return;
    if (wiring_.outputs.empty()) {
      std::vector<std::string> ends;
      for (const Unread& end : unread) {
        ends.push_back(
            fmt::format("{}.{} ({})", label(end.stage), end.port->name(), end.port->record_type()));
      }
      problem(-1, "stages",
              fmt::format("no stage outputs batches for trainers; {}",
                          ends.empty()
                              ? std::string("add a stage that does")
                              : fmt::format("add a stage that makes them from {}", listed(ends))));
      return;
    }
    for (const Unread& end : unread) {
      // Probably meant for the input that could not be resolved, which has been reported.
      if (unresolved_types_.contains(end.port->record_type())) continue;
      problem(
          end.stage, stage_path(end.stage),
          fmt::format("nobody reads its output '{}' ({}); give {} to an input that takes {}, or "
                      "remove the stage",
                      end.port->name(), end.port->record_type(), label(end.stage),
                      end.port->record_type()));
    }
  }

  // Producers first. Whatever cannot be placed feeds itself in the end, or is fed by what does.
  void sort_stages() {
    std::vector<bool> placed(static_cast<std::size_t>(config_.stages_size()), false);
    const auto ready = [&](int stage) {
      return std::none_of(wiring_.edges.begin(), wiring_.edges.end(), [&](const Edge& edge) {
        return edge.to_stage == stage && !edge.back &&
               !placed[static_cast<std::size_t>(edge.from_stage)];
      });
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (int i = 0; i < config_.stages_size(); ++i) {
        if (placed[static_cast<std::size_t>(i)] || !ready(i)) continue;
        placed[static_cast<std::size_t>(i)] = true;
        wiring_.order.push_back(i);
        progress = true;
        break;  // from the start again: what was just enabled may come earlier in the configuration
      }
    }
    std::set<int> reported;
    for (int i = 0; i < config_.stages_size(); ++i) {
      if (!placed[static_cast<std::size_t>(i)]) report_cycle(i, reported);
    }
  }

  // Walks upstream from a stage until one comes again: from there on it is a cycle.
  void report_cycle(int stage, std::set<int>& reported) {
    std::vector<int> walk;
    while (std::find(walk.begin(), walk.end(), stage) == walk.end()) {
      if (reported.contains(stage)) return;
      walk.push_back(stage);
      const auto edge =
          std::find_if(wiring_.edges.begin(), wiring_.edges.end(), [&](const Edge& e) {
            return e.to_stage == stage && !e.back &&
                   std::find(wiring_.order.begin(), wiring_.order.end(), e.from_stage) ==
                       wiring_.order.end();
          });
      if (edge == wiring_.edges.end()) return;
      stage = edge->from_stage;
    }
    walk.erase(walk.begin(), std::find(walk.begin(), walk.end(), stage));
    reported.insert(walk.begin(), walk.end());
    // Shown downstream, beginning with the stage that comes first in the configuration.
    std::reverse(walk.begin(), walk.end());
    std::rotate(walk.begin(), std::min_element(walk.begin(), walk.end()), walk.end());
    std::string ring;
    for (const int member : walk) ring += label(member) + " > ";
    const int first = walk.front();
    const auto edge = std::find_if(wiring_.edges.begin(), wiring_.edges.end(), [&](const Edge& e) {
      return e.to_stage == first && e.from_stage == walk.back() && !e.back;
    });
    problem(first,
            fmt::format("{}.{}.{}", stage_path(first), plan_.stages(first).kind(), edge->to_port),
            fmt::format("it feeds itself: {}{}; give one of these stages an input from outside",
                        ring, label(first)));
  }

  const DataLoaderConfig& config_;
  const PipelinePlan& plan_;
  const Places& places_;
  std::vector<Problem>& problems_;
  Wiring wiring_;
  std::map<std::string, int> by_name_;
  std::vector<std::string> names_;
  std::set<int> duplicates_;
  std::set<std::pair<int, std::string>> read_;  // outputs that an input names, rightly or not
  std::set<std::string> unresolved_types_;      // what inputs without a producer would take
  bool doubtful_outputs_ = false;               // a feed_output may mean any of them
};

[[noreturn]] void inconsistent(const std::string& text) {
  throw Error(ErrorCode::kIncompatible,
              fmt::format("the worker's plan contradicts itself: {}; install ringfeed and "
                          "ringfeed-worker from one build",
                          text));
}

void require_consistent(const StagePlan& stage) {
  const auto complain = [&stage](const std::string& text) {
    const std::string what =
        fmt::format("stage '{}' ({}): {}", stage.name(), shown_kind(stage), text);
    if (!stage.has_plugin()) inconsistent(what);
    throw Error(ErrorCode::kIncompatible,
                fmt::format("the plug-in contradicts itself: {}; mend the StageType of {} in it",
                            what, stage.plugin()));
  };
  if (stage.nodes_size() == 0) complain("no node");
  std::map<std::string, int> exported;
  std::set<std::string> inside;
  std::set<std::string> nodes;
  for (const NodePlan& node : stage.nodes()) {
    if (node.lanes() == 0) complain(fmt::format("node '{}' has no lane", node.name()));
    if (!nodes.insert(node.name()).second) complain(fmt::format("two nodes '{}'", node.name()));
    for (const NodeOutput& output : node.outputs()) {
      if (!output.exported()) {
        inside.insert(fmt::format("{}.{}", node.name(), output.port()));
        continue;
      }
      ++exported[output.port()];
      const PortPlan* port = find_port(stage.outputs(), output.port());
      if (port == nullptr || port->record_type() != output.record_type()) {
        complain(fmt::format("node '{}' exports '{}' ({}), which is not an output", node.name(),
                             output.port(), output.record_type()));
      }
    }
  }
  for (const PortPlan& port : stage.outputs()) {
    if (exported[port.name()] != 1) {
      complain(fmt::format("output '{}' has {} nodes", port.name(), exported[port.name()]));
    }
    if (port.record_type() == kBatches && !stage.has_batch()) complain("batches without a schema");
  }
  std::set<std::string> served;
  for (const NodePlan& node : stage.nodes()) {
    for (const NodeInput& input : node.inputs()) {
      if (input.from().empty()) {
        if (find_port(stage.inputs(), input.port()) == nullptr ||
            !served.insert(input.port()).second) {
          complain(
              fmt::format("node '{}' takes the input '{}', which does not exist or is not free",
                          node.name(), input.port()));
        }
      } else if (inside.erase(input.from()) == 0) {
        complain(fmt::format("node '{}' reads '{}', which does not exist or is not free",
                             node.name(), input.from()));
      }
    }
  }
  if (!inside.empty()) complain(fmt::format("nobody reads '{}'", *inside.begin()));
  for (const PortPlan& port : stage.inputs()) {
    if (!served.contains(port.name())) complain(fmt::format("no node takes '{}'", port.name()));
  }
}

}  // namespace

Wiring wire(const DataLoaderConfig& config, const PipelinePlan& plan, const Places& places,
            std::vector<Problem>& problems) {
  if (plan.stages_size() != config.stages_size()) {
    inconsistent(fmt::format("{} stages for a configuration of {}", plan.stages_size(),
                             config.stages_size()));
  }
  return Wirer(config, plan, places, problems).wire();
}

void require_consistent(const DataLoaderConfig& config, const PipelinePlan& plan) {
  if (plan.stages_size() != config.stages_size()) {
    inconsistent(fmt::format("{} stages for a configuration of {}", plan.stages_size(),
                             config.stages_size()));
  }
  for (const StagePlan& stage : plan.stages()) {
    // A stage that has problems and nodes runs all the same.
    const bool runs = stage.problems_size() == 0 || stage.nodes_size() != 0;
    if (!stage.kind().empty() && runs) require_consistent(stage);
  }
}

}  // namespace ringfeed::config
