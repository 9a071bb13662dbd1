#include "supervisor/config/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "proto/config.pb.h"
#include "proto/feed_output.h"
#include "proto/plan.pb.h"
#include "ringfeed/shm/quote.h"
#include "supervisor/config/check.h"
#include "supervisor/config/fields.h"
#include "supervisor/os/text.h"

namespace ringfeed::config {
namespace {

std::string counted(std::uint64_t count, std::string_view thing, std::string_view things) {
  return fmt::format("{} {}", count, count == 1 ? thing : things);
}

std::uint64_t lane_count(const StagePlan& stage) {
  std::uint64_t lanes = 0;
  for (const NodePlan& node : stage.nodes()) lanes += node.lanes();
  return lanes;
}

// "1 + 2 (up to 4) read": one lane of the stage itself and two of its part `read`, which may be
// scaled to four.
std::string lanes_by_node(const StagePlan& stage) {
  std::string text;
  for (const NodePlan& node : stage.nodes()) {
    text += fmt::format(
        "{}{}{}{}{}", text.empty() ? "" : " + ", node.lanes(),
        node.lanes_max() > node.lanes() ? fmt::format(" (up to {})", node.lanes_max()) : "",
        node.name().empty() ? "" : " ", node.name());
  }
  return text;
}

std::string inputs_of(int stage, const DataLoaderConfig& config, const Wiring& wiring) {
  std::string text;
  for (const Edge& edge : wiring.edges) {
    if (edge.to_stage != stage) continue;
    text += fmt::format("{}{} from {}.{}", text.empty() ? "" : ", ", edge.record_type,
                        config.stages(edge.from_stage).name(), edge.from_port);
  }
  return text.empty() ? "-" : text;
}

std::string outputs_of(const StagePlan& stage) {
  std::string text;
  for (const PortPlan& port : stage.outputs()) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", port.record_type(), port.name());
  }
  return text.empty() ? "-" : text;
}

// "tokens int64 [rows, S1, 2]": S1 stands for the second of the lengths that vary.
std::string tensor_text(const TensorSpec& tensor) {
  std::vector<std::string> shape;
  for (const std::int64_t places : tensor.shape()) {
    shape.push_back(places == -1  ? "rows"
                    : places < -1 ? fmt::format("S{}", -2 - places)
                                  : std::to_string(places));
  }
  return fmt::format("{} {} [{}]", tensor.name(), tensor.dtype(), fmt::join(shape, ", "));
}

// Rows as columns that line up; the last one is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], shown_width(row[i]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    text += " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += " " + row[i];
      if (i + 1 < row.size()) text += std::string(widths[i] - shown_width(row[i]) + 1, ' ');
    }
    text += "\n";
  }
  return text;
}

// So long a text of a fact that it would fill the screen is cut. Facts may be names of columns and
// categories, so what a terminal would act on is escaped.
std::string fact_shown(const std::string& text) {
  constexpr std::size_t kBytesMax = 100;
  if (text.size() <= kBytesMax) return escaped(text);
  std::size_t end = kBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return escaped(std::string_view(text).substr(0, end)) + " ...";
}

// What stages say of their records, and wish of those that they read.
std::string facts_text(const PipelinePlan& plan) {
  std::vector<std::vector<std::string>> facts;
  std::vector<std::vector<std::string>> wishes;
  const auto add = [](const StagePlan& stage, const PortPlan& port, auto& rows) {
    for (const FactPlan& fact : port.facts()) {
      rows.push_back({stage.name() + "." + port.name(), fact.name(), fact_shown(fact.text())});
    }
  };
  for (const StagePlan& stage : plan.stages()) {
    for (const PortPlan& port : stage.outputs()) add(stage, port, facts);
    for (const PortPlan& port : stage.inputs()) add(stage, port, wishes);
  }
  return (facts.empty() ? "" : "facts\n" + table(facts)) +
         (wishes.empty() ? "" : "wishes\n" + table(wishes));
}

}  // namespace

