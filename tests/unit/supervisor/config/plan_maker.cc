#include "tests/unit/supervisor/config/plan_maker.h"

#include <gtest/gtest.h>

#include <map>

#include "supervisor/config/fields.h"

namespace ringfeed::config {
namespace {

struct Kind {
  std::string input;   // record type; empty: none
  std::string output;  // record type
  double weight = 0;
};

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all{
      {"file_path_provider", {"", "files", 0.01}},
      {"chunk_source_loader", {"files", "sources", 0.05}},
      {"shuffling_chunk_pool", {"sources", "chunks", 1.0}},
      {"chunk_unpacker", {"chunks", "frames", 0.4}},
      {"shuffling_frame_sampler", {"frames", "frames", 0.5}},
      {"tensor_generator", {"frames", "batches", 1.2}},
      {"simple_chunk_extractor", {"sources", "chunks", 1.0}},
      {"chunk_source_splitter", {"sources", "sources", 0.01}},  // an output for each `outputs`
      {"join_positions", {"frames", "frames", 0.1}},            // an input for each `input`
      {"bitext_source", {"", "bitext", 0.1}},                   // directories in a list
  };
  return all;
}

NodeOutput* add_output(NodePlan& node, const std::string& port, const std::string& type) {
  NodeOutput* const output = node.add_outputs();
  output->set_port(port);
  output->set_record_type(type);
  output->set_queue_capacity(16);
  output->set_queue_bytes(1 << 20);
  return output;
}

void add_input(NodePlan& node, const std::string& port, const std::string& from) {
  NodeInput* const input = node.add_inputs();
  input->set_port(port);
  input->set_from(from);
}

std::uint32_t threads_of(const google::protobuf::Message& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByName("threads");
  return field == nullptr ? 1 : static_cast<std::uint32_t>(count_in(message, *field));
}

}  // namespace

PipelinePlan lc0_plan(const DataLoaderConfig& config) {
  PipelinePlan plan;
  plan.set_worker_version("0.1.0");
  for (const StageConfig& stage : config.stages()) {
    StagePlan& planned = *plan.add_stages();
    planned.set_name(stage.name());
    const auto set = kinds_set(stage);
    if (set.size() != 1) continue;
    Kind kind = kinds().at(set[0]->name());
    if (stage.shuffling_chunk_pool().has_frames()) kind.output = "frames";
    planned.set_kind(set[0]->name());
    std::vector<std::string> inputs;
    if (!kind.input.empty()) inputs = {"input"};
    if (stage.has_join_positions()) {
      inputs.clear();
      for (int i = 0; i < stage.join_positions().input_size(); ++i) {
        inputs.push_back("input[" + std::to_string(i) + "]");
      }
    }
    std::vector<std::string> outputs = {"output"};
    if (stage.has_chunk_source_splitter()) {
      outputs.clear();
      for (const auto& output : stage.chunk_source_splitter().outputs()) {
        outputs.push_back(output.name());
      }
    }
    for (const std::string& name : inputs) {
      PortPlan* const port = planned.add_inputs();
      port->set_name(name);
      port->set_record_type(kind.input);
    }
    for (const std::string& name : outputs) {
      PortPlan* const port = planned.add_outputs();
      port->set_name(name);
      port->set_record_type(kind.output);
    }

    const std::uint32_t threads = threads_of(stage.GetReflection()->GetMessage(stage, set[0]));
    NodePlan* node = planned.add_nodes();
    node->set_lanes(threads);
    node->set_weight(kind.weight);
    for (const std::string& name : inputs) add_input(*node, name, "");
    if (stage.has_shuffling_chunk_pool()) {
      // One lane owns the window, `threads` lanes read behind it.
      node->set_lanes(1);
      add_output(*node, "requests", "requests");
      node = planned.add_nodes();
      node->set_name("read");
      node->set_lanes(threads);
      add_input(*node, "requests", ".requests");
      if (stage.shuffling_chunk_pool().has_store_directory()) {
        PlanProblem* const problem = planned.add_problems();
        problem->set_field("store_directory");
        problem->set_text("store_directory needs store_bytes; give both");
      }
    }
    for (const std::string& name : outputs) {
      NodeOutput* const output = add_output(*node, name, kind.output);
      output->set_exported(true);
      if (stage.has_tensor_generator()) {
        output->set_overflow(stage.tensor_generator().overflow_behavior());
      }
    }
    if (stage.has_chunk_unpacker() && stage.chunk_unpacker().has_position_count() &&
        stage.chunk_unpacker().has_position_sampling_rate()) {
      PlanProblem* const problem = planned.add_problems();
      problem->set_field("position_count");
      problem->set_text("position_count and position_sampling_rate exclude each other; keep one");
    }
    if (stage.has_chunk_unpacker() && !(stage.chunk_unpacker().position_sampling_rate() <= 1)) {
      PlanProblem* const problem = planned.add_problems();
      problem->set_field("position_sampling_rate");
      problem->set_text("the stage's own words about its rate");
    }
    if (stage.has_file_path_provider() && stage.file_path_provider().directory().empty()) {
      PlanProblem* const problem = planned.add_problems();
      problem->set_field("directory");
      problem->set_text("directory is missing; give the directory to search");
    }
    if (stage.has_tensor_generator()) {
      BatchSchema& schema = *planned.mutable_batch();
      schema.set_rows_max(stage.tensor_generator().batch_size());
      const std::uint64_t rows = stage.tensor_generator().batch_size();
      TensorSpec& planes = *schema.add_tensors();
      planes.set_name("planes");
      planes.set_dtype("float32");
      for (const std::int64_t places : {-1, 112, 8, 8}) planes.add_shape(places);
      planes.set_bytes(rows * 28672);
      schema.set_slot_bytes(rows * 28672);
    }
    // With nodes they would be warnings.
    if (planned.problems_size() != 0) planned.clear_nodes();
  }
  return plan;
}

std::string lc0_text() {
  return R"(stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" } }
stages { name: "unpacker" chunk_unpacker { input: "pool" position_sampling_rate: 1.0 } }
stages { name: "sampler" shuffling_frame_sampler { input: "unpacker" } }
stages { name: "tensors" tensor_generator { input: "sampler" } }
)";
}

std::string lc0_text_with(std::string_view from, std::string_view to) {
  std::string text = lc0_text();
  const std::size_t at = text.find(from);
  if (at == std::string::npos || text.find(from, at + 1) != std::string::npos) {
    ADD_FAILURE() << "\"" << from << "\" must occur exactly once in the configuration";
    return text;
  }
  return text.replace(at, from.size(), to);
}

CheckedText checked_text(std::string_view text, const std::vector<std::string>& overrides) {
  const bool json = text.find_first_not_of(" \n") != std::string_view::npos &&
                    text[text.find_first_not_of(" \n")] == '{';
  CheckedText result{parse_config(text, json ? "lc0.json" : "lc0.textproto", overrides), {}, {}};
  result.plan = lc0_plan(result.configuration.message());
  result.checked = check_config(result.configuration, result.plan);
  return result;
}

std::vector<std::string> messages(std::string_view text,
                                  const std::vector<std::string>& overrides) {
  std::vector<std::string> all;
  for (const Problem& problem : checked_text(text, overrides).checked.problems) {
    all.push_back(problem.message());
  }
  return all;
}

}  // namespace ringfeed::config
