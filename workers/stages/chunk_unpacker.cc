#include "workers/stages/chunk_unpacker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "workers/formats/packed_frame.h"
#include "workers/runtime/random.h"
#include "workers/stages/common.h"

namespace ringfeed {

void sample_by_rate(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use, double rate,
                    std::vector<std::uint32_t>& out) {
  out.clear();
  if (rate >= 1.0) {
    out.resize(frame_count);
    std::iota(out.begin(), out.end(), 0U);
    return;
  }
  // The circle in 64-bit fixed point: wrapping around is what unsigned arithmetic does anyway.
  const auto arc = static_cast<std::uint64_t>(std::ldexp(rate, 64));
  const std::uint64_t begin = arc * use;
  Random phases(key);
  for (std::uint32_t i = 0; i < frame_count; ++i) {
    if (phases.next() - begin < arc) out.push_back(i);
  }
}

void sample_by_count(std::uint64_t key, std::uint32_t frame_count, std::uint64_t use,
                     std::uint32_t count, std::vector<std::uint32_t>& out) {
  out.clear();
  if (frame_count == 0) return;
  std::vector<std::uint32_t> shuffled(frame_count);
  std::uint64_t round = ~std::uint64_t{0};
  for (std::uint64_t item = use * count; item < (use + 1) * count; ++item) {
    if (item / frame_count != round) {
      round = item / frame_count;
      std::iota(shuffled.begin(), shuffled.end(), 0U);
      Random draws(mix(key, round));
      for (std::uint32_t i = frame_count; i > 1; --i)
        std::swap(shuffled[i - 1], shuffled[draws.below(i)]);
    }
    out.push_back(shuffled[item % frame_count]);
  }
  std::sort(out.begin(), out.end());
}

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
      rate_(context.config.chunk_unpacker().has_position_count()
                ? 0
                : context.config.chunk_unpacker().position_sampling_rate()),
      position_count_(context.config.chunk_unpacker().position_count()) {}

// Finds the frames of the chunk and chooses among them; false: the record contradicts itself.
bool ChunkUnpacker::open_chunk(const Record& record) noexcept {
  opened_ = nullptr;
  if (record.bytes.size() < sizeof(ChunkRecord)) return false;
  std::memcpy(&chunk_, record.bytes.data(), sizeof chunk_);
  offsets_.clear();
  std::size_t at = sizeof(ChunkRecord);
  for (std::uint32_t i = 0; i < chunk_.frame_count; ++i) {
    std::uint32_t bytes = 0;
    if (at + sizeof bytes > record.bytes.size()) return false;
    std::memcpy(&bytes, record.bytes.data() + at, sizeof bytes);
    if (bytes < formats::packed::kAlignment || bytes > record.bytes.size() - at) return false;
    offsets_.push_back(static_cast<std::uint32_t>(at));
    at += bytes;
  }
  if (at != record.bytes.size()) return false;
  offsets_.push_back(static_cast<std::uint32_t>(at));
  const std::uint64_t key = mix(context_.key, chunk_.identity);
  if (position_count_ != 0) {
    sample_by_count(key, chunk_.frame_count, chunk_.uses, position_count_, chosen_);
  } else {
    sample_by_rate(key, chunk_.frame_count, chunk_.uses, rate_, chosen_);
  }
  opened_ = record.bytes.data();
  return true;
}

void ChunkUnpacker::forget(Step& step, const Record&) noexcept {
  step.store(state_.frames_put, 0);
  opened_ = nullptr;
}

StepStatus ChunkUnpacker::step(Step& step) noexcept {
  const std::optional<Record> record = step.peek(in_);
  if (!record) return step.ended(in_) ? StepStatus::kEnd : StepStatus::kNoInput;
  const std::uint64_t done = step.load(state_.frames_put);
  // The first call for a record opens it; an address may come again with another record, but only
  // from its beginning.
  if ((opened_ != record->bytes.data() || done == 0) && !open_chunk(*record)) {
    step.count(chunks_damaged_);
    step.store(state_.frames_put, 0);
    return step.consume(*record);
  }
  std::uint64_t next = done;
  for (; next < chosen_.size(); ++next) {
    const std::uint32_t frame = chosen_[next];
    const std::uint32_t begin = offsets_[frame];
    if (!step.put(out_, record->bytes.subspan(begin, offsets_[frame + 1] - begin),
                  {.tag = {chunk_.identity, frame}})) {
      break;
    }
  }
  step.count(frames_, next - done);
  if (next < chosen_.size()) {
    if (next == done) return StepStatus::kNoRoom;
    step.store(state_.frames_put, next);
    return StepStatus::kDone;
  }
  if (done != 0) step.store(state_.frames_put, 0);
  return step.consume(*record);
}

StageType chunk_unpacker_type() {
  StageType type;
  type.kind = "chunk_unpacker";
  type.inputs = {{"input", "chunks"}};
  type.outputs = {{"output", "frames"}};
  type.problems = [](const StageConfig& config, const DataLoaderConfig&) {
    const ChunkUnpackerConfig& own = config.chunk_unpacker();
    std::vector<Problem> problems;
    if (own.has_position_sampling_rate() == own.has_position_count()) {
      problems.push_back(
          {own.has_position_count() ? "position_count" : "",
           own.has_position_count()
               ? "position_sampling_rate and position_count are both given; give one of them"
               : "neither position_sampling_rate nor position_count is given; give one of them "
                 "(position_sampling_rate: 1 uses every position)"});
    }
    return problems;
  };
  type.nodes = [](const StageConfig& config, const DataLoaderConfig&) {
    const ChunkUnpackerConfig& own = config.chunk_unpacker();
    NodeSpec node;
    node.lanes = own.threads();
    node.lanes_max = std::max(own.threads(), own.max_threads());
    StateLayout layout;
    (void)ChunkUnpacker::State(layout);
    node.state_bytes = layout.bytes();
    node.state_version = 2;
    node.inputs = {{.port = "input", .from = "", .block = 1}};
    node.outputs = {output_spec(own, "frames", 4 * kMiB, UnitRule::kFollow)};
    node.weight = 0.3;
    node.steps_per_commit = 4;
    node.create = [](const StageContext& context) {
      return std::make_unique<ChunkUnpacker>(context);
    };
    return std::vector<NodeSpec>{node};
  };
  return type;
}

}  // namespace ringfeed