std::string explain(const DataLoaderConfig& config, const PipelinePlan& plan, const Wiring& wiring,
                    std::span<const StageGroup> groups, std::span<const MemoryPart> memory) {
  std::uint64_t lanes = 0;
  for (const StagePlan& stage : plan.stages()) lanes += lane_count(stage);
  std::string text =
      fmt::format("feed {}: {}, {}, {}\n", config.feed(),
                  counted(static_cast<std::uint64_t>(config.stages_size()), "stage", "stages"),
                  counted(lanes, "lane", "lanes"), counted(groups.size(), "process", "processes"));
  text += fmt::format("  {}, seed {}, dispatch {}\n",
                      config.epochs() == 0
                          ? "endless"
                          : counted(config.epochs(), "epoch", "epochs") +
                                (config.drop_remainder() ? " without the last short batch" : ""),
                      config.has_seed() ? std::to_string(config.seed()) : "drawn at start",
                      FeedOutputConfig::Dispatch_Name(output_settings(config).dispatch()));

  if (config.from_batch() > 1) text += fmt::format("  begins with batch {}\n", config.from_batch());

  for (const StageGroup& group : groups) {
    std::uint64_t group_lanes = 0;
    std::vector<std::vector<std::string>> rows;
    for (const int stage : group.stages) {
      const StagePlan& planned = plan.stages(stage);
      group_lanes += lane_count(planned);
      rows.push_back({config.stages(stage).name(), shown_kind(planned),
                      "lanes " + lanes_by_node(planned), "in: " + inputs_of(stage, config, wiring),
                      "out: " + outputs_of(planned)});
    }
    text += fmt::format("group {}: {}\n{}", group.name, counted(group_lanes, "lane", "lanes"),
                        table(rows));
  }

  text += facts_text(plan);
  for (const BatchesPort& output : wiring.outputs) {
    const FeedOutputConfig& settings = output_settings(config, output.settings);
    const BatchSchema& schema = plan.stages(output.stage).batch();
    text += fmt::format("batches{} of up to {}, {} each, {}, from {}.{}{}\n",
                        settings.alias().empty() ? "" : fmt::format(" '{}'", settings.alias()),
                        counted(schema.rows_max(), "row", "rows"), shown_bytes(schema.slot_bytes()),
                        counted(slot_count(config, output), "slot", "slots"),
                        config.stages(output.stage).name(), output.port,
                        output.keep_newest ? ", the newest are kept" : "");
    for (const TensorSpec& tensor : schema.tensors()) text += "  " + tensor_text(tensor) + "\n";
    for (const ConsumerGroupConfig& group : settings.groups()) {
      text += fmt::format(
          "consumer group {}: {}{}, policy {}\n", group.name(),
          ConsumerGroupConfig::Kind_Name(group.kind()),
          group.kind() == ConsumerGroupConfig::RANKED ? fmt::format(" of {}", group.world())
                                                      : std::string(),
          ConsumerGroupConfig::Policy_Name(output.keep_newest ? ConsumerGroupConfig::SKIP
                                                              : group.policy()));
    }
  }

  if (!memory.empty()) {
    std::uint64_t sum = 0;
    std::vector<std::vector<std::string>> rows;
    for (const MemoryPart& part : memory) {
      sum += part.bytes;
      rows.push_back({part.part, shown_bytes(part.bytes)});
    }
    rows.push_back({"in total", shown_bytes(sum)});
    text += "memory\n" + table(rows);
    if (config.storage().has_memory_budget_bytes()) {
      text +=
          fmt::format("  of a budget of {}\n", shown_bytes(config.storage().memory_budget_bytes()));
    }
  }
  return text;
}

std::string looks_text(const DataLoaderConfig& config, const DataLooks& looks) {
  std::vector<std::vector<std::string>> rows;
  for (const DataLookPlan& look : looks.looks()) {
    if (look.files() == 0) continue;
    const std::uint64_t out = look.samples_left_out();
    rows.push_back(
        {config.stages(static_cast<int>(look.stage())).name(),
         fmt::format("{}{}{}", look.files_are_more() ? "at least " : "",
                     counted(look.files(), "file", "files"),
                     look.files_passed_over() == 0
                         ? ""
                         : fmt::format(", {} of them not read", look.files_passed_over())),
         fmt::format("looked at the first samples of {}: {} of {} would be left out",
                     look.files_looked_at(), out == 0 ? "none" : std::to_string(out),
                     look.samples())});
  }
  return rows.empty() ? "" : "data\n" + table(rows);
}

}  // namespace ringfeed::config
