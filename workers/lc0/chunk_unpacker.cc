#include "workers/lc0/chunk_unpacker.h"

#include <cstring>

#include "workers/kit/stage_help.h"
#include "workers/lc0/lc0_facts.h"
#include "workers/lc0/packed_frame.h"

namespace ringfeed {

ChunkUnpacker::ChunkUnpacker(const StageContext& context)
    : context_(context),
      state_([] {
        StateLayout layout;
        return State(layout);
      }()),
      in_(context.input("input")),
      out_(context.output("output")),
      frames_(context.counter("frames")),
      chunks_damaged_(context.counter("chunks_damaged")),
      choice_(wanted_positions(context.config.chunk_unpacker()), context.key) {}

// Finds the frames of the chunk and chooses among them, unless its reader has; false: the record
// contradicts itself.
bool ChunkUnpacker::open_chunk(const Record& record) noexcept {
  opened_ = nullptr;
  if (record.bytes.size() < sizeof(ChunkRecord)) return false;
  std::memcpy(&chunk_, record.bytes.data(), sizeof chunk_);
  const bool listed = (chunk_.flags & kChunkListed) != 0;
  std::size_t at = chunk_head_bytes(chunk_);
  if (at > record.bytes.size() || (!listed && chunk_.listed_count != chunk_.frame_count)) {
    return false;
  }
  offsets_.clear();
  weights_.clear();
  for (std::uint32_t i = 0; i < chunk_.listed_count; ++i) {
    std::uint32_t bytes = 0;
    if (at + sizeof bytes > record.bytes.size()) return false;
    std::memcpy(&bytes, record.bytes.data() + at, sizeof bytes);
    if (bytes < formats::packed::kAlignment || bytes > record.bytes.size() - at) return false;
    offsets_.push_back(static_cast<std::uint32_t>(at));
    if (choice_.weighted() && !listed) {
      const auto view = formats::view_packed(record.bytes.subspan(at, bytes));
      if (!view) return false;
      weights_.push_back(position_weight(choice_.weights(), view->tail));
    }
    at += bytes;
  }
  if (at != record.bytes.size()) return false;
  offsets_.push_back(static_cast<std::uint32_t>(at));
  if (listed) {
    chosen_.resize(chunk_.listed_count);
    if (!chosen_.empty()) {
      std::memcpy(chosen_.data(), record.bytes.data() + sizeof chunk_, 4 * chosen_.size());
    }
  } else {
    choice_.choose(chunk_.identity, chunk_.frame_count, chunk_.uses, weights_, chosen_);
  }
  opened_ = record.bytes.data();
  return true;
}

void ChunkUnpacker::forget(Step& step, const Record&) noexcept {
  state_.split.forget(step);
  opened_ = nullptr;
}

StepStatus ChunkUnpacker::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const std::uint64_t done = state_.split.done(step);
  // The first call for a record opens it; an address may come again with another record, but only
  // from its beginning.
  if ((opened_ != record->bytes.data() || done == 0) && !open_chunk(*record)) {
    step.count(chunks_damaged_);
    return state_.split.finish(step, *record);
  }
  std::uint64_t next = done;
  for (; next < chosen_.size(); ++next) {
    const std::size_t place = (chunk_.flags & kChunkListed) != 0 ? next : chosen_[next];
    const std::uint32_t begin = offsets_[place];
    if (!step.put(out_, record->bytes.subspan(begin, offsets_[place + 1] - begin),
                  {.tag = {chunk_.identity, chosen_[next]}})) {
      break;
    }
  }
  step.count(frames_, next - done);
  return state_.split.advance(step, *record, next, chosen_.size());
}

StageType chunk_unpacker_type() {
  StageType type;
  type.kind = "chunk_unpacker";
  type.inputs = {{"input", "chunks"}};
  type.outputs = {{"output", "frames"}};
  type.counters = {
      {"frames", "Frames output."},
      {"chunks_damaged", "Chunks whose record contradicts itself."},
  };
  type.problems = [](const StageView& stage) {
    std::vector<Problem> problems;
    add_choice_problems(stage.config.chunk_unpacker(), "", problems);
    return problems;
  };
  type.facts = [](const StageView& stage, PortFacts& outputs) {
    outputs["output"].set(kDealtInTurn, stage.config.chunk_unpacker().overflow_behavior() != BLOCK);
  };
  type.wishes = [](const StageView& stage, PortFacts& inputs) {
    const WantedPositions wanted = wanted_positions(stage.config.chunk_unpacker());
    if (!PositionChoice(wanted, 0).all()) inputs["input"].set(kWantedPositions, wanted);
  };
  type.nodes = [](const StageView& stage) {
    const ChunkUnpackerConfig& own = stage.config.chunk_unpacker();
    NodeSpec node;
    node.lanes = static_cast<std::uint32_t>(own.threads());
    node.lanes_max = std::max(node.lanes, own.max_threads());
    node.more_lanes = kMoreThreads;
    StateLayout layout;
    (void)ChunkUnpacker::State(layout);
    node.state_bytes = layout.bytes();
    node.state_version = 3;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "frames", 4 * kMiB, UnitRule::kFollow)};
    node.weight = 0.3;
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ChunkUnpacker>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  type.example = {.text = R"(
stages { name: "provider" file_path_provider { directory: "/data" } }
stages { name: "loader" chunk_source_loader { input: "provider" } }
stages { name: "pool" shuffling_chunk_pool { input: "loader" chunk_pool_size: 20000 } }
stages { name: "unpacker" chunk_unpacker { input: "pool" position_count: 4 } }
)",
                  .maker = "lc0_files"};
  return type;
}

}  // namespace ringfeed
