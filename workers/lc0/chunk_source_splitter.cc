#include "workers/lc0/chunk_source_splitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "ringfeed/worker/random.h"
#include "workers/kit/sort_key.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/records.h"

namespace ringfeed {
namespace {

constexpr int kOutputsMax = 16;
constexpr std::size_t kNameMax = 32;  // a counter is called after it

}  // namespace

std::size_t split_of(std::uint64_t key, std::string_view sort_key, std::uint64_t index,
                     const std::vector<std::uint64_t>& weights) noexcept {
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  std::uint64_t place = Random(mix(mix(key, mix(sort_key)), index)).below(sum);
  std::size_t output = 0;
  while (place >= weights[output]) place -= weights[output++];
  return output;
}

ChunkSourceSplitter::ChunkSourceSplitter(const StageContext& context)
    : state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      key_(context.config.chunk_source_splitter().key()) {
  for (const auto& output : context.config.chunk_source_splitter().outputs()) {
    outputs_.push_back(context.output(output.name()));
    weights_.push_back(output.weight());
    chunks_.push_back(context.counter("chunks_" + output.name()));
  }
  dealt_.resize(outputs_.size());
}

StepStatus ChunkSourceSplitter::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kScanCompleteRecord) {
    for (const OutPort output : outputs_) {
      if (!step.put(output, {}, {.user = kScanCompleteRecord})) return StepStatus::kNoRoom;
    }
    return step.consume(*record);
  }
  SourceRecord source{};
  RF_CHECK(record->bytes.size() >= sizeof source, record->bytes.size());
  std::memcpy(&source, record->bytes.data(), sizeof source);
  const std::byte* places = record->bytes.data() + sizeof source;
  const std::span<const std::byte> path = record->bytes.last(source.path_bytes);
  const std::string_view name = sort_key({reinterpret_cast<const char*>(path.data()), path.size()});
  // As many as every output takes in one record, whoever gets them: a queue may be smaller than
  // that of the loader.
  const std::uint64_t done = state_.split.done(step);
  std::uint64_t room_max = record->bytes.size();
  for (const OutPort output : outputs_) {
    room_max = std::min(room_max, step.record_bytes_max(output));
  }
  const std::uint64_t fit = (room_max - sizeof source - path.size()) / sizeof(ChunkPlace);
  const auto end =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(source.chunk_count, done + fit));
  for (std::vector<std::uint32_t>& dealt : dealt_) dealt.clear();
  for (auto i = static_cast<std::uint32_t>(done); i < end; ++i) {
    ChunkPlace place{};
    std::memcpy(&place, places + i * sizeof place, sizeof place);
    dealt_[split_of(key_, name, place.index, weights_)].push_back(i);
  }
  for (std::size_t to = 0; to < outputs_.size(); ++to) {
    const std::vector<std::uint32_t>& dealt = dealt_[to];
    // The first part of a file takes the place of all that the file had before, also with nothing.
    const std::uint64_t first_chunk = source.first_chunk + done;
    if (dealt.empty() && first_chunk != 0) continue;
    const std::uint64_t bytes = sizeof source + dealt.size() * sizeof(ChunkPlace) + path.size();
    const std::span<std::byte> room = step.reserve(outputs_[to], bytes);
    if (room.empty()) return StepStatus::kNoRoom;
    const SourceRecord part{first_chunk, static_cast<std::uint32_t>(dealt.size()),
                            source.path_bytes};
    std::memcpy(room.data(), &part, sizeof part);
    std::byte* at = room.data() + sizeof part;
    for (const std::uint32_t i : dealt) {
      std::memcpy(at, places + i * sizeof(ChunkPlace), sizeof(ChunkPlace));
      at += sizeof(ChunkPlace);
    }
    std::memcpy(at, path.data(), path.size());
    step.put_reserved(outputs_[to], bytes,
                      {.tag = {record->tag[0], record->tag[1]}, .user = kFileRecord});
    step.count(chunks_[to], dealt.size());
  }
  return state_.split.advance(step, *record, end, source.chunk_count);
}

void ChunkSourceSplitter::forget(Step& step, const Record&) noexcept { state_.split.forget(step); }

StageType chunk_source_splitter_type() {
  StageType type;
  type.kind = "chunk_source_splitter";
  type.inputs = {{"input", "sources"}};
  type.more_counters = [](const StageConfig& config, std::vector<CounterSpec>& counters) {
    for (const auto& output : config.chunk_source_splitter().outputs()) {
      counters.push_back({.name = "chunks_" + output.name(),
                          .help = fmt::format("Chunks given to the output {}.", output.name()),
                          .listed = true});
    }
  };
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>&,
                       std::vector<PortSpec>& outputs) {
    for (const auto& output : stage.config.chunk_source_splitter().outputs()) {
      outputs.push_back({output.name(), "sources"});
    }
  };
  type.problems = [](const StageView& stage) {
    const ChunkSourceSplitterConfig& own = stage.config.chunk_source_splitter();
    std::vector<Problem> problems;
    if (own.outputs_size() == 0) {
      problems.push_back({"outputs",
                          "there is none: give each share a name and a weight, e.g. "
                          "outputs { name: \"train\" weight: 9 }"});
    }
    if (own.outputs_size() > kOutputsMax) {
      problems.push_back({fmt::format("outputs[{}]", kOutputsMax),
                          fmt::format("{} outputs are given; at most {} are possible",
                                      own.outputs_size(), kOutputsMax)});
    }
    if (own.overflow_behavior() != BLOCK) {
      problems.push_back({"overflow_behavior",
                          "it would drop not one file but all chunks of it, and the mark that the "
                          "scan is complete: use BLOCK here, and KEEP_NEWEST in the last stage of "
                          "the output that should not wait"});
    }
    std::set<std::string> names;
    for (int i = 0; i < own.outputs_size(); ++i) {
      const std::string& name = own.outputs(i).name();
      const std::string field = fmt::format("outputs[{}]", i);
      const bool plain = name.find_first_not_of(
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                             "0123456789_-") == std::string::npos;
      if (name.empty()) {
        problems.push_back({field, "it has no name; add name: \"...\""});
      } else if (!plain || name.size() > kNameMax) {
        problems.push_back(
            {field + ".name", fmt::format("\"{}\" cannot be the name of an output; use 1 to {} "
                                          "characters from A-Z a-z 0-9 _ -",
                                          name, kNameMax)});
      } else if (!names.insert(name).second) {
        problems.push_back(
            {field + ".name", fmt::format("there is already an output '{}'; rename one", name)});
      }
    }
    return problems;
  };
  type.nodes = [](const StageView& stage) {
    const ChunkSourceSplitterConfig& own = stage.config.chunk_source_splitter();
    NodeSpec node;
    StateLayout layout;
    (void)ChunkSourceSplitter::State(layout);
    node.state_bytes = layout.bytes();
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    for (const auto& output : own.outputs()) {
      OutputSpec out = output_spec(own, "sources", 4 * kMiB, UnitRule::kFollow);
      out.port = output.name();
      node.outputs.push_back(std::move(out));
    }
    node.weight = 0.01;
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ChunkSourceSplitter>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages {
  name: "split"
  chunk_source_splitter {
    input: "loader"
    outputs { name: "train" weight: 9 }
    outputs { name: "validation" weight: 1 }
  }
}
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
