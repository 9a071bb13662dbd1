#include "workers/lc0/simple_chunk_extractor.h"

#include <algorithm>
#include <cstring>

#include "ringfeed/worker/random.h"
#include "workers/kit/shuffle.h"
#include "workers/kit/sort_key.h"
#include "workers/kit/stage_help.h"
#include "workers/lc0/chunk_reader.h"

namespace ringfeed {

ChunkExtractor::ChunkExtractor(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      rejects_(context.input("rejects")),
      tasks_(context.output("tasks")),
      sources_(context.counter("sources_processed")),
      chunks_(context.counter("chunks_processed")),
      dropped_(context.counter("chunks_dropped")) {}

void ChunkExtractor::forget(Step& step, const Record& record) noexcept {
  if (record.port.index == in_.index) state_.split.forget(step);
}

StepStatus ChunkExtractor::step(Step& step) noexcept {
  if (const std::optional<Record> reject = step.peek(rejects_)) {
    step.count(dropped_);
    return step.consume(*reject);
  }
  if (step.draining()) return StepStatus::kEnd;
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  if (record->user == kScanCompleteRecord) return step.consume(*record);
  SourceRecord source{};
  RF_CHECK(record->bytes.size() >= sizeof source, record->bytes.size());
  std::memcpy(&source, record->bytes.data(), sizeof source);
  const std::uint64_t given = state_.split.done(step);
  if (given >= source.chunk_count) {
    step.count(sources_);
    return state_.split.finish(step, *record);
  }
  const std::span<const std::byte> bytes = record->bytes.last(source.path_bytes);
  const std::string_view path(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::uint64_t name = mix(sort_key(path));
  const Shuffle order(mix(context_.key, name), source.first_chunk, source.chunk_count);
  ChunkPlace place{};
  std::memcpy(&place, record->bytes.data() + sizeof source + order.at(given) * sizeof place,
              sizeof place);
  const std::uint64_t total = step.load(state_.total);
  const TaskRecord task = {
      .global_index = total,
      .identity = mix(name, place.index),
      .offset = place.offset,
      .bytes = place.bytes,
      .frames = place.frames,
      .uses = 0,
      .flags = place.flags,
      .path_bytes = source.path_bytes,
      .reserved = 0,
      .window_lower = total,  // none of those before is wanted again
  };
  const std::span<std::byte> room = step.reserve(tasks_, sizeof task + path.size());
  if (room.empty()) return StepStatus::kNoRoom;
  std::memcpy(room.data(), &task, sizeof task);
  std::memcpy(room.data() + sizeof task, path.data(), path.size());
  step.put_reserved(tasks_, sizeof task + path.size(), {.tag = {task.identity, task.uses}});
  step.store(state_.total, total + 1);
  step.count(chunks_);
  // One part more than there are chunks: the source's end is a step of its own.
  return state_.split.advance(step, *record, given + 1, std::uint64_t{source.chunk_count} + 1);
}

StageType simple_chunk_extractor_type() {
  StageType type;
  type.kind = "simple_chunk_extractor";
  type.inputs = {{"input", "sources"}};
  type.outputs = {{"output", "chunks"}};
  type.more_ports = [](const StageView& stage, std::vector<PortSpec>&,
                       std::vector<PortSpec>& outputs) {
    add_frames_output(stage.config.simple_chunk_extractor(), outputs);
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    tell_of_frames(stage.config.simple_chunk_extractor(), outputs);
  };
  type.problems = [](const StageView& stage) {
    std::vector<Problem> problems;
    add_choice_problems(stage.config.simple_chunk_extractor().frames(), "frames", problems);
    return problems;
  };
  type.counters = {
      {"chunks_processed", "Chunks handed to the lanes that read."},
      {"chunks_dropped", "Chunks that could not be read."},
      {"sources_processed", "Sources read to their end."},
  };
  for (CounterSpec& counter : chunk_reader_counters()) {
    // There is no store here: what would count its use says nothing.
    counter.listed = counter.name.starts_with("store_");
    counter.capacity = {};
    type.counters.push_back(std::move(counter));
  }
  type.nodes = [](const StageView& stage) {
    const SimpleChunkExtractorConfig& own = stage.config.simple_chunk_extractor();
    NodeSpec extract;
    StateLayout layout;
    (void)ChunkExtractor::State(layout);
    extract.state_bytes = layout.bytes();
    extract.inputs = {{.port = "input", .from = "", .block = 1},
                      {.port = "rejects", .from = "read.rejects", .block = 1}};
    extract.outputs = {chunk_tasks_output()};
    extract.weight = 0.02;
    extract.create = [](const StageContext& context) {
      return std::make_unique<ChunkExtractor>(context);
    };
    return std::vector<NodeSpec>{extract, chunk_reader_node(own, stage.links, 0, "")};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "extractor" simple_chunk_extractor { input: "loader" } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
