// The stage sample_mixer.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ringfeed/worker/stage.h"
#include "workers/kit/stage_help.h"
#include "workers/samples/sample_facts.h"

namespace ringfeed {
namespace {

constexpr int kInputsMax = 64;
// A uniform number has so many values.
constexpr std::uint64_t kUniform = std::uint64_t{1} << 53;

std::string port_name(int i) { return fmt::format("input[{}]", i); }

// Names of counters have no dot.
std::string counter_name(const std::string& input) {
  std::string name = "samples_" + input;
  std::ranges::replace(name, '.', '_');
  return name;
}

double weight_of(const SampleMixerConfig& config, int i) {
  return i < config.weight_size() ? config.weight(i) : 1;
}

//   input[i] samples
//   output   samples, each a unit
//   arena    which inputs have ended (8 bytes)
//   at end   as `end` says; what the other inputs still have is not read
//
// Each sample is drawn: which input gives it does not depend on what has arrived. A step that finds
// nothing there draws the same again.
class SampleMixer final : public Stage {
 public:
  struct State {
    explicit State(StateLayout& layout) : ended(layout.word()) {}
    Word ended;  // a bit an input
  };

  explicit SampleMixer(const StageContext& context)
      : config_(context.config.sample_mixer()),
        state_([] {
          StateLayout layout;
          return State(layout);
        }()),
        out_(context.output("output")) {
    for (int i = 0; i < config_.input_size(); ++i) {
      inputs_.push_back({context.input(port_name(i)),
                         context.counter(counter_name(config_.input(i))), weight_of(config_, i),
                         config_.end_with() == config_.input(i)});
    }
  }

  StepStatus step(Step& step) noexcept override {
    const std::uint64_t ended = step.load(state_.ended);
    const std::optional<std::size_t> chosen = choose(step, ended);
    if (!chosen) return StepStatus::kEnd;
    const Input& input = inputs_[*chosen];
    const std::optional<Record> record = step.peek(input.port);
    if (!record) {
      if (!step.ended(input.port)) return StepStatus::kNoInput;
      const bool last =
          config_.has_end_with() ? input.ends_all : config_.end() == SampleMixerConfig::FIRST;
      if (last) return StepStatus::kEnd;
      step.store(state_.ended, ended | std::uint64_t{1} << *chosen);
      return StepStatus::kDone;
    }
    if (!step.put(out_, record->bytes,
                  {.tag = {record->tag[0], record->tag[1]}, .user = record->user})) {
      return StepStatus::kNoRoom;
    }
    step.count(input.samples);
    return step.consume(*record);
  }

 private:
  struct Input {
    InPort port;
    Counter samples;
    double weight;
    bool ends_all;
  };

  // One of those that have not ended, as likely as its weight; nothing: all have.
  std::optional<std::size_t> choose(Step& step, std::uint64_t ended) noexcept {
    double sum = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) sum += is_in(ended, i) ? inputs_[i].weight : 0;
    if (!(sum > 0)) return std::nullopt;
    const double drawn =
        static_cast<double>(step.draw(kUniform)) / static_cast<double>(kUniform) * sum;
    std::optional<std::size_t> chosen;
    double before = 0;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_in(ended, i) || inputs_[i].weight == 0) continue;
      if (chosen && drawn < before) break;
      chosen = i;
      before += inputs_[i].weight;
    }
    return chosen;
  }
  static bool is_in(std::uint64_t ended, std::size_t i) noexcept { return (ended >> i & 1) == 0; }

  const SampleMixerConfig& config_;
  State state_;
  std::vector<Input> inputs_;
  OutPort out_;
};

std::vector<Problem> mixer_problems(const StageView& stage) {
  const SampleMixerConfig& own = stage.config.sample_mixer();
  std::vector<Problem> problems;
  const int inputs = own.input_size();
  if (inputs == 0) {
    problems.push_back(
        {"input", "input is missing; name the stages that output samples, each in its own input"});
  } else if (inputs > kInputsMax) {
    problems.push_back(
        {fmt::format("input[{}]", kInputsMax),
         fmt::format("{} inputs are given; at most {} are possible", inputs, kInputsMax)});
  }
  if (own.weight_size() != 0 && own.weight_size() != inputs) {
    problems.push_back({"weight", fmt::format("there are {} weights for {} inputs; give one for "
                                              "each, or none",
                                              own.weight_size(), inputs)});
  }
  double sum = own.weight_size() == 0 ? 1 : 0;
  for (int i = 0; i < own.weight_size(); ++i) {
    if (own.weight(i) >= 0 && std::isfinite(own.weight(i))) {
      sum += own.weight(i);
    } else {
      problems.push_back({fmt::format("weight[{}]", i),
                          fmt::format("weight is {}; give a number from 0 on", own.weight(i))});
    }
  }
  if (!(sum > 0)) problems.push_back({"weight", "all weights are 0; give one above 0"});
  if (own.has_end_with()) {
    const auto found = std::find(own.input().begin(), own.input().end(), own.end_with());
    if (found == own.input().end()) {
      problems.push_back({"end_with", fmt::format("end_with is \"{}\", which is no input; give one "
                                                  "as it is written there",
                                                  own.end_with())});
    } else if (weight_of(own, static_cast<int>(found - own.input().begin())) == 0) {
      problems.push_back({"end_with", fmt::format("'{}' has the weight 0: its end would never be "
                                                  "met; give it a weight above 0",
                                                  own.end_with())});
    }
  }
  return problems;
}

}  // namespace

StageType sample_mixer_type() {
  StageType type;
  type.kind = "sample_mixer";
  type.outputs = {{"output", "samples"}};
  type.more_counters = [](const StageConfig& config, std::vector<CounterSpec>& counters) {
    for (const std::string& input : config.sample_mixer().input()) {
      counters.push_back({.name = counter_name(input),
                          .help = fmt::format("Samples from {}.", input),
                          .listed = true});
    }
  };
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>& inputs,
                       std::vector<PortSpec>&) {
    for (int i = 0; i < stage.config.sample_mixer().input_size(); ++i) {
      inputs.push_back({port_name(i), "samples"});
    }
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    TypedFields all;
    for (int i = 0; i < stage.config.sample_mixer().input_size(); ++i) {
      const TypedFields of_input = stage.links.input(port_name(i)).said.get(kTypedFields);
      all.insert(all.end(), of_input.begin(), of_input.end());
    }
    if (!all.empty()) outputs["output"].set(kTypedFields, std::move(all));
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    for (int i = 0; i < stage.config.sample_mixer().input_size(); ++i) {
      pass_on_batch_wish(stage.links, port_name(i), inputs);
    }
  };
  type.problems = mixer_problems;
  type.nodes = [](const StageView& stage) {
    const SampleMixerConfig& own = stage.config.sample_mixer();
    NodeSpec node;
    StateLayout layout;
    (void)SampleMixer::State(layout);
    node.state_bytes = layout.bytes();
    for (int i = 0; i < own.input_size(); ++i) {
      node.inputs.push_back({.port = port_name(i), .from = "", .block = 1});
    }
    node.outputs = {output_spec(own, "samples", 4 * kMiB, UnitRule::kRecord)};
    node.weight = 0.1;
    node.steps_per_commit = 64;
    node.create = [](const StageContext& context) {
      return std::make_unique<SampleMixer>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "lines" sample_source { input: "provider" } }
stages { name: "items" index_source { count: 100 } }
stages { name: "mixed" sample_mixer { input: "lines" input: "items" weight: 3 weight: 1 end: LAST } }
)",
                  .maker = "jsonl_files"};
  return type;
}

}  // namespace ringfeed
